"""Attention maps, attention rollout, and statistics of attention heads.

Shapes: B batch, L blocks, K heads, T tokens, h w grid, N = h w patches, q query patch.
"""

import collections.abc
import functools

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vit import graph, layers
from keras_vit.analysis.inputs import Images, batches, check_unmerged, model_config
from keras_vit.heads.eomt import EoMTHead


def attention_maps(
    model: keras.Model, images: ArrayLike, queries: collections.abc.Sequence[int] | None = None
) -> np.ndarray:
    """Returns the attention weights of every head of every encoder block.

    `A[b, l, k, t]` contains the weights with which token t of image b attends to each token, in head k of block l.
    They are the softmax of ViT (arXiv 2010.11929), eq. 6, computed in inference mode. Each row sums to one. The order
    of the tokens is: class token, distillation token, registers (if the model has them), then the patches row by row.

    All images pass through the model in one batch. The weights take 22 MB per image for B/16 at 224 pixels. For many
    images, call the function batch by batch, or select some tokens with `queries`.

    The last blocks of a model with an `EoMTHead` belong to the head, and are not included: see `query_attention`.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`.
        queries: Indices of the t tokens for which rows are returned, such as `[0]` for the class token. `None`: all
            tokens.

    Returns:
        (B, L, K, T, T), or (B, L, K, t, T) with `queries`, a float32 NumPy array. An axial block counts as two blocks,
        one for the attention along rows and one along columns. Weights outside the row or column are zero.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or if images do not fit.
        IndexError: If an index in `queries` is out of range.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.attention_maps(model, np.zeros((1, 64, 96, 3))).shape
    (1, 2, 3, 25, 25)
    """

    def collect_weights(layer, arguments, _):
        if not isinstance(layer, BLOCKS):
            return None
        weights = graph.to_array(block_weights(layer, arguments))
        return weights if queries is None else weights[..., queries, :]

    return np.concatenate(check_has_blocks(list(graph.collect(model, images, collect_weights).values()), model), axis=1)


def attention_rollout(model: keras.Model, images: ArrayLike) -> np.ndarray:
    """Returns the attention rollout: how much each patch contributes to the output through all layers.

    The rollout is `R = Â_L ... Â_1` with `Â_l = (A_l + I) / 2` (Abnar & Zuidema, arXiv 2005.00928; ViT, arXiv
    2010.11929, figure 6). `A_l` contains the attention weights of block l, averaged over the heads. The identity `I`
    represents the residual connection. Each row of `Â_l` sums to one. The result is a row of `R`, or a mean of rows:

    * the class token's row, if the head reads a class token;
    * the mean of the rows of the pooled tokens, if `pooling="avg"`: the patches, or all tokens with
      `pool_prefix_tokens=True`;
    * the mean of the rows of the pooled tokens, weighted by the attention of the pooling's probe (averaged over the
      heads), if `pooling="map"`;
    * the mean of the rows of the patches, if there is neither a class token nor a pooling. With an `EoMTHead`, this is
      the rollout of the blocks before the head.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`.

    Returns:
        (B, h, w), a float32 NumPy array: one value for each patch, divided by the largest value of the image. All
        values are zero if no patch contributes to the output.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or if images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.attention_rollout(model, np.zeros((1, 64, 96, 3))).shape
    (1, 4, 6)
    """
    return graph.to_array(rollout(model, images))


def rollout(model, images):
    """Same as `attention_rollout`, but returns a tensor of the backend, (B, h, w), and can be traced."""
    collected = graph.collect(model, images, _collect_for_rollout)
    grid, pooling = collected.pop("patch_embedding", None), collected.pop("pooling", None)
    blocks = check_has_blocks(list(collected.values()), model)
    if not has_rollout(model):
        raise ValueError(
            f"Attention rollout is not defined for pooling={model_config(model).pooling!r}. Call "
            f"keras_vit.attention_maps, which works with any pooling. To support this pooling, add the tokens "
            f"that it reads to the code of {__name__}."
        )
    num_patches = grid[0] * grid[1]
    row = _weights_in_head(pooling, model, ops.ones_like(blocks[0][:, 0, 0]), num_patches)
    passes = [block[:, i] for block in blocks for i in range(block.shape[1])]
    for weights in reversed(passes):  # Only one row is needed, so the matrices are never multiplied by each other.
        row = (ops.squeeze(row[:, None] @ weights, axis=1) + row) / 2
    patches = ops.reshape(row[:, -num_patches:], (-1, *grid))
    largest = ops.max(patches, axis=(1, 2), keepdims=True)
    return patches / ops.where(largest > 0, largest, 1.0)


