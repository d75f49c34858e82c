"""Freezing of layers."""

import keras

from keras_vit.checks import did_you_mean, shown
from keras_vit.preprocessing import vision_model


def freeze(model: keras.Model, up_to: str | None = "encoder_block_5") -> list[str]:
    """Freezes the layers of a model up to a given layer, and makes the later layers trainable.

    The layers are in the order of `model.layers`. Like any change of `trainable`, freezing must happen before
    `model.compile`. Dropout stays active in frozen layers. The `trainable` flags are saved in `.keras` files.

    Args:
        model: A model of this package, or a model that contains one. Layers outside this package's model do not change.
        up_to: Name of the last frozen layer, such as `"patch_embedding"`, `"encoder_block_5"` or `"pooling"` (all but
            the classifier). `None`: nothing is frozen.

    Returns:
        The names of the frozen layers that have weights, in order.

    Raises:
        ValueError: If `model` is not of this package, if it is nested in a model whose `trainable` is `False`, or if no
            layer has the name `up_to`.

    Example:

    >>> import keras_vit
    >>> keras_vit.freeze(keras_vit.ViT("Ti/16"), up_to="encoder_block_0")
    ['patch_embedding', 'class_token', 'position_embedding', 'encoder_block_0']
    """
    vision = vision_model(model)
    names = [layer.name for layer in vision.layers]
    if up_to is not None and up_to not in names:
        raise ValueError(f"There is no layer {shown(up_to)}.{did_you_mean(up_to, names)} Layers: {', '.join(names)}")
    _check_containers(model, vision)
    # `trainable` is set twice, because Keras on TensorFlow sets the layers' flags only if the model's flag changes.
    vision.trainable = False
    vision.trainable = True
    frozen = vision.layers[: 0 if up_to is None else names.index(up_to) + 1]
    for layer in frozen:
        layer.trainable = False
    return [layer.name for layer in frozen if layer.weights]


def _check_containers(model, vision):
    """Checks that the models around `vision` are not frozen, because nothing inside a frozen model would be trained."""
    while model is not vision:
        if not model.trainable:
            raise ValueError(
                f"{model.name!r}, in which {vision.name!r} is nested, has trainable=False, so nothing inside would "
                f"be trained. Set its trainable=True first."
            )
        model = next(layer for layer in model.layers if layer is vision or _contains(layer, vision))


def _contains(layer, vision):
    return isinstance(layer, keras.Model) and any(inner is vision or _contains(inner, vision) for inner in layer.layers)
