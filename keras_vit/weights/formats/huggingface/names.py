"""The kinds of models in transformers' layout, and the names of their arrays.

Two sets of names are in these tables: those of published files, and those of a model's `state_dict` in transformers 5,
such as `layers.0.attention.q_proj`.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping

from keras_vit.weights.formats.names import Names, Rule, block_rules, dense_rules, head_rules, merged_rules, norm_rules

_PROJECTIONS = ("query", "key", "value")
_ATTENTION = tuple(head_rules([f"attention.attention.{x}" for x in _PROJECTIONS], "attention"))
_STATE_DICT_ATTENTION = (
    *head_rules([f"attention.{x}_proj" for x in "qkv"], "attention"),
    *merged_rules("attention.o_proj", "attention"),
)
_MLP = (*dense_rules("mlp.fc1", "mlp/hidden"), *dense_rules("mlp.fc2", "mlp/output"))
_NORMS = (*norm_rules("layernorm_before", "attention_norm"), *norm_rules("layernorm_after", "mlp_norm"))
_DINOV2_NORMS = (
    *norm_rules("norm1", "attention_norm"),
    *norm_rules("norm2", "mlp_norm"),
    Rule("layer_scale1.lambda1", "attention_scale/gamma"),
    Rule("layer_scale2.lambda1", "mlp_scale/gamma"),
)
# `join_gates` concatenates the gate and the value.
_GATED_MLP = (
    *dense_rules("mlp.gate_proj", "mlp/gate"),
    *dense_rules("mlp.up_proj", "mlp/value"),
    *dense_rules("mlp.down_proj", "mlp/output"),
)
_DINOV2_GATED_MLP = (
    *dense_rules("mlp.weights_in", "mlp/hidden"),
    *dense_rules("mlp.weights_out", "mlp/output"),
    *_GATED_MLP,  # Names in a `state_dict`.
)
_TOKENS = (
    Rule("embeddings.cls_token", "class_token/token"),
    Rule("embeddings.distillation_token", "distillation_token/token"),
    Rule("embeddings.register_tokens", "register_tokens/tokens"),
)
_EMBEDDINGS = (
    *_TOKENS,
    Rule("embeddings.position_embeddings", "position_embedding/embedding", "table"),
    Rule("embeddings.patch_embeddings.projection.weight", "patch_embedding/kernel", "convolution"),
    Rule("embeddings.patch_embeddings.projection.bias", "patch_embedding/bias"),
)
_TWO_TOWERS = (
    Rule("embeddings.class_embedding", "class_token/token", "token"),
    Rule("embeddings.patch_embedding.weight", "patch_embedding/kernel", "convolution"),
    Rule("embeddings.patch_embedding.bias", "patch_embedding/bias"),
    Rule("embeddings.position_embedding.weight", "position_embedding/embedding"),
    *norm_rules("pre_layrnorm", "pre_norm"),
    *block_rules("encoder.layers.{i}.", norm_rules("layer_norm1", "attention_norm")),
    *block_rules("encoder.layers.{i}.", head_rules([f"self_attn.{x}_proj" for x in "qkv"], "attention")),
    *block_rules("encoder.layers.{i}.", merged_rules("self_attn.out_proj", "attention")),
    *block_rules("encoder.layers.{i}.", norm_rules("layer_norm2", "mlp_norm")),
    *block_rules("encoder.layers.{i}.", _MLP),
    *norm_rules("post_layernorm", "encoder_norm"),
)
_POOLING = (
    Rule("probe", "probe"),
    Rule("attention.in_proj_weight", tuple(f"attention/{x}/kernel" for x in _PROJECTIONS), "query_key_value"),
    Rule("attention.in_proj_bias", tuple(f"attention/{x}/bias" for x in _PROJECTIONS), "query_key_value"),
    *merged_rules("attention.out_proj", "attention"),
    *norm_rules("layernorm", "norm"),
    *_MLP,
)
_VIT = (
    *_EMBEDDINGS,
    *block_rules("encoder.layer.{i}.", (*_NORMS, *_ATTENTION, *merged_rules("attention.output.dense", "attention"))),
    *block_rules("encoder.layer.{i}.", dense_rules("intermediate.dense", "mlp/hidden")),
    *block_rules("encoder.layer.{i}.", dense_rules("output.dense", "mlp/output")),
    *norm_rules("layernorm", "encoder_norm"),
    *dense_rules("pooler.dense", "pre_logits"),
    *block_rules("layers.{i}.", (*_NORMS, *_STATE_DICT_ATTENTION, *_MLP)),
)
_DINOV2 = (
    *_EMBEDDINGS,
    *block_rules("encoder.layer.{i}.", (*_ATTENTION, *merged_rules("attention.output.dense", "attention"))),
    *block_rules("encoder.layer.{i}.", _DINOV2_NORMS),
    *norm_rules("layernorm", "encoder_norm"),
    *block_rules("encoder.layer.{i}.", _STATE_DICT_ATTENTION),
)
_DINOV3 = (
    *_TOKENS,
    Rule("embeddings.patch_embeddings.weight", "patch_embedding/kernel", "convolution"),
    Rule("embeddings.patch_embeddings.bias", "patch_embedding/bias"),
    *block_rules("layer.{i}.", (*_DINOV2_NORMS, *_STATE_DICT_ATTENTION)),
    *norm_rules("norm", "encoder_norm"),
)
_DINOV3_MLP = (*dense_rules("mlp.up_proj", "mlp/hidden"), *dense_rules("mlp.down_proj", "mlp/output"))
_CLASSIFIER = dense_rules("classifier", "predictions")
_DEIT_HEADS = (
    *dense_rules("cls_classifier", "predictions"),
    *dense_rules("distillation_classifier", "distillation_predictions"),
)
_PROJECTION = Rule("visual_projection.weight", "predictions/kernel", "dense")

# Arrays that are not part of the image encoder: text encoders, decoders of masked pre-training, buffers.
_IGNORED = (r"text_model\..*", r"text_projection\..*", r"logit_.*", r".*position_ids", r"decoder\..*", r".*mask_token")


def _names(*rules, ignored=()):
    return Names((*rules, *_CLASSIFIER), (*_IGNORED, *ignored))


GELUS = {"gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
"""{`hidden_act` in transformers' config: `ViTConfig.mlp`}"""
_ACTIVATIONS = {**GELUS, "gelu_new": "gelu_tanh"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model in transformers' layout.

    Args:
        names: Names of its arrays.
        numerics: Key of `FAMILIES` that defines the GELU and the epsilon if the config does not contain them.
        family: Key of `FAMILIES` with the mean and std for files without a `preprocessor_config.json`.
            `None`: the files of this kind do not all have the same mean and std.
        fields: {field of `ViTConfig`: value in all models of this kind}
        activations: {`hidden_act` in the config: `ViTConfig.mlp`}. `None`: the MLP does not depend on the config.
        classifier: Description of the input of transformers' classifier, if this package does not support it. `None`:
            the classifier is supported.
    """

    names: Names
    numerics: str
    family: str | None
    fields: Mapping = dataclasses.field(default_factory=dict)
    activations: Mapping | None = dataclasses.field(default_factory=lambda: _ACTIVATIONS)
    classifier: str | None = None


_CLASS_TOKEN_AND_PATCHES = "the class token beside the mean of the patch tokens"
_SIGLIP = (*_TWO_TOWERS, *block_rules("head.", _POOLING, "pooling"))
_PATCHES_ONLY: dict[str, typing.Any] = {"class_token": False}
_SCALED: dict[str, typing.Any] = {"layer_scale": 1.0}
_ROTARY = _SCALED | {"position_embedding": "none"}

KINDS = {
    "vit": Kind(_names(*_VIT), numerics="huggingface_vit", family=None),
    "deit": Kind(
        _names(*_VIT, *_DEIT_HEADS, ignored=(r"pooler\..*",)),
        numerics="deit",
        family="deit",
        fields={"distillation_token": True},
        classifier="the class token and not the distillation token",
    ),
    "ijepa": Kind(
        _names(*_VIT, ignored=(r"pooler\..*",)),  # transformers' pooler reads the first patch.
        numerics="huggingface_vit",
        family="ijepa",
        fields=_PATCHES_ONLY | {"pooling": "avg"},
    ),
    "dinov2": Kind(
        _names(*_DINOV2, *block_rules("encoder.layer.{i}.", _MLP)),
        numerics="dinov2",
        family="dinov2",
        fields=_SCALED,
        classifier=_CLASS_TOKEN_AND_PATCHES,
    ),
    "dinov2_swiglu": Kind(
        _names(*_DINOV2, *block_rules("encoder.layer.{i}.", _DINOV2_GATED_MLP)),
        numerics="dinov2",
        family="dinov2",
        fields=_SCALED | {"mlp": "swiglu"},
        activations=None,
        classifier=_CLASS_TOKEN_AND_PATCHES,
    ),
    "dinov3": Kind(
        _names(*_DINOV3, *block_rules("layer.{i}.", _DINOV3_MLP)), numerics="dinov3", family=None, fields=_ROTARY
    ),
    "dinov3_swiglu": Kind(
        _names(*_DINOV3, *block_rules("layer.{i}.", _GATED_MLP)),
        numerics="dinov3",
        family=None,
        fields=_ROTARY | {"mlp": "swiglu"},
        activations={"silu": "swiglu"},
    ),
    "siglip": Kind(_names(*_SIGLIP), numerics="siglip", family="siglip", fields=_PATCHES_ONLY | {"pooling": "map"}),
    # SiglipForImageClassification averages the patches and ignores the pooling head of the encoder.
    "siglip_classifier": Kind(
        _names(*_TWO_TOWERS, ignored=(r"head\..*",)),
        numerics="siglip",
        family="siglip",
        fields=_PATCHES_ONLY | {"pooling": "avg"},
    ),
    # The config has vision_use_head=False.
    "siglip_tokens": Kind(
        _names(*_TWO_TOWERS), numerics="siglip", family="siglip", fields=_PATCHES_ONLY | {"pooling": None}
    ),
    "clip": Kind(
        _names(*_TWO_TOWERS, _PROJECTION),
        numerics="clip",
        family="clip",
        fields={"pre_norm": True},
        classifier="the mean of the patch tokens before the last LayerNorm",
    ),
}
"""{name of a kind: `Kind`}"""

_SCALE = "encoder.layer.0.layer_scale1.lambda1"
# (kind, names that occur together only in files of this kind). The first kind that matches a file is used.
_MARKS = (
    ("clip", ("embeddings.class_embedding",)),
    ("siglip_classifier", ("embeddings.patch_embedding.weight", "classifier.weight")),
    ("siglip", ("embeddings.patch_embedding.weight", "head.probe")),
    ("siglip_tokens", ("embeddings.patch_embedding.weight",)),
    ("dinov3_swiglu", ("embeddings.patch_embeddings.weight", "layer.0.mlp.gate_proj.weight")),
    ("dinov3", ("embeddings.patch_embeddings.weight",)),
    ("dinov2_swiglu", (_SCALE, "encoder.layer.0.mlp.weights_in.weight")),
    ("dinov2_swiglu", (_SCALE, "encoder.layer.0.mlp.gate_proj.weight")),
    ("dinov2", (_SCALE,)),
    ("deit", ("embeddings.distillation_token",)),
    ("vit", ("embeddings.cls_token",)),
    ("ijepa", ()),
)
_PREFIX = re.compile(r"^(vit|deit|ijepa|dinov2|dinov2_with_registers|vision_model|model)\.")


def without_prefix(name):
    """The name of an array without the prefix of the encoder in a larger model."""
    return _PREFIX.sub("", name)


def kind_of(names):
    """The key of `KINDS` for a file with these names, which have no prefix."""
    return next(kind for kind, marks in _MARKS if all(mark in names for mark in marks))
