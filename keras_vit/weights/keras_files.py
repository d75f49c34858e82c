"""Opens `.keras` files as if they were published weights, so that `from_pretrained` can change the saved models."""

import functools

import keras

from keras_vit.outputs import outputs_of
from keras_vit.preprocessing import preprocessing_layer, vision_model
from keras_vit.weights.assign import canonical_arrays
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.loading import target_of
from keras_vit.weights.sources.fetch import locate


def open_model(source):
    """Opens a `.keras` file and returns (model, `Checkpoint` that describes it).

    Args:
        source: Path of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not contain a Vision Transformer, BiT-ResNet or ResNet of this package.
    """
    model = keras.saving.load_model(locate(source), compile=False)
    if vision_model(model) is not model:
        raise ValueError(
            f"{source} contains {model.name!r}, a model that contains a model of keras_vit. Load it with "
            f"keras.saving.load_model, which restores the model unchanged."
        )
    return model, checkpoint_of(model, str(source))


def checkpoint_of(model, source="a model"):
    """The `Checkpoint` of the weights of a model of this package. `source` is named in messages."""
    target = target_of(model)
    if target.config.kind not in target.config.loads:
        raise ValueError(
            f"{source} contains a {target.config.title}. Only .keras files of Vision Transformers, segmenters, depth "
            f"estimators, detectors, BiT-ResNets and ResNets are accepted. Load it with keras.saving.load_model."
        )
    layer = preprocessing_layer(model)
    _, height, width, channels = model.input_shape
    arguments = {"input_shape": model.input_shape[1:], "include_preprocessing": layer.normalize, "name": model.name}
    if not hasattr(target.config, "pooling"):  # The config of a Vision Transformer contains the pooling.
        arguments["pooling"] = "avg" if "pooling" in [layer.name for layer in model.layers] else None
    if target.classes is not None and len(model.outputs) == 1:  # Masks and boxes have logits of their classes.
        arguments["classifier_activation"] = model.layers[-1].activation
    return Checkpoint(
        source=source,
        format="keras",
        config=target.config,
        grid_size=target.grid_size,
        classes=target.classes,
        image_size=target.image_size or (224, 224) if None in (height, width) else (height, width),
        channels=channels,
        preprocessing=layer.pixel_settings,
        label_space=layer.label_space,
        output=next(iter(outputs_of(model).values())),
        read=functools.partial(canonical_arrays, model),
        arguments=arguments,
        origin=layer.origin,
    )
