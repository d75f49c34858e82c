"""Reads and writes transformers' layout, `.safetensors` with `config.json`: ViT, DeiT, MAE, DINOv2, SigLIP, CLIP.

Two sets of names are read: those of published files, and those of a model's `state_dict` in transformers 5, such as
`layers.0.attention.q_proj`.
"""

import re
import typing

import numpy as np

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights import huggingface_config
from keras_vit.weights.catalogue import FAMILIES, protocol
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.depth import count_blocks
from keras_vit.weights.expressible import ANY, check_expressible
from keras_vit.weights.gates import join_gates
from keras_vit.weights.hints import resolve_image_size, resolve_num_heads, resolve_positions
from keras_vit.weights.names import Names, Rule, block_rules, dense_rules, head_rules, merged_rules, norm_rules
from keras_vit.weights.renamed import Renamed
from keras_vit.weights.settings import check_settings, pair, patch_size_of

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
_SWIGLU = (
    *dense_rules("mlp.weights_in", "mlp/hidden"),
    *dense_rules("mlp.weights_out", "mlp/output"),
    *dense_rules("mlp.gate_proj", "mlp/gate"),  # Names in a `state_dict`, see gates.py.
    *dense_rules("mlp.up_proj", "mlp/value"),
    *dense_rules("mlp.down_proj", "mlp/output"),
)
_EMBEDDINGS = (
    Rule("embeddings.cls_token", "class_token/token"),
    Rule("embeddings.distillation_token", "distillation_token/token"),
    Rule("embeddings.register_tokens", "register_tokens/tokens"),
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
# Some of the classifiers below have an input that no classifier of this package supports. The paths of their weights
# describe this input. No model has weights with such paths, so loading these classifiers raises an error.
_DEIT_HEADS = (
    *dense_rules("classifier", "predictions/class_token_beside_distillation_token"),
    *dense_rules("cls_classifier", "predictions"),
    *dense_rules("distillation_classifier", "distillation_predictions"),
)
_DINOV2 = (
    *_EMBEDDINGS,
    *block_rules("encoder.layer.{i}.", (*_ATTENTION, *merged_rules("attention.output.dense", "attention"))),
    *block_rules("encoder.layer.{i}.", _DINOV2_NORMS),
    *norm_rules("layernorm", "encoder_norm"),
    *block_rules("encoder.layer.{i}.", _STATE_DICT_ATTENTION),
    *dense_rules("classifier", "predictions/class_token_beside_mean_of_patches"),
)
_CLASSIFIER = dense_rules("classifier", "predictions")
_CLIP_HEADS = (
    Rule("visual_projection.weight", "predictions/kernel", "dense"),
    *dense_rules("classifier", "predictions/mean_of_patches_without_norm"),
)

# Arrays that are not part of the image encoder: text encoders, decoders of masked pre-training, buffers.
_IGNORED = (r"text_model\..*", r"text_projection\..*", r"logit_.*", r".*position_ids", r"decoder\..*", r".*mask_token")

TABLES = {
    "vit": Names((*_VIT, *_CLASSIFIER), _IGNORED),
    "deit": Names((*_VIT, *_DEIT_HEADS), _IGNORED),
    "dinov2": Names((*_DINOV2, *block_rules("encoder.layer.{i}.", _MLP)), _IGNORED),
    "dinov2_swiglu": Names((*_DINOV2, *block_rules("encoder.layer.{i}.", _SWIGLU)), _IGNORED),
    # SiglipForImageClassification averages the patches and ignores the pooling head of the encoder.
    "siglip": Names((*_TWO_TOWERS, *block_rules("head.", _POOLING, "pooling")), _IGNORED),
    "siglip_classifier": Names((*_TWO_TOWERS, *_CLASSIFIER), (*_IGNORED, r"head\..*")),
    "clip": Names((*_TWO_TOWERS, *_CLIP_HEADS), _IGNORED),
}
"""{kind of model: table}"""

_BLOCK = re.compile(r"(?:encoder\.)?layers?\.(\d+)\.")
_PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
_GELUS = {"gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
_ACTIVATIONS = {**_GELUS, "gelu_new": "gelu_tanh"}

_POSITIONS = ("embeddings.position_embeddings", "embeddings.position_embedding.weight")
_PATCHES = ("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight")
_MLP_OUTPUTS = ("output.dense", "mlp.fc2", "mlp.weights_out", "mlp.down_proj")
_CLASSIFIERS = ("classifier.weight", "cls_classifier.weight", "visual_projection.weight")


def recognises(file):
    """Whether a file has transformers' names."""
    return any(re.search(r"embeddings\.patch_embeddings?\.(projection\.)?weight$", name) for name in file)


def describe(file, hints):
    """The `Checkpoint` of a file. Raises ValueError if a needed setting is in neither the file nor the hints."""
    settings = {**hints.config, **hints.config.get("vision_config", {})}
    huggingface_config.check_model_type(hints.config, settings)
    kind = _kind_of_file(file)
    file = Renamed(file, {_PREFIX.sub("", name): name for name in file})
    shapes = {name: shape for name, shape in file.shapes.items() if not TABLES[kind].ignores(name)}
    config = _config(kind, shapes, settings, hints)
    size = pair(settings.get("image_size"))
    num_rows = next(shapes[name][-2] for name in _POSITIONS if name in shapes)
    _, grid_size = resolve_positions(num_rows, [config.num_class_tokens], config.patch_shape, hints, size)
    size = resolve_image_size(grid_size, config.patch_shape, hints, size)
    family = hints.family or _family(kind)
    classes = next((shapes[name][0] for name in _CLASSIFIERS if name in shapes), None)
    pixels = huggingface_config.read_processor(hints.processor, size) or (protocol(family, size) if family else None)
    return Checkpoint(
        source=hints.source,
        format="huggingface",
        config=config,
        grid_size=grid_size,
        classes=classes,
        image_size=size,
        channels=next(shapes[name][1] for name in _PATCHES if name in shapes),
        pixels=pixels and {**pixels, "label_space": huggingface_config.read_class_names(hints.config, classes)},
        read=lambda: _read(file, kind, config),
        skipped=tuple(name for name in file if name not in shapes),
        has_activation=kind != "clip",
    )


def _kind_of_file(file):
    names = {_PREFIX.sub("", name) for name in file}
    if "embeddings.patch_embedding.weight" in names:
        siglip = "siglip_classifier" if "classifier.weight" in names else "siglip"
        return "clip" if "embeddings.class_embedding" in names else siglip
    if any(name.endswith("layer_scale1.lambda1") for name in names):
        is_gated = any(".mlp.weights_in." in name or ".mlp.gate_proj." in name for name in names)
        return "dinov2_swiglu" if is_gated else "dinov2"
    return "deit" if "embeddings.distillation_token" in names else "vit"


def _family(kind):
    """Key of `catalogue.FAMILIES`. `None` for ViT: several families with different means and stds are of this kind."""
    return None if kind == "vit" else kind.split("_")[0]


def _config(kind, shapes, settings, hints):
    num_layers = count_blocks(shapes, _BLOCK)
    block = next(match[0] for name in shapes if (match := _BLOCK.match(name)))
    patch = next(shapes[name] for name in _PATCHES if name in shapes)
    if len(patch) != 4:
        raise ValueError(
            "Models with patches as inputs (NaFlex) are not supported. Use weights for a fixed image size."
        )
    hidden_dim = patch[0]
    mlp_dim = next(shapes[name][1] for part in _MLP_OUTPUTS if (name := f"{block}{part}.weight") in shapes)
    facts = {"hidden_size": hidden_dim, "num_hidden_layers": num_layers, "patch_size": tuple(patch[2:])}
    check_settings(settings, **facts if "dinov2" in kind else {**facts, "intermediate_size": mlp_dim})
    numerics = FAMILIES[_family(kind) or "huggingface_vit"]
    return ViTConfig(
        patch_size=patch_size_of(patch[2:]),
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=resolve_num_heads(settings.get("num_attention_heads"), hidden_dim, num_layers, mlp_dim, hints),
        mlp_dim=mlp_dim,
        pooling=_pooling(kind, shapes),
        class_token="siglip" not in kind,
        distillation_token=kind == "deit",
        num_register_tokens=shapes.get("embeddings.register_tokens", (1, 0))[1],
        position_interpolation="bicubic_antialias" if "embeddings.register_tokens" in shapes else "bicubic",
        representation_dim=shapes.get("pooler.dense.bias", (None,))[0] if kind == "vit" else None,
        layer_scale=settings.get("layerscale_value", 1.0) if "dinov2" in kind else None,
        pre_norm=kind == "clip",
        mlp="swiglu" if kind == "dinov2_swiglu" else _activation(settings, numerics),
        layer_norm_epsilon=settings.get("layer_norm_eps", numerics.layer_norm_epsilon),
    )


def _pooling(kind, shapes):
    if kind == "siglip":
        return "map" if "head.probe" in shapes else None  # The config has vision_use_head=False.
    return "avg" if kind == "siglip_classifier" else "token"


def _activation(settings, numerics):
    activation = settings.get("hidden_act")
    if activation is not None and activation not in _ACTIVATIONS:
        raise ValueError(f"The activation {activation!r} is not available. Accepted: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS.get(activation, numerics.gelu)


def _read(file, kind, config):
    weights = join_gates(TABLES[kind].decode(file, config.num_heads))
    if kind == "clip" and "predictions/kernel" in weights:  # The projection has no bias.
        weights["predictions/bias"] = np.zeros(weights["predictions/kernel"].shape[1], "float32")
    return weights


# {kind of model: (model_type, class of the encoder, class of the encoder with a classifier or `None`)}
_ARCHITECTURES = {
    "vit": ("vit", "ViTModel", "ViTForImageClassification"),
    "deit": ("deit", "DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "dinov2": ("dinov2", "Dinov2Model", None),
    "dinov2_with_registers": ("dinov2_with_registers", "Dinov2WithRegistersModel", None),
    "siglip": ("siglip_vision_model", "SiglipVisionModel", None),
    "clip": ("clip_vision_model", "CLIPVisionModel", None),
}


def write(weights, facts):
    """Converts weights to the files of a folder for transformers' `from_pretrained`.

    `weights` is {canonical path: array}, and `facts` is the model's `Facts`. Returns {file name: contents}. The
    contents are {name: array} for the weights, and a dictionary for a JSON file. Raises ValueError if transformers
    cannot express the model. The message lists the reasons.
    """
    config = facts.config
    kind = _kind_of_config(config)
    _check_expressible(config, facts, kind)
    model_type, encoder, classifier = _ARCHITECTURES[kind]
    dinov2 = "dinov2_swiglu" if config.mlp == "swiglu" else "dinov2"
    names = TABLES[dinov2 if "dinov2" in kind else kind].encode(weights, config.num_heads)
    if "dinov2" in kind:  # transformers expects this array, but only masked pre-training uses it.
        names["embeddings.mask_token"] = np.zeros((1, config.hidden_dim), "float32")
    if kind == "clip":
        names = {f"vision_model.{name}": array for name, array in names.items()}
    elif facts.classes is not None:
        heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
        names = {name if name.startswith(heads) else f"{kind}.{name}": array for name, array in names.items()}
    return {
        "model.safetensors": names,
        "config.json": {
            "architectures": [encoder if facts.classes is None else classifier],
            "model_type": model_type,
            **_settings(config, facts, kind),
        },
        "preprocessor_config.json": huggingface_config.write_processor(facts),
    }


def _kind_of_config(config):
    if config.pre_norm:
        return "clip"
    if config.pooling == "map":
        return "siglip"
    if config.layer_scale is not None:
        return "dinov2_with_registers" if config.num_register_tokens else "dinov2"
    return "deit" if config.distillation_token else "vit"


def _settings(config, facts, kind):
    height, width = facts.image_size
    activations = {mlp: activation for activation, mlp in _GELUS.items()}
    settings = {
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": activations.get(config.mlp, "gelu"),
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": facts.channels,
    }
    if "dinov2" in kind:
        swiglu = config.mlp == "swiglu"
        settings["mlp_ratio"] = _mlp_ratio(config) if swiglu else config.mlp_dim // config.hidden_dim
        settings["use_swiglu_ffn"] = swiglu
        settings["layerscale_value"] = config.layer_scale
        if config.num_register_tokens:
            settings["num_register_tokens"] = config.num_register_tokens
    else:
        settings["intermediate_size"] = config.mlp_dim
    if facts.classes is not None:
        settings |= huggingface_config.write_class_names(facts)
    return settings


def _mlp_ratio(config):
    """`mlp_ratio` of a model with SwiGLU in transformers, or `None` if no ratio gives the width of its MLP.

    The width is 2/3 of `hidden_dim * mlp_ratio`, rounded up to a multiple of 8.
    """
    for ratio in range(1, 17):
        if (int(config.hidden_dim * ratio * 2 / 3) + 7) // 8 * 8 == config.mlp_dim:
            return ratio
    return None


_GELU_MLPS = tuple(_GELUS.values())
_DINOV2_FIELDS = {"layer_scale": ANY, "mlp": (*_GELU_MLPS, "swiglu")}
_EXPRESSIBLE: dict[str, dict[str, typing.Any]] = {
    "vit": {"representation_dim": ANY, "mlp": _GELU_MLPS},
    "deit": {"distillation_token": (True,), "mlp": _GELU_MLPS},
    "dinov2": _DINOV2_FIELDS,
    "dinov2_with_registers": {"num_register_tokens": ANY, **_DINOV2_FIELDS},
    "siglip": {"pooling": ("map",), "mlp": _GELU_MLPS},
    "clip": {"pre_norm": (True,), "mlp": _GELU_MLPS},
}


def _check_expressible(config, facts, kind):
    needs_square = kind not in ("vit", "deit")
    ratio = _mlp_ratio(config) if config.mlp == "swiglu" else config.mlp_dim % config.hidden_dim == 0
    accepted = {
        "pooling": ("token", None),
        "class_token": (None, False, True),
        "num_position_prefix_rows": ANY,
        "layer_norm_epsilon": ANY,
        "crop_to_patches": (False, True),
        **_EXPRESSIBLE[kind],
    }
    conflicts = [
        ("a model without a class token", kind != "siglip" and not config.has_class_token),
        ("a class token beside attention pooling", kind == "siglip" and config.has_class_token),
        ("positions of the patches only", config.position_prefix_rows != config.num_class_tokens),
        ("a pre_logits layer with a classifier", config.representation_dim and facts.classes is not None),
        ("this width of the MLP", "dinov2" in kind and not ratio),
        ("this classifier", facts.classes is not None and _ARCHITECTURES[kind][2] is None),
        ("images that are not square in this kind of model", needs_square and len(set(facts.image_size)) > 1),
    ]
    check_expressible("transformers 5", config, accepted, conflicts)
