"""The composition that every model shares: patches, prefix tokens, positions, blocks, norm."""

import keras

from keras_vit import layers
from keras_vit.stems.bit_resnet import bit_resnet


def encode(images, config, grid_size=None):
    """Images to normalised tokens (ViT, arXiv 2010.11929, eqs. 1 to 3, and the LayerNorm of eq. 4).

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        config: `ViTConfig`
        grid_size: (rows, columns) of patches of the position table, for images of variable size. `None`: those of
            `DEFAULT_IMAGE_SIZE`.

    Returns:
        Keras tensor (B, T, D): class token, distillation token and registers, as far as there are any, then the patches
        row by row. Not normalised where the config puts the LayerNorm behind the pooling.
    """
    if config.stem is not None:
        images = bit_resnet(images, config.stem)
    patches = layers.PatchEmbedding(
        config.hidden_dim, config.patch_size, config.crop_to_patches, not config.pre_norm, name="patch_embedding"
    )(images)  # (B, h, w, D)
    tokens = keras.layers.Reshape((-1, config.hidden_dim), name="patch_tokens")(patches)  # (B, N, D)
    tokens = add_prefix_tokens(tokens, config)  # (B, T, D)
    tokens = add_positions(tokens, patches, config, grid_size)
    tokens = keras.layers.Dropout(config.dropout_rate, name="position_dropout")(tokens)
    if config.pre_norm:
        tokens = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="pre_norm")(tokens)
    for i in range(config.num_layers):
        tokens = layers.EncoderBlock(
            num_heads=config.num_heads,
            mlp_dim=config.mlp_dim,
            mlp=config.mlp,
            layer_norm_epsilon=config.layer_norm_epsilon,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            drop_path_rate=config.drop_path_rate * i / max(config.num_layers - 1, 1),
            layer_scale=config.layer_scale,
            qk_norm=config.qk_norm,
            name=f"encoder_block_{i}",
        )(tokens)
    if config.norm_placement == "after_pooling":
        return tokens
    return keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="encoder_norm")(tokens)


def add_prefix_tokens(tokens, config):
    """Patch tokens (B, N, D) with those of the config before them (B, T, D)."""
    if config.num_register_tokens:
        tokens = layers.RegisterTokens(config.num_register_tokens, name="register_tokens")(tokens)
    if config.distillation_token:
        tokens = layers.ClassToken(name="distillation_token")(tokens)
    if config.has_class_token:
        tokens = layers.ClassToken(name="class_token")(tokens)
    return tokens


def add_positions(tokens, patches, config, grid_size=None):
    """Tokens (B, T, D) with the positions of `patches` (B, h, w, D) added, as the config says."""
    if config.position_embedding == "none":
        return tokens
    if config.position_embedding == "sincos_2d":
        layer = layers.SincosPositionEmbedding(name="position_embedding")
    else:
        default = grid_size or [DEFAULT_IMAGE_SIZE // stride for stride in config.total_stride]
        grid = (size or other for size, other in zip(patches.shape[1:3], default, strict=True))
        layer = layers.LearnedPositionEmbedding(
            grid, config.position_prefix_rows, config.position_interpolation, name="position_embedding"
        )
    return layer(tokens, patches)


DEFAULT_IMAGE_SIZE = 224
"""Pixels. Models are built for it unless told otherwise; a model of variable size has the position table for it."""
