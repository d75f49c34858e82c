"""Models for batches of images of different sizes. Shapes: B batch, P Q C patch, N patches."""

import collections.abc
import functools

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit import layers
from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_positive_integer, shown
from keras_vit.graph import run_operations
from keras_vit.preprocessing import Preprocessing, preprocessing_layer, vision_model


def naflex_model(model: keras.Model, max_patches: int = 256, name: str | None = None) -> keras.Model:
    """Builds a model for images of different sizes and proportions, with the layers of a Vision Transformer.

    This is NaFlex, from NaViT (arXiv 2307.06304) and FlexiViT (arXiv 2212.08013), as in SigLIP 2 (arXiv 2502.14786,
    section 2.4.2) and timm's NaFlexViT. `keras_vit.naflex_inputs` turns images into the inputs. The positions are
    resized to the grid of each image. Blocks and pooling do not see the missing patches of small images, so the output
    for an image does not depend on the other images of the batch.

    Weights are shared with `model`, so training one of the models changes both.

    Args:
        model: A Vision Transformer of this package with learned positions that are added to the patch tokens once.
            Other models were trained with images of one proportion, so their outputs may be less accurate for others.
        max_patches: Largest number N of patches of an image.
        name: The model's name.

    Returns:
        A functional `keras.Model`. The input is a dictionary of `patches`, (B, N, P, Q, C), pixels in [0, 255], and
        `grid`, integers (B, 2), the rows and columns of patches. The output is that of `model`.

    Raises:
        ValueError: If an argument is invalid, or the model is of another kind.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, classes=10, input_shape=(64, 64, 3))
    >>> naflex = keras_vit.naflex_model(model, max_patches=16)
    >>> photos = [np.zeros((30, 90, 3), "uint8"), np.zeros((500, 400, 3), "uint8")]
    >>> naflex.predict(keras_vit.naflex_inputs(photos, naflex), verbose=0).shape
    (2, 10)
    """
    if vision_model(model) is not model or len(model.inputs) != 1:
        raise ValueError(
            f"A model of this package with one input, the images, is needed. Received: {model.name!r}. If it contains "
            f"such a model, pass that model."
        )
    config = read_architecture(preprocessing_layer(model).architecture)
    max_patches = check_positive_integer("max_patches", max_patches)
    _check(config)
    if len(model.output_shape) != 2:
        raise ValueError(f"The model must pool its tokens. Received: outputs of shape {model.output_shape}")
    shape = (*config.patch_shape, model.input_shape[-1])
    inputs = {
        "patches": keras.Input((max_patches, *shape), name="patches"),
        "grid": keras.Input((2,), dtype="int32", name="grid"),
    }
    mask = layers.NaFlexMask(max_patches, config.num_prefix_tokens, name="mask")(inputs["grid"])
    of_queries = keras.layers.Reshape((1, -1), name="attention_mask")(mask)
    further = {
        layers.LearnedPositionEmbedding: {"grids": inputs["grid"]},
        layers.EncoderBlock: {"attention_mask": of_queries},
        layers.AttentionPooling: {"attention_mask": of_queries},
        layers.AverageTokenPooling: {"sizes": mask},
    }

    def call_of(operation):
        if isinstance(operation, Preprocessing) and not operation.normalize:
            operation = Preprocessing.from_config(operation.get_config() | {"normalize": True})
        return functools.partial(operation, **further.get(type(operation), {}))

    # One column of patches is an image with the same patches.
    column = keras.layers.Reshape((max_patches * shape[0], *shape[1:]), name="column")(inputs["patches"])
    return keras.Model(inputs, run_operations(model, [column], call_of), name=name or f"naflex_{model.name}")


def naflex_inputs(images: collections.abc.Sequence[ArrayLike], model: keras.Model) -> dict[str, np.ndarray]:
    """Turns images of different sizes into the inputs of a `naflex_model`. See `keras_vit.layers.NaFlexPatches`.

    Args:
        images: List of images (H, W, C), pixels in [0, 255].
        model: The result of `naflex_model`.

    Returns:
        Dictionary of `patches`, float32 (B, N, P, Q, C), and `grid`, int32 (B, 2).

    Raises:
        ValueError: If an image has another shape, or the model is of another kind.

    Example:

    >>> import numpy as np, keras_vit
    >>> vit = keras_vit.ViT("Ti/16", num_layers=1, classes=10, input_shape=(64, 64, 3))
    >>> naflex = keras_vit.naflex_model(vit, max_patches=16)
    >>> keras_vit.naflex_inputs([np.zeros((30, 90, 3), "uint8")], naflex)["grid"]
    array([[2, 6]], dtype=int32)
    """
    if not isinstance(model.input, dict) or set(model.input) != {"patches", "grid"}:
        raise ValueError(f"A model from keras_vit.naflex_model is needed. Received: {model.name!r}")
    _, max_patches, *patch_shape, channels = model.input["patches"].shape
    interpolation = preprocessing_layer(model).interpolation
    layer = layers.NaFlexPatches(tuple(patch_shape), max_patches, interpolation)
    shape = (0, max_patches, *patch_shape, channels)
    patches, grids = [np.zeros(shape, "float32")], [np.zeros((0, 2), "int32")]
    for image in images:
        if np.ndim(image) != 3 or np.shape(image)[2] != channels:
            raise ValueError(
                f"Images must be arrays (H, W, {channels}), such as np.array(keras.utils.load_img(path)). Received: "
                f"{shown(image) if np.ndim(image) == 0 else f'an image of shape {np.shape(image)}'}"
            )
        found = layer(np.asarray(image)[None])
        patches.append(keras.ops.convert_to_numpy(found["patches"]))
        grids.append(keras.ops.convert_to_numpy(found["grid"]))
    return {"patches": np.concatenate(patches), "grid": np.concatenate(grids)}


def _check(config):
    if not isinstance(config, ViTConfig):
        raise ValueError(f"A Vision Transformer is needed. Received: {config}")
    reasons = {
        f"position_embedding={config.position_embedding!r}": config.position_embedding not in ("learned_1d", "none"),
        f"position_placement={config.position_placement!r}": config.position_placement != "stem",
        **{name: getattr(config, name) for name in ("stem", "axial", "token_merging", "rotary", "patch_dropout_rate")},
    }
    if unsuitable := [name for name, is_used in reasons.items() if is_used]:
        raise ValueError(
            f"Images of different sizes need a Vision Transformer with learned positions, which are added once to the "
            f"tokens of patches. The model has {', '.join(unsuitable)}. Resize all images to one size, and use the "
            f"model itself."
        )
