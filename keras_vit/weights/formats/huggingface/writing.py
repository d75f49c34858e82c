"""Writes transformers' layout: ViT, DeiT, I-JEPA, DINOv2, DINOv3, SigLIP, CLIP."""

import numpy as np

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.formats.expressible import check_expressible
from keras_vit.weights.formats.huggingface.config import write_class_names, write_processor
from keras_vit.weights.formats.huggingface.names import GELUS, KINDS
from keras_vit.weights.formats.names import split_gates
from keras_vit.weights.formats.settings import write_problem

# {kind of model: (model_type, class of the encoder, class of the encoder with a classifier or `None`)}
_ARCHITECTURES = {
    "vit": ("vit", "ViTModel", "ViTForImageClassification"),
    "deit": ("deit", "DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "ijepa": ("ijepa", "IJepaModel", "IJepaForImageClassification"),
    "dinov2": ("dinov2", "Dinov2Model", None),
    "dinov2_with_registers": ("dinov2_with_registers", "Dinov2WithRegistersModel", None),
    "dinov3": ("dinov3_vit", "DINOv3ViTModel", None),
    "siglip": ("siglip_vision_model", "SiglipVisionModel", None),
    "clip": ("clip_vision_model", "CLIPVisionModel", None),
}


def write(weights, description):
    """`Format.write`: the files of a folder for transformers' `from_pretrained`."""
    config = description.config
    kind = _kind_of_config(config)
    _check_expressible(config, description, kind)
    model_type, encoder, classifier = _ARCHITECTURES[kind]
    return {
        "model.safetensors": _arrays(weights, description, kind),
        "config.json": {
            "architectures": [encoder if description.classes is None else classifier],
            "model_type": model_type,
            **_settings(config, description, kind),
        },
        "preprocessor_config.json": write_processor(description),
    }


def _kind_of_config(config):
    """Key of `_ARCHITECTURES`."""
    if config.pre_norm:
        return "clip"
    if config.pooling == "map":
        return "siglip"
    if config.rotary is not None:
        return "dinov3"
    if config.layer_scale is not None:
        return "dinov2_with_registers" if config.num_register_tokens else "dinov2"
    if not config.has_class_token:
        return "ijepa"
    return "deit" if config.distillation_token else "vit"


def _arrays(weights, description, kind):
    config, table = description.config, kind.removesuffix("_with_registers")
    if config.mlp == "swiglu":
        table += "_swiglu"
    if table == "dinov3_swiglu":
        weights = split_gates(weights)
    names = KINDS[table].names.encode(weights, config.num_heads)
    # transformers expects these arrays. Only masked pre-training uses the first one, and the second one is empty.
    if kind.startswith("dinov2"):
        names["embeddings.mask_token"] = np.zeros((1, config.hidden_dim), "float32")
    if kind == "dinov3":
        names["embeddings.mask_token"] = np.zeros((1, 1, config.hidden_dim), "float32")
        if not config.num_register_tokens:
            names["embeddings.register_tokens"] = np.zeros((1, 0, config.hidden_dim), "float32")
    if kind == "clip":
        return {f"vision_model.{name}": array for name, array in names.items()}
    if description.classes is None:
        return names
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
    return {name if name.startswith(heads) else f"{kind}.{name}": array for name, array in names.items()}


def _settings(config, description, kind):
    height, width = description.image_size
    activations = {mlp: activation for activation, mlp in GELUS.items()}
    settings = {
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": activations.get(config.mlp, "silu" if kind == "dinov3" else "gelu"),
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": description.channels,
        **_settings_of_kind(config, kind),
    }
    if description.classes is not None:
        settings |= write_class_names(description)
    return settings | write_problem(description.output)


def _settings_of_kind(config, kind):
    """Settings of a kind of model that differ from those of other kinds."""
    has_biases, is_gated = config.qkv_bias == "all", config.mlp == "swiglu"
    if kind in ("siglip", "clip"):
        return {"intermediate_size": config.mlp_dim}
    if kind == "dinov3":
        return {
            "intermediate_size": config.mlp_dim,
            "use_gated_mlp": is_gated,
            "layerscale_value": config.layer_scale,
            "num_register_tokens": config.num_register_tokens,
            "rope_theta": config.rotary.base,
            "query_bias": config.qkv_bias != "none",
            "key_bias": has_biases,
            "value_bias": config.qkv_bias != "none",
        }
    if kind.startswith("dinov2"):
        return {
            "mlp_ratio": _mlp_ratio(config) if is_gated else config.mlp_dim // config.hidden_dim,
            "use_swiglu_ffn": is_gated,
            "layerscale_value": config.layer_scale,
            "qkv_bias": has_biases,
            **({"num_register_tokens": config.num_register_tokens} if config.num_register_tokens else {}),
        }
    return {"intermediate_size": config.mlp_dim, "qkv_bias": has_biases}


def _mlp_ratio(config):
    """`mlp_ratio` of a model with SwiGLU in transformers, or `None` if no ratio gives the width of its MLP.

    The width is 2/3 of `hidden_dim * mlp_ratio`, rounded up to a multiple of 8.
    """
    for ratio in range(1, 17):
        if (int(config.hidden_dim * ratio * 2 / 3) + 7) // 8 * 8 == config.mlp_dim:
            return ratio
    return None


def _check_expressible(config, description, kind):
    is_square = len(set(description.image_size)) == 1
    ratio = _mlp_ratio(config) if config.mlp == "swiglu" else config.mlp_dim % config.hidden_dim == 0
    has_table = config.position_embedding != "none"
    other_rotary = config.rotary is not None and config.rotary != RotaryConfig(base=config.rotary.base)
    conflicts = [
        ("a model without a class token", kind not in ("siglip", "ijepa") and not config.has_class_token),
        ("a class token beside attention pooling", kind == "siglip" and config.has_class_token),
        ("positions of the patches only", has_table and config.position_prefix_rows != config.num_class_tokens),
        ("rotary positions that differ from DINOv3's", other_rotary),
        ("rotary positions without layer scale", kind == "dinov3" and config.layer_scale is None),
        ("a pre_logits layer with a classifier", config.representation_dim and description.classes is not None),
        ("this width of the MLP", kind.startswith("dinov2") and not ratio),
        ("this classifier", description.classes is not None and _ARCHITECTURES[kind][2] is None),
        ("images that are not square in this kind of model", kind in _SQUARE and not is_square),
    ]
    check_expressible("transformers 5", config, [kind, kind.removesuffix("_with_registers"), "huggingface"], conflicts)


_SQUARE = ("dinov2", "dinov2_with_registers", "siglip", "clip")
"""Kinds of models whose images are always square."""
