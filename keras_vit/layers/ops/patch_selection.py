"""Selection of some of the patches of each image. Shapes: B batch, p prefix tokens, N patches, D hidden."""

from keras import ops

from keras_vit.layers.ops.layouts import gather_rows


def select_patches(tokens, order, num_selected, num_prefix_tokens):
    """Returns the prefix tokens, and the tokens of the patches with the lowest numbers, sorted by these numbers.

    Args:
        tokens: (B, p + N, D)
        order: (B, N), a number for each patch: random numbers or their ranks.
        num_selected: Number V of selected patches.
        num_prefix_tokens: Number p of prefix tokens.

    Returns:
        (B, p + V, D)
    """
    selected = ops.argsort(order, axis=1)[:, :num_selected] + num_prefix_tokens
    return ops.concatenate([tokens[:, :num_prefix_tokens], gather_rows(tokens, selected)], axis=1)


def share_of(num_patches, share):
    """Returns `num_patches * share`, rounded down. The result is a tensor if `num_patches` is a tensor."""
    # 1e-4 is added because of rounding: 10 * (1 - 0.9) is a little less than 1.
    if isinstance(num_patches, int):
        return int(num_patches * share + 1e-4)
    return ops.cast(ops.floor(ops.cast(num_patches, "float32") * share + 1e-4), "int32")
