"""The encoder shared by the models: patches, prefix tokens, positions, blocks, norm."""

import functools
import typing

import keras

from keras_vit import layers
from keras_vit.architectures.stem import ConvStemConfig
from keras_vit.trunks.conv_stem import conv_stem
from keras_vit.trunks.hybrid_resnet import hybrid_resnet


def encode(images, config, grid_size=None):
    """Encodes images as tokens (ViT, arXiv 2010.11929, eqs. 1 to 3, and the LayerNorm of eq. 4).

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        config: `ViTConfig`
        grid_size: Size of the position table, (rows, columns) of patches, for images of variable size. `None`: the grid
            of an image of `DEFAULT_IMAGE_SIZE`.

    Returns:
        A pair of Keras tensors, (tokens, sizes).

        * tokens, (B, T, D): class token, distillation token and registers (if any), then the patch tokens row by row.
          Tokens are normalised, unless the config places the LayerNorm after the pooling or has no final LayerNorm.
        * sizes, (B, T): number of patches that each token represents. `None` if the blocks do not merge tokens.

    Raises:
        ValueError: If images of variable size are combined with relative positions.
    """
    tokens, sizes = encode_patches(embed_patches(images, config), config, grid_size)[-1]
    return (encoder_norm(config)(tokens) if config.has_encoder_norm else tokens), sizes


def embed_patches(images, config):
    """Embeds the patches of images (eq. 1). Arguments and errors are those of `encode`. Returns maps (B, h, w, D)."""
    if config.position_embedding == "relative" and None in images.shape[1:3]:
        raise ValueError(
            f"position_embedding='relative' has a row for each offset between two tokens, so it needs a fixed image "
            f"size, e.g. input_shape=(224, 224, 3). Received: images of shape {tuple(images.shape[1:])}"
        )
    features = images if config.stem is None else _stem_features(images, config)
    return layers.PatchEmbedding(
        config.hidden_dim, config.patch_size, config.crop_to_patches, not config.pre_norm, name="patch_embedding"
    )(features)


def encode_patches(patches, config, grid_size=None, num_blocks=None):
    """Adds prefix tokens and positions to patches (B, h, w, D), and applies the encoder blocks (eqs. 1 to 3).

    Args:
        patches: Output of `embed_patches`.
        config: `ViTConfig`
        grid_size: As in `encode`.
        num_blocks: Number of blocks to apply. `None`: all blocks.

    Returns:
        List of pairs (tokens, sizes), as in `encode` but not normalised: the input of block 0, then the output of each
        block.
    """
    tokens = keras.layers.Reshape((-1, config.hidden_dim), name="patch_tokens")(patches)  # (B, N, D)
    tokens = add_prefix_tokens(tokens, config)  # (B, T, D)
    first_positions, *later_positions = position_layers(patches.shape, config, grid_size)
    if first_positions is not None:
        tokens = first_positions(tokens, patches)
    tokens = keras.layers.Dropout(config.dropout_rate, name="position_dropout")(tokens)
    if config.patch_dropout_rate:
        tokens = layers.PatchDropout(config.patch_dropout_rate, config.num_prefix_tokens, name="patch_dropout")(tokens)
    if config.pre_norm:
        tokens = layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="pre_norm")(tokens)
    sizes, arguments = None, [patches] if config.axial else []
    if config.rotary is not None:
        arguments = [rotary_positions(config, config.num_prefix_tokens)(patches)]
    outputs = [(tokens, sizes)]
    for i, positions in enumerate([None, *later_positions][:num_blocks]):
        if positions is not None:
            tokens = positions(tokens, patches)
        if config.token_merging:
            tokens, sizes = encoder_block(config, i)(tokens, sizes)
        else:
            tokens = encoder_block(config, i)(tokens, *arguments)
        outputs.append((tokens, sizes))
    return outputs


def encoder_norm(config):
    """Creates the LayerNorm of eq. 4."""
    return layers.LayerNormalization(epsilon=config.layer_norm_epsilon, name="encoder_norm")


def rotary_positions(config, num_prefix_tokens):
    """Creates the layer that computes the rotary positions of prefix tokens and patches."""
    return layers.RotaryPositionEmbedding(config.rotary, config.key_dim, num_prefix_tokens, name="rotary_positions")


