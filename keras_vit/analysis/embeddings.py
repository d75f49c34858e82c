"""Analysis of the patch and position embeddings. Shapes: h w grid, P Q patch, C channels, D hidden."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.inputs import model_config
from keras_vit.architectures.stem import FIRST_KERNELS
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_positive_integer
from keras_vit.encoder import DEFAULT_IMAGE_SIZE
from keras_vit.preprocessing import vision_model
from keras_vit.weights.assign import canonical_variables


def embedding_filters(model: keras.Model, n: int = 28) -> np.ndarray:
    """The principal components of the filters that a model applies to pixels (ViT, arXiv 2010.11929, figure 7, left).

    The kernel of the patch embedding consists of D filters of P x Q x C values. The components are the orthogonal
    directions along which these filters vary most, the strongest first. They are computed by a singular value
    decomposition of the centred filters. The sign of a component has no meaning, so the value that is farthest from
    zero is made positive.

    For a model with a stem, such as a hybrid, the filters of the stem's first convolution are used. The paper shows the
    components of L/32.

    Args:
        model: A model of this package, which may be nested in another.
        n: Number of components.

    Returns:
        (n, P, Q, C), a float32 NumPy array. Each component is scaled to [0, 1] for display. If the filters vary in
        fewer than n directions, all values of the remaining components are 0.5.

    Raises:
        ValueError: If `model` is not of this package, if it has neither a patch embedding nor a stem, or if n is larger
            than the number of filters or the number of values in a filter.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=1)
    >>> keras_vit.embedding_filters(model).shape
    (28, 16, 16, 3)
    """
    kernel = _first_kernel(model)
    flat = kernel.reshape(-1, kernel.shape[-1]).T  # (D, P Q C)
    if check_positive_integer("n", n) > num_filters(model):
        raise ValueError(
            f"{flat.shape[0]} filters of {flat.shape[1]} values have at most {min(flat.shape)} principal components. "
            f"Received: n={n}"
        )
    _, strengths, components = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    farthest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    components = (components * np.sign(farthest))[:n]
    is_noise = strengths[:n] <= strengths[0] * max(flat.shape) * np.finfo("float32").eps
    low, high = (pick(components, axis=1, keepdims=True) for pick in (np.min, np.max))
    scaled = (components - low) / np.where(high > low, high - low, 1)
    scaled[is_noise | (high == low)[:, 0]] = 0.5
    return scaled.reshape(n, *kernel.shape[:-1]).astype("float32")


def num_filters(model):
    """The largest valid `n` for `embedding_filters`.

    It is the number of filters or the number of values in a filter, whichever is smaller.
    """
    *filter_shape, count = _first_kernel(model).shape
    return min(count, math.prod(filter_shape))


def _first_kernel(model):
    """The kernel of the first layer that is applied to pixels, float64 (P, Q, C, D)."""
    variables = canonical_variables(model)
    for path in FIRST_KERNELS:
        if path in variables:
            return graph.to_array(variables[path]).astype("float64")
    raise ValueError(f"{model.name!r} has neither a patch embedding nor the stem of this package.")


def position_similarity(model: keras.Model, block: int = 0) -> np.ndarray:
    """The cosine similarity of the position embeddings of any two patches.

    ViT (arXiv 2010.11929) shows it in figure 7 (centre) and figure 10. The position embeddings of the tokens before the
    patches, such as the class token, are left out. If the image size is variable, the patches are those of the position
    table's grid.

    Args:
        model: A model of this package, which may be nested in another.
        block: Index of the block, if each block adds its own position embedding (`position_placement="every_layer"`).
            Otherwise 0.

    Returns:
        (h, w, h, w), a float32 NumPy array. Element (i, j) is the map of the similarities of patch (i, j) to all
        patches.

    Raises:
        ValueError: If `model` is not of this package, adds no position embedding to its patch tokens, or has none for
            `block`.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=1)
    >>> keras_vit.position_similarity(model).shape
    (4, 6, 4, 6)
    """
    vit = vision_model(model)
    config = model_config(vit)
    layer = _position_layer(vit, config, block)
    grid = tuple(vit.get_layer("patch_embedding").output.shape[1:3])
    if None in grid:
        default = [DEFAULT_IMAGE_SIZE // stride for stride in config.total_stride]
        grid = tuple(layer.get_config().get("grid_size", default))
    num_patches = grid[0] * grid[1]
    # The layer adds its embedding to the tokens. If the tokens are zeros, the sum is the embedding.
    tokens = layer(
        ops.zeros((1, config.num_prefix_tokens + num_patches, config.hidden_dim)),
        ops.zeros((1, *grid, config.hidden_dim)),
    )
    rows = graph.to_array(tokens)[0, -num_patches:].astype("float64")
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo("float64").tiny)
    return (rows @ rows.T).reshape(*grid, *grid).astype("float32")


_ADDITIVE_POSITIONS = ("learned_1d", "learned_2d", "sincos_2d")
"""The position embeddings that add a vector to each patch token."""


def _position_layer(vit, config, block):
    kind = config.position_embedding if isinstance(config, ViTConfig) else "none"
    if kind not in _ADDITIVE_POSITIONS:
        raise ValueError(
            f"position_similarity compares the vectors that {', '.join(_ADDITIVE_POSITIONS)} add to the patches. "
            f"{vit.name!r} has position_embedding={kind!r}."
        )
    has_many = config.position_placement == "every_layer"
    if block not in range(config.num_layers if has_many else 1):
        accepted = f"must be from 0 to {config.num_layers - 1}" if has_many else "must be 0: there is one embedding"
        raise ValueError(f"block {accepted} in {vit.name!r}. Received: block={block!r}")
    return vit.get_layer(f"position_embedding_{block}" if has_many else "position_embedding")
