"""Names of the arrays in files of timm's classes `VisionTransformer` and `Eva`."""

import numpy as np

from keras_vit.weights.formats.names import (
    Names,
    Rule,
    block_rules,
    dense_rules,
    head_rules,
    join_gates,
    merged_rules,
    norm_rules,
    split_gates,
)


def _packed(names, path, layout, paths):
    yield Rule(f"{names}.weight", tuple(f"{path}/{part}/kernel" for part in paths), layout)
    yield Rule(f"{names}.bias", tuple(f"{path}/{part}/bias" for part in paths), layout)


def _convolution(name, path):
    return Rule(f"{name}.weight", f"{path}/kernel", "convolution")


def _units():
    unit, path = "patch_embed.backbone.stages.{s}.blocks.{u}.", "stem_stage_{s}_unit_{u}/"
    for number in (1, 2, 3):
        yield _convolution(f"{unit}conv{number}", f"{path}conv_{number}")
        yield from norm_rules(f"{unit}norm{number}", f"{path}norm_{number}")
    yield _convolution(f"{unit}downsample.conv", f"{path}projection_conv")
    yield from norm_rules(f"{unit}downsample.norm", f"{path}projection_norm")


_BLOCK = (
    *norm_rules("norm1", "attention_norm"),
    *_packed("attn.qkv", "attention", "query_key_value", ("query", "key", "value")),
    Rule("attn.q_bias", "attention/query/bias", "heads"),  # `Eva` has no bias of keys.
    Rule("attn.v_bias", "attention/value/bias", "heads"),
    *head_rules([f"attn.{x}_proj" for x in "qkv"], "attention"),
    *norm_rules("attn.q_norm", "attention/query_norm"),
    *norm_rules("attn.k_norm", "attention/key_norm"),
    *norm_rules("attn.norm", "attention/inner_norm"),
    *merged_rules("attn.proj", "attention"),
    Rule("ls1.gamma", "attention_scale/gamma"),
    *norm_rules("norm2", "mlp_norm"),
    *dense_rules("mlp.fc1", "mlp/hidden"),
    *dense_rules("mlp.fc1_g", "mlp/gate"),  # See `join_gates`.
    *dense_rules("mlp.fc1_x", "mlp/value"),
    *norm_rules("mlp.norm", "mlp/inner_norm"),
    *dense_rules("mlp.fc2", "mlp/output"),
    Rule("ls2.gamma", "mlp_scale/gamma"),
)
_POOLING = (
    Rule("latent", "probe"),
    Rule("q.weight", "attention/query/kernel", "heads"),
    Rule("q.bias", "attention/query/bias", "heads"),
    *_packed("kv", "attention", "key_value", ("key", "value")),
    *merged_rules("proj", "attention"),
    *norm_rules("norm", "norm"),
    *dense_rules("mlp.fc1", "mlp/hidden"),
    *dense_rules("mlp.fc2", "mlp/output"),
)
_ALL_FREQUENCIES = "rotary/frequencies"  # The frequencies of all blocks, which are one array in a file.
_FREQUENCIES = "encoder_block_{i}/attention/rotary/frequencies"

NAMES = Names(
    (
        Rule("cls_token", "class_token/token"),
        Rule("dist_token", "distillation_token/token"),
        Rule("reg_token", "register_tokens/tokens"),
        Rule("pos_embed", "position_embedding/embedding", "table"),
        Rule("rope.freqs", _ALL_FREQUENCIES, "blocks_second"),
        _convolution("patch_embed.backbone.stem.conv", "stem_conv"),
        *norm_rules("patch_embed.backbone.stem.norm", "stem_norm"),
        *_units(),
        _convolution("patch_embed.proj", "patch_embedding"),
        Rule("patch_embed.proj.bias", "patch_embedding/bias"),
        *norm_rules("norm_pre", "pre_norm"),
        *block_rules("blocks.{i}.", _BLOCK),
        *norm_rules("norm", "encoder_norm"),
        *block_rules("attn_pool.", _POOLING, "pooling"),
        *norm_rules("fc_norm", "pooled_norm"),
        *dense_rules("head", "predictions"),
        *dense_rules("head_dist", "distillation_predictions"),
    ),
    # Only masked pre-training uses the decoder and the token that replaces masked patches.
    ignored=(r"mask_token", r"decoder_.*", r".*\.bias_mask"),
)


def decode(file, config):
    """Converts a file's {name: array} to {canonical path: array} for a `ViTConfig`.

    Raises:
        ValueError: Same as in `Names.decode`.
    """
    weights = join_gates(NAMES.decode(file, config.num_heads, config.pooling_num_heads))
    if (all_frequencies := weights.pop(_ALL_FREQUENCIES, None)) is not None:
        if len(all_frequencies) != config.num_layers:
            raise ValueError(
                f"rope.freqs has frequencies for {len(all_frequencies)} blocks, but the model has {config.num_layers}."
            )
        weights |= {_FREQUENCIES.format(i=i): frequencies for i, frequencies in enumerate(all_frequencies)}
    return weights


def encode(weights, config, separate_gates=False):
    """Converts {canonical path: array} to {name in the file: array}.

    Args:
        weights: {canonical path: array}
        config: `ViTConfig`
        separate_gates: Whether gates and values of SwiGLU are separate arrays.

    Raises:
        ValueError: Same as in `Names.encode`.
    """
    weights = split_gates(weights) if separate_gates else dict(weights)
    paths = [_FREQUENCIES.format(i=i) for i in range(config.num_layers)]
    if paths[0] in weights:
        weights[_ALL_FREQUENCIES] = np.stack([weights.pop(path) for path in paths])
    return NAMES.encode(weights, config.num_heads)
