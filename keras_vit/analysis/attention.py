"""What a model attends to. B batch, L blocks, K heads, T tokens, h w grid of patches."""

import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.architecture import check_unmerged, model_config
from keras_vit.checks import check_choice
from keras_vit.layers import (
    AttentionPooling,
    AverageTokenPooling,
    AxialEncoderBlock,
    EncoderBlock,
    MergingEncoderBlock,
    PatchEmbedding,
)


def attention_maps(model, images, queries=None):
    """The attention weights of every head of every encoder block.

    `A[b, l, k, t]` is how much token t of image b receives from each token, in head k of block l: the softmax of ViT
    (arXiv 2010.11929), eq. 6, as the model computes it at inference. Each row sums to one. The tokens stand in the
    order class token, distillation token, registers, as far as there are any, then the patches row by row.

    All images pass at once and every weight is kept: 22 MB an image for B/16 at 224 pixels. For many images, call it
    batch by batch, or keep the rows of some tokens only.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`.
        queries: Indices of the t tokens whose rows are wanted, such as `[0]`, what the class token receives. `None`:
            those of all tokens.

    Returns:
        (B, L, K, T, T), or (B, L, K, t, T) with `queries`, a float32 NumPy array. An axial block
        counts as two: its attention along rows, then that along columns, with zeros outside of the line.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or the images do not fit.
        IndexError: If there is no such token.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.attention_maps(model, np.zeros((1, 64, 96, 3))).shape
    (1, 2, 3, 25, 25)
    """

    def look(layer, arguments, _):
        if not isinstance(layer, BLOCKS):
            return None
        weights = graph.to_array(block_weights(layer, arguments))
        return weights if queries is None else weights[..., queries, :]

    return np.concatenate(check_any(list(graph.collect(model, images, look).values()), model), axis=1)


def attention_rollout(model, images):
    """How much each patch reaches the output through all layers: attention rollout.

    With the attention weights averaged over the heads, `A_l`, and the residual connection counted as the identity,
    `R = Â_L ... Â_1`, where `Â = (A + I) / 2` has rows that sum to one (Abnar & Zuidema, arXiv 2005.00928; ViT, arXiv
    2010.11929, figure 6). What is shown is the row of what the head reads:

    * the class token's row, if there is a class token;
    * with `pooling="avg"`, the mean of the rows of the patches, which is what that pooling takes;
    * with `pooling="map"`, the rows weighted by the attention of its probe, averaged over the heads;
    * without class token and pooling, the mean of the rows of the patches.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`.

    Returns:
        (B, h, w), a float32 NumPy array: one value for each patch, divided by the largest of its image. All zeros where
        nothing reaches the output from any patch.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.attention_rollout(model, np.zeros((1, 64, 96, 3))).shape
    (1, 4, 6)
    """
    return graph.to_array(rollout(model, images))


def rollout(model, images):
    """`attention_rollout` as a tensor (B, h, w) of the backend, also where its functions are traced."""
    found = graph.collect(model, images, _look_for_rollout)
    grid, pooling = found.pop("patch_embedding", None), found.pop("pooling", None)
    blocks = check_any(list(found.values()), model)
    check_choice("pooling", model_config(model).pooling, _POOLINGS)
    num_patches = grid[0] * grid[1]
    row = _read_by_the_head(pooling, model, ops.ones_like(blocks[0][:, 0, 0]), num_patches)
    passes = [block[:, i] for block in blocks for i in range(block.shape[1])]
    for weights in reversed(passes):  # A row times a matrix: the product of all matrices is never needed.
        row = (ops.squeeze(row[:, None] @ weights, axis=1) + row) / 2
    patches = ops.reshape(row[:, -num_patches:], (-1, *grid))
    largest = ops.max(patches, axis=(1, 2), keepdims=True)
    return patches / ops.where(largest > 0, largest, 1.0)


_POOLINGS = ("token", "avg", "map", None)
"""Those of which `_read_by_the_head` knows what they read."""


def _look_for_rollout(layer, arguments, output):
    if isinstance(layer, PatchEmbedding):
        return tuple(ops.shape(output)[1:3])
    if isinstance(layer, BLOCKS):
        return ops.stop_gradient(ops.mean(block_weights(layer, arguments), axis=2))  # (B, passes, T, T)
    if isinstance(layer, AttentionPooling):
        return ops.stop_gradient(ops.mean(layer.attention_weights(*arguments), axis=1))  # Of the probe: (B, 1, T)
    return "mean" if isinstance(layer, AverageTokenPooling) else None


def _read_by_the_head(pooling, model, ones, num_patches):
    """(B, T): how much of each token the head reads. `pooling` is what was seen of that layer, if anything."""
    if pooling is not None and not isinstance(pooling, str):
        return pooling[:, 0]
    positions, num_tokens = ops.arange(ops.shape(ones)[1]), ops.shape(ones)[1]
    if pooling is None and model_config(model).has_class_token:
        return ones * ops.cast(positions == 0, "float32")
    return ones * ops.cast(positions >= num_tokens - num_patches, "float32") / ops.cast(num_patches, "float32")


BLOCKS = (EncoderBlock, AxialEncoderBlock)
"""The layers whose attention is looked at."""


def block_weights(layer, arguments):
    """The attention weights of a block that is called with `arguments`: (B, passes, K, T, T), as a tensor.

    An axial block makes two passes, along rows and along columns; any other makes one.

    Raises:
        ValueError: If the block merges tokens.
    """
    check_unmerged(layer.merging.num_merged if isinstance(layer, MergingEncoderBlock) else 0)
    weights = layer.attention_weights(*arguments)
    return weights if isinstance(layer, AxialEncoderBlock) else weights[:, None]


def check_any(blocks, model):
    """Refuses a model of which no block was seen; returns `blocks`."""
    if not blocks:
        raise ValueError(
            f"Attention is looked at in encoder blocks, and {model.name!r} runs none that can be seen. Pass the model "
            f"of keras_vit that is inside it."
        )
    return blocks
