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
    qkv_bias="all",
    inner_norms=False,
    rotary=None,
    **arguments,
):
    """An `EncoderBlock`, or a `MergingEncoderBlock` if a `TokenMerging` is given."""
    attention = layers.MultiHeadSelfAttention(
        3,
        attention_dropout_rate,
        qk_norm,
        layer_norm_epsilon,
        relative_positions,
        qkv_bias,
        inner_norms,
        rotary,
        name="attention",
        dtype=dtype,
    )
    mlp_block = layers.MlpBlock(20, mlp, dropout_rate, inner_norms, layer_norm_epsilon, name="mlp", dtype=dtype)
    parts = [attention, mlp_block]
    arguments |= {"layer_norm_epsilon": layer_norm_epsilon, "dropout_rate": dropout_rate, "dtype": dtype}
    if merging is None:
        return layers.EncoderBlock(*parts, **arguments)
    return layers.MergingEncoderBlock(*parts, merging, **arguments)
