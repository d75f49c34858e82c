"""Statistics of attention heads.

Shapes: B batch, L blocks, K heads, T tokens, h w grid, N = h w patches, q query patch.
"""

import functools
import typing

import keras
import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.attention import BLOCKS, block_weights, check_has_blocks
from keras_vit.analysis.inputs import Images, batches, model_config
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

    def entropies(weights, _):
        entropy = -ops.sum(weights * ops.log(ops.where(weights > 0, weights, 1.0)), axis=-1)  # (B, passes, K, T)
        return entropy, ops.ones_like(entropy)

    return _mean(model, images, batch_size, entropies)


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
    return _mean_over_patches(model, images, batch_size, lambda grid, _: _distances(grid, (1, 1), np.inf) <= 1)


def _mean(model, images, batch_size, statistic):
    """The mean of a statistic for each head, (L, K).

    `statistic(weights, grid)` gets the weights of a block, (B, passes, K, T, T), and (h, w). It returns the values of t
    queries and the number of times that each is counted, 1 or 0, both (B, passes, K, t).
    """
    grid = None

    def sums(layer, arguments, output):
        nonlocal grid
        if isinstance(layer, PatchEmbedding):
            grid = tuple(output.shape[1:3])
        if not isinstance(layer, BLOCKS):
            return None
        arrays = statistic(block_weights(layer, arguments), grid)
        return np.stack([graph.to_array(ops.sum(array, axis=(0, 3))) for array in arrays])  # (2, passes, K)

    total: typing.Any = 0.0
    for batch in batches(images, batch_size):
        collected = graph.collect(model, batch, sums)
        # In float32, the sum over many images would be inexact.
        total = total + np.concatenate(check_has_blocks(list(collected.values()), model), axis=1, dtype="float64")
    values, counts = total
    return np.divide(values, counts, out=np.full_like(values, np.nan), where=counts > 0).astype("float32")


def _mean_over_patches(model, images, batch_size, values_of):
    """Averages values over all pairs of patches, weighted by the attention of each head: (L, K).

    `values_of(grid, stride)` returns one value for each pair of query patch and key patch, (N, N).
    """
    stride = model_config(model).total_stride

    @functools.cache
    def values(grid):
        return ops.cast(values_of(grid, stride), "float32")

    def statistic(weights, grid):
        num_patches = grid[0] * grid[1]
        weights = weights[..., -num_patches:, -num_patches:]  # (B, passes, K, N, N)
        mass = ops.sum(weights, axis=-1)
        counted = ops.cast(mass > 0, "float32")
        reach = ops.einsum("bpkqs,qs->bpkq", weights, values(grid))
        return counted * reach / ops.where(mass > 0, mass, 1.0), counted

    return _mean(model, images, batch_size, statistic)


def _distances(grid, stride, order=2):
    """The distances in pixels between the centres of patches, (N, N)."""
    centres = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2) * stride
    return np.linalg.norm(centres[:, None] - centres, ord=order, axis=-1)
