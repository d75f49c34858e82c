"""Encoder blocks with three heads and an MLP width of 20."""

from keras_vit import layers


def encoder_block(
    mlp="gelu_tanh",
    attention_dropout_rate=0.0,
    qk_norm=False,
    relative_positions=False,
    layer_norm_epsilon=1e-6,
    dropout_rate=0.0,
    merging=None,
    dtype=None,
    **arguments,
):
    """An `EncoderBlock`, or a `MergingEncoderBlock` if a `TokenMerging` is given."""
    attention = layers.MultiHeadSelfAttention(
        3, attention_dropout_rate, qk_norm, layer_norm_epsilon, relative_positions, name="attention", dtype=dtype
    )
    parts = [attention, layers.MlpBlock(20, mlp, dropout_rate, name="mlp", dtype=dtype)]
    arguments |= {"layer_norm_epsilon": layer_norm_epsilon, "dropout_rate": dropout_rate, "dtype": dtype}
    if merging is None:
        return layers.EncoderBlock(*parts, **arguments)
    return layers.MergingEncoderBlock(*parts, merging, **arguments)
