"""What a model has learned to see in a patch and of its place. h w grid, P Q patch, C channels, D hidden."""

import math

import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.architecture import is_vision_transformer, model_config
from keras_vit.checks import check_positive_integer
from keras_vit.encoder import DEFAULT_IMAGE_SIZE
from keras_vit.preprocessing import vision_model
from keras_vit.weights.assign import canonical_variables


def embedding_filters(model, n=28):
    """The principal components of the filters with which a model reads pixels (ViT, arXiv 2010.11929, figure 7, left).

    Each of the D columns of the patch embedding is a filter of P x Q x C values. The components are the orthogonal
    directions along which these filters vary most, the strongest first (of the centred filters, by singular value
    decomposition). The sign of a component says nothing: its largest value is made positive.

    Of a hybrid, and of any model with a stem, it is the stem's first convolution that reads pixels: its filters are
    taken. The paper shows those of L/32.

    Args:
        model: A model of this package, also nested in another.
        n: How many components.

    Returns:
        (n, P, Q, C), a float32 NumPy array, each component scaled to [0, 1] for looking at. Where the filters vary in
        fewer than n directions, the rest is 0.5 throughout.

    Raises:
        ValueError: If `model` is not of this package or has no such layer, or n is more than there are filters or
            values in a filter.

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
    components = components[:n] * np.sign(_largest(components[:n]))
    is_noise = strengths[:n] <= strengths[0] * max(flat.shape) * np.finfo("float32").eps
    low, high = (pick(components, axis=1, keepdims=True) for pick in (np.min, np.max))
    scaled = (components - low) / np.where(high > low, high - low, 1)
    scaled[is_noise | (high == low)[:, 0]] = 0.5
    return scaled.reshape(n, *kernel.shape[:-1]).astype("float32")


def num_filters(model):
    """How many components `embedding_filters` has at most: as many as there are filters, or values in a filter."""
    *filter_shape, count = _first_kernel(model).shape
    return min(count, math.prod(filter_shape))


def _first_kernel(model):
    """(P, Q, C, D) in float64: of the layer that pixels meet first."""
    variables = canonical_variables(model)
    found = variables.get("stem_conv/kernel", variables.get("patch_embedding/kernel"))
    if found is None:
        raise ValueError(f"{model.name!r} has neither a patch embedding nor the stem of this package.")
    return graph.to_array(found).astype("float64")


def _largest(components):
    """(n, 1): the value of each component that is farthest from zero."""
    return np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)


def position_similarity(model, block=0):
    """How alike the positions of any two patches are: the cosine similarity of their embeddings.

    Rows of the table for tokens before the patches, such as the class token's, are left out (ViT, arXiv 2010.11929,
    figures 7, centre, and 10). Of a model of variable size it is the grid that the table is made for.

    Args:
        model: A model of this package, also nested in another.
        block: With `position_placement="every_layer"` each block adds positions of its own; this is the number of the
            block whose positions are compared. 0 otherwise.

    Returns:
        (h, w, h, w), a float32 NumPy array: element (i, j) is the map of the similarities of patch (i, j) to all.

    Raises:
        ValueError: If `model` is not of this package, has no positions to compare, or has none for `block`.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=1)
    >>> keras_vit.position_similarity(model).shape
    (4, 6, 4, 6)
    """
    vit = vision_model(model)
    config = model_config(vit)
    layer = _position_layer(vit, config, block)
    grid = _grid(vit, layer, config)
    num_patches = grid[0] * grid[1]
    # The layer adds its rows to tokens: what it makes of zeros is the rows, however it keeps or computes them.
    tokens = layer(
        ops.zeros((1, config.num_prefix_tokens + num_patches, config.hidden_dim)),
        ops.zeros((1, *grid, config.hidden_dim)),
    )
    rows = graph.to_array(tokens)[0, -num_patches:].astype("float64")
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo("float64").tiny)
    return (rows @ rows.T).reshape(*grid, *grid).astype("float32")


_WITH_ROWS = ("learned_1d", "learned_2d", "sincos_2d")
"""The position embeddings that add a vector to each patch."""


def _position_layer(vit, config, block):
    kind = config.position_embedding if is_vision_transformer(config) else "none"
    if kind not in _WITH_ROWS:
        raise ValueError(
            f"position_similarity compares the vectors that {', '.join(_WITH_ROWS)} add to the patches. {vit.name!r} "
            f"has position_embedding={kind!r}."
        )
    has_many = config.position_placement == "every_layer"
    if block not in range(config.num_layers if has_many else 1):
        accepted = f"must be from 0 to {config.num_layers - 1}" if has_many else "must be 0: there is one embedding"
        raise ValueError(f"block {accepted} in {vit.name!r}. Received: block={block!r}")
    return vit.get_layer(f"position_embedding_{block}" if has_many else "position_embedding")


def _grid(vit, layer, config):
    """(rows, columns) of patches of the model's own image size, or those that its table is made for."""
    grid = vit.get_layer("patch_embedding").output.shape[1:3]
    if None in grid:
        default = [DEFAULT_IMAGE_SIZE // stride for stride in config.total_stride]
        grid = layer.get_config().get("grid_size", default)
    return tuple(grid)