def _stem_features(images, config):
    """The feature map of the stem, (B, h, w, C). Errors name the size of an image that does not suit the patches."""
    features = (conv_stem if isinstance(config.stem, ConvStemConfig) else hybrid_resnet)(images, config.stem)
    size, patch = features.shape[1:3], config.patch_shape
    multiples = [config.stem.stride * side for side in patch]
    if not config.crop_to_patches and any(side and side % part for side, part in zip(size, patch, strict=True)):
        raise ValueError(
            f"The stem turns an image of {images.shape[1]} x {images.shape[2]} pixels into {size[0]} x {size[1]} "
            f"features, which do not divide into patches of {patch[0]} x {patch[1]}. Resize the image to multiples of "
            f"{multiples[0]} x {multiples[1]} pixels, or set crop_to_patches=True to cut off the remaining features."
        )
    return features


def add_prefix_tokens(tokens, config):
    """Prepends the config's prefix tokens to the patch tokens (B, N, D). Returns (B, T, D)."""
    if config.num_detection_tokens:
        tokens = layers.RegisterTokens(config.num_detection_tokens, 0.02, name="detection_tokens")(tokens)
    if config.num_register_tokens:
        tokens = layers.RegisterTokens(config.num_register_tokens, name="register_tokens")(tokens)
    if config.distillation_token:
        tokens = layers.ClassToken(name="distillation_token")(tokens)
    if config.has_class_token:
        tokens = layers.ClassToken(name="class_token")(tokens)
    return tokens


def position_layers(patches_shape, config, grid_size=None):
    """Returns a position layer, or `None`, for each block. `patches_shape` is the shape (B, h, w, D) of the patches."""
    if config.position_embedding in ("none", "relative"):
        return [None] * config.num_layers
    if config.position_embedding == "sincos_2d":
        build: typing.Any = layers.SincosPositionEmbedding
    else:
        default = grid_size or [DEFAULT_IMAGE_SIZE // stride for stride in config.total_stride]
        grid = tuple(size or default_size for size, default_size in zip(patches_shape[1:3], default, strict=True))
        table = _TABLES[config.position_embedding]
        build = functools.partial(table, grid, config.position_prefix_rows, config.position_interpolation)
    if config.position_placement == "every_layer":
        return [build(name=f"position_embedding_{i}") for i in range(config.num_layers)]
    layer = build(name="position_embedding")
    later_layer = layer if config.position_placement == "every_layer_shared" else None
    return [layer, *[later_layer] * (config.num_layers - 1)]


_TABLES = {"learned_1d": layers.LearnedPositionEmbedding, "learned_2d": layers.Learned2DPositionEmbedding}


def encoder_block(config, i):
    """Creates block i, counted from 0."""
    name = f"encoder_block_{i}"
    if config.axial:
        return layers.AxialEncoderBlock(*(_encoder_block(config, i, part) for part in ("row", "column")), name=name)
    return _encoder_block(config, i, name)


def _encoder_block(config, i, name):
    epsilon = config.layer_norm_epsilon
    attention = layers.MultiHeadSelfAttention(
        config.num_heads,
        dropout_rate=config.attention_dropout_rate,
        qk_norm=config.qk_norm,
        layer_norm_epsilon=epsilon,
        relative_positions=config.position_embedding == "relative",
        qkv_bias=config.qkv_bias,
        inner_norm=config.attention_inner_norm,
        rotary=config.rotary,
        name="attention",
    )
    mlp = layers.MlpBlock(config.mlp_dim, config.mlp, config.dropout_rate, config.mlp_inner_norm, epsilon, name="mlp")
    arguments = {
        "layer_norm_epsilon": epsilon,
        "dropout_rate": config.dropout_rate,
        "drop_path_rate": config.drop_path_rate * i / max(config.num_layers - 1, 1),
        "layer_scale": config.layer_scale,
        "block_norm": config.block_norm,
        "name": name,
    }
    if config.token_merging:
        merging = layers.TokenMerging(config.token_merging, config.num_prefix_tokens, name="merging")
        return layers.MergingEncoderBlock(attention, mlp, merging, **arguments)
    return layers.EncoderBlock(attention, mlp, **arguments)


DEFAULT_IMAGE_SIZE = 224
"""Default height and width in pixels. Models of variable image size have a position table for this size."""
