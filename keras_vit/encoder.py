"""The composition that every model shares: patches, class token, positions, blocks, norm."""

import keras

from keras_vit import layers


def encode(images, config):
    """Images to normalised tokens (ViT, arXiv 2010.11929, eqs. 1 to 3, and the LayerNorm of eq. 4).

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        config: `ViTConfig`

    Returns:
        Keras tensor (B, T, D): the class token, if there is one, then the patches row by row.
    """
    patches = layers.PatchEmbedding(
        config.hidden_dim, config.patch_size, config.crop_to_patches, name="patch_embedding"
    )(images)  # (B, h, w, D)
    tokens = keras.layers.Reshape((-1, config.hidden_dim), name="patch_tokens")(patches)  # (B, N, D)
    if config.num_class_tokens:
        tokens = layers.ClassToken(name="class_token")(tokens)  # (B, T, D)
    tokens = add_positions(tokens, patches, config)
    tokens = keras.layers.Dropout(config.dropout_rate, name="position_dropout")(tokens)
    for i in range(config.num_layers):
        tokens = layers.EncoderBlock(
            num_heads=config.num_heads,
            mlp_dim=config.mlp_dim,
            mlp=config.mlp,
            layer_norm_epsilon=config.layer_norm_epsilon,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            drop_path_rate=config.drop_path_rate * i / max(config.num_layers - 1, 1),
            name=f"encoder_block_{i}",
        )(tokens)
    return keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="encoder_norm")(tokens)


def add_positions(tokens, patches, config):
    """Tokens (B, T, D) with the positions of `patches` (B, h, w, D) added, as the config says."""
    if config.position_embedding == "none":
        return tokens
    if config.position_embedding == "sincos_2d":
        layer = layers.SincosPositionEmbedding(name="position_embedding")
    else:
        grid = (
            size or DEFAULT_IMAGE_SIZE // patch
            for size, patch in zip(patches.shape[1:3], config.patch_shape, strict=True)
        )
        layer = layers.LearnedPositionEmbedding(grid, config.position_prefix_rows, name="position_embedding")
    return layer(tokens, patches)


DEFAULT_IMAGE_SIZE = 224
"""Pixels. Models are built for it unless told otherwise; a model of variable size has the position table for it."""
