"""Statistics of attention heads.

Shapes: B batch, L blocks, K heads, T tokens, h w grid, N = h w patches, q query patch.
"""

import typing

import keras
import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.architecture import model_config
from keras_vit.analysis.attention import BLOCKS, block_weights, check_has_blocks
from keras_vit.analysis.batching import Images, batches
from keras_vit.layers import PatchEmbedding


def mean_attention_distance(model: keras.Model, images: Images, batch_size: int = 16) -> np.ndarray:
    """The mean attention distance of each head in pixels, the analogue of a convolution's receptive field size.

    The attention distance of a query patch q is `sum_s A_qs d_qs`, where `A` are the attention weights and `d` the
    Euclidean distances between the centres of patches. The result is the mean of this distance over the patches of all
    images (ViT, arXiv 2010.11929, figures 7 and 11; the paper uses 128 images). Tokens without a position, such as the
    class token, are left out. The remaining weights of each patch are divided by their sum, so attention to the
    class token has no influence. A patch that only attends to tokens without a position is not counted.

    Distances are measured in pixels of the Vision Transformer's input. The distance between adjacent patches is the
    total stride, which includes the stride of a hybrid's stem. There may be any number of images, because only sums are
    kept in memory.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`; or an
            iterable of such batches, for example a `tf.data.Dataset`.
        batch_size: Number of images in a batch, if `images` is an array. Only the attention weights of one
            block are in memory at a time: 1.9 MB per image for B/16 at 224 pixels.

    Returns:
        (L, K), a float32 NumPy array. An axial block has two rows: its attention along rows, then along columns. The
        value is NaN if no patch was counted.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or if images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.mean_attention_distance(model, np.zeros((1, 64, 96, 3))).shape
    (2, 3)
    """
    return _mean_over_patches(model, images, batch_size, _distances)


def attention_entropy(model: keras.Model, images: Images, batch_size: int = 16) -> np.ndarray:
    """The entropy of each head's attention in nats, from 0 (one token gets all weight) to `ln T` (T equal weights).

    The result is the mean of the entropy `-sum_s A_ts ln A_ts` over the tokens t of all images. The class token
    and other tokens without a position are included, both as queries and as keys.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: Same as in `keras_vit.mean_attention_distance`.
        batch_size: Number of images in a batch, if `images` is an array.

    Returns:
        (L, K), a float32 NumPy array. An axial block has two rows, as in `keras_vit.mean_attention_distance`.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or if images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> entropy = keras_vit.attention_entropy(model, np.zeros((1, 64, 96, 3)))
    >>> bool((entropy <= np.log(25) + 1e-5).all())
    True
    """

    def sum_entropies(layer, arguments, _):
        if not isinstance(layer, BLOCKS):
            return None
        weights = block_weights(layer, arguments)
        entropy = -ops.sum(weights * ops.log(ops.where(weights > 0, weights, 1.0)), axis=-1)  # (B, passes, K, T)
        return _sums(entropy, ops.ones_like(entropy))

    return _mean(model, images, batch_size, sum_entropies)


def local_attention_ratio(model: keras.Model, images: Images, batch_size: int = 16) -> np.ndarray:
    """The share of each head's attention that goes to the 3 x 3 patches around the query patch, in [0, 1].

    The paper on Visual Transformers (arXiv 2006.03677, section 6) measures this share in ViT-B/16, because a
    convolution could replace attention to these patches. The result is the mean over the patches of all images. Tokens
    without a position, such as the class token, are left out. The remaining weights of each query
    patch are divided by their sum.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: Same as in `keras_vit.mean_attention_distance`.
        batch_size: Number of images in a batch, if `images` is an array.

    Returns:
        (L, K), a float32 NumPy array. An axial block has two rows, as in `keras_vit.mean_attention_distance`.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or if images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> ratio = keras_vit.local_attention_ratio(model, np.zeros((1, 64, 96, 3)))
    >>> ratio.shape, bool((ratio <= 1).all())
    ((2, 3), True)
    """
    return _mean_over_patches(model, images, batch_size, _is_adjacent)


def _is_adjacent(grid, _):
    """An array (N, N): 1 for the 3 x 3 patches around each patch, else 0."""
    return (_distances(grid, (1, 1), np.inf) <= 1).astype("float32")


def _mean(model, images, batch_size, inspect_layer):
    """The mean value of each head, (L, K). `inspect_layer` returns `_sums(...)` for a block, else `None`."""
    total: typing.Any = 0.0
    for batch in batches(images, batch_size):
        collected = graph.collect(model, batch, inspect_layer)
        # In float32, the sum over many images would be inexact.
        total = total + np.concatenate(check_has_blocks(list(collected.values()), model), axis=1, dtype="float64")
    sums, counts = total
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0).astype("float32")


def _mean_over_patches(model, images, batch_size, values_of):
    """Averages values over all pairs of patches, weighted by the attention of each head: (L, K).

    `values_of(grid, stride)` returns one value for each pair of query patch and key patch, (N, N).
    """
    stride = model_config(model).total_stride
    values = None

    def sum_values(layer, arguments, output):
        nonlocal values
        if isinstance(layer, PatchEmbedding):
            values = ops.convert_to_tensor(values_of(output.shape[1:3], stride), "float32")
        if isinstance(layer, BLOCKS):
            return _weighted_sums(block_weights(layer, arguments), values)
        return None

    return _mean(model, images, batch_size, sum_values)


def _weighted_sums(weights, values):
    num_patches = values.shape[0]
    weights = weights[..., -num_patches:, -num_patches:]  # (B, passes, K, N, N)
    mass = ops.sum(weights, axis=-1)
    reach = ops.einsum("bpkqs,qs->bpkq", weights, values)
    counted = ops.cast(mass > 0, "float32")
    return _sums(counted * reach / ops.where(mass > 0, mass, 1.0), counted)


def _sums(values, counted):
    """Sums `values` and `counted`, both (B, passes, K, t), over the images and their tokens: (2, passes, K)."""
    return np.stack([graph.to_array(ops.sum(array, axis=(0, 3))) for array in (values, counted)])


def _distances(grid, stride, order=2):
    """The distances in pixels between the centres of patches, (N, N)."""
    centres = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2) * stride
    return np.linalg.norm(centres[:, None] - centres, ord=order, axis=-1)