def has_rollout(model):
    """Whether `attention_rollout` is defined for the pooling of a Vision Transformer."""
    return model_config(model).pooling in ("token", "avg", "map", None)


def _collect_for_rollout(layer, arguments, output):
    if isinstance(layer, layers.PatchEmbedding):
        return tuple(ops.shape(output)[1:3])
    if isinstance(layer, BLOCKS):
        return ops.stop_gradient(ops.mean(block_weights(layer, arguments), axis=2))  # (B, passes, T, T)
    if isinstance(layer, layers.AttentionPooling):
        return ops.stop_gradient(ops.mean(layer.attention_weights(*arguments), axis=1))  # (B, 1, T)
    return layer.num_prefix_tokens if isinstance(layer, layers.AverageTokenPooling) else None


def _weights_in_head(pooling, model, ones, num_patches):
    """The weight of each token in the head's input, (B, T).

    `pooling` is the value collected from the pooling layer: the weights of a probe or, for an average, the number of
    tokens at the beginning of the sequence that are not averaged.
    """
    if pooling is not None and not isinstance(pooling, int):
        return pooling[:, 0]
    positions, num_tokens = ops.arange(ops.shape(ones)[1]), ops.shape(ones)[1]
    if pooling is None and model_config(model).has_class_token:
        return ones * ops.cast(positions == 0, "float32")
    first = num_tokens - num_patches if pooling is None else pooling
    return ones * ops.cast(positions >= first, "float32") / ops.cast(num_tokens - first, "float32")


BLOCKS = (layers.EncoderBlock, layers.AxialEncoderBlock)
"""The layers whose attention is collected."""


def block_weights(layer, arguments):
    """Returns a tensor (B, passes, K, T, T), the attention weights of a block that is called with `arguments`.

    Axial blocks have two passes, along rows and along columns. Other blocks have one.

    Raises:
        ValueError: If the block merges tokens.
    """
    check_unmerged(layer.merging.num_merged if isinstance(layer, layers.MergingEncoderBlock) else 0)
    weights = layer.attention_weights(*arguments)
    return weights if isinstance(layer, layers.AxialEncoderBlock) else weights[:, None]


def check_has_blocks(blocks, model):
    """Checks that `blocks`, the values that were collected from a model's blocks, is not empty, and returns it."""
    if not blocks:
        raise ValueError(
            f"{model.name!r} contains no encoder block that this function can find. If a model of keras_vit is "
            f"nested in it, pass that model."
        )
    return blocks


def query_attention(model: keras.Model, images: ArrayLike) -> np.ndarray:
    """Returns where each query of an `EoMTHead` looks: its attention to the patches in each block of the head.

    The weights are the mean of all heads of the block. A mask shows which pixels belong to the object of a query, and
    the attention shows which patches the query has read.

    Args:
        model: A `keras_vit.Segmenter` with an `EoMTHead`, or a model in which one is nested.
        images: (B, H, W, C), as `model` expects them.

    Returns:
        (B, n, Q, h, w) for n blocks and Q queries, a float32 NumPy array. The weights of a query and a block sum to at
        most one, because it also attends to the other queries and to the class token.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` has no `EoMTHead`, or images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> head = keras_vit.heads.EoMTHead(num_queries=5, num_blocks=2)
    >>> config = keras_vit.ViTConfig(patch_size=16, hidden_dim=24, num_layers=3, num_heads=2, mlp_dim=48)
    >>> model = keras_vit.Segmenter(config, head, classes=4, input_shape=(64, 96, 3))
    >>> keras_vit.query_attention(model, np.zeros((1, 64, 96, 3))).shape
    (1, 2, 5, 4, 6)
    """

    def collect_weights(layer, arguments, _):
        return layer.attention_weights(*arguments) if isinstance(layer, EoMTHead) else None

    found = graph.collect(model, images, collect_weights)
    if not found:
        raise ValueError(f"{model.name!r} has no EoMTHead, so it has no queries.")
    [weights] = found.values()
    return graph.to_array(weights)


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
        if isinstance(layer, layers.PatchEmbedding):
            grid = tuple(output.shape[1:3])
        if not isinstance(layer, BLOCKS):
            return None
        arrays = statistic(block_weights(layer, arguments), grid)
        return np.stack([graph.to_array(ops.sum(array, axis=(0, 3))) for array in arrays])  # (2, passes, K)

    def sums_of(batch):
        blocks = check_has_blocks(list(graph.collect(model, batch, sums).values()), model)
        return np.concatenate(blocks, axis=1, dtype="float64")  # In float32, the sum over many images would be inexact.

    values, counts = functools.reduce(np.add, map(sums_of, batches(images, batch_size)))
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
