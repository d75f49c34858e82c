"""Reads and writes the text encoders of image-text models: of transformers, OpenCLIP, PE-Core and big_vision.

The formats of the same files read and write the image encoders.
"""

import dataclasses
import math
import re

import numpy as np

from keras_vit.architectures.text import TextConfig
from keras_vit.weights.checkpoint import TextCheckpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import count_blocks
from keras_vit.weights.formats.expressible import check_expressible, refuse
from keras_vit.weights.formats.huggingface import writing
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import check_settings, check_supported, read_toml

_GELUS = {"gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}
_SUPPORTED = read_toml("text/settings.toml")
_TWO_TOWERS = read_rules("huggingface/names.txt", "two_towers")
_TABLES = {
    **{
        kind: Names(read_rules("text/names.txt", "huggingface", kind) + _TWO_TOWERS, [r".*position_ids"])
        for kind in ("clip", "siglip")
    },
    "open_clip": Names(read_rules("text/names.txt", "open_clip") + read_rules("open_clip_names.txt"), ["attn_mask"]),
    "big_vision": Names(read_rules("text/names.txt", "big_vision") + read_rules("google_names.txt")),
}
# {name of a layout: (prefix of the text encoder, name of its table of tokens without the prefix)}
_HEAD_WIDTH = 64  # Of the text encoders of OpenCLIP and Perception Encoder whose settings do not say it.
_LAST_TOKEN = 2  # In old files of CLIP, `eos_token_id` is 2, and the largest id ends a text.


def read_huggingface(file, hints):
    """The `TextCheckpoint` of a file of transformers (CLIP, OWL-ViT, SigLIP, TIPSv2), or `None` without texts."""
    json = hints.settings["config.json"]
    settings = json.get("text_config") or {}
    if "text_encoder.token_embedding.weight" in file:
        return _tipsv2(file, json, settings)
    owl = next((prefix for prefix in ("owlvit.", "owlv2.") if f"{prefix}logit_scale" in file), "")
    if owl:
        file = _part(file, owl)
    if "text_model.embeddings.token_embedding.weight" not in file:
        return None
    check_supported("text_config of config.json", settings, _SUPPORTED["huggingface"])
    file = _part(file, "text_model.", ("text_projection.weight", "logit_scale", "logit_bias"))
    is_siglip = "head.weight" in file
    layout = "siglip" if is_siglip else "clip"
    sizes = _sizes(file, layout, settings.get("num_attention_heads", 12 if is_siglip else 8))
    check_settings(settings, hidden_size=sizes["hidden_dim"], num_hidden_layers=sizes["num_layers"])
    facts = {
        "mlp": _gelu(settings.get("hidden_act", "gelu_pytorch_tanh" if is_siglip else "quick_gelu")),
        "layer_norm_epsilon": settings.get("layer_norm_eps", 1e-6 if is_siglip else 1e-5),
    }
    if is_siglip:
        facts |= {"attention": "all", "pooling": "last", "padding_id": settings.get("pad_token_id", 1)}
    elif not owl and (end_id := settings.get("eos_token_id", _LAST_TOKEN)) != _LAST_TOKEN:
        facts |= {"pooling": "end", "end_id": end_id}
    return _checkpoint(file, layout, sizes | facts)


def _tipsv2(file, json, settings):
    check_supported("text_config of config.json", settings, _SUPPORTED["tipsv2"])
    temperature = json.get("temperature_init_value")
    named, part = file, _part(file, "text_encoder.")
    sizes = _sizes(part, "open_clip", settings.get("num_attention_heads"), settings.get("max_position_embeddings", 64))
    facts = {"mlp": "relu", "layer_norm_epsilon": settings.get("layer_norm_eps", 1e-5), "attention": "valid"}
    facts |= {"position_embedding": "sincos", "pooling": "mean", "padding_id": settings.get("pad_token_id", 0)}

    def similarity():
        value = float(named["temperature"]) if "temperature" in named else temperature
        return {"similarity/log_scale": np.asarray(-math.log(value), "float32")}

    return _checkpoint(part, "open_clip", sizes | facts, "tipsv2", similarity)


def read_open_clip(file, hints):
    """The `TextCheckpoint` of a file of OpenCLIP or Perception Encoder, or `None` without one."""
    suffix = "token_embedding.weight"
    prefix = next((name.removesuffix(suffix) for name in file if name.endswith(suffix)), None)
    if prefix is None:
        return None
    root = prefix.removesuffix("text.")
    part = _part(file, prefix, (f"{root}logit_scale", f"{root}logit_bias"), root)
    names = ("positional_embedding", "text_projection", "ln_final", "token_embedding", "transformer", "logit")
    part = Renamed(part, {name: name for name in part if name.startswith(names)})
    settings = hints.settings["open_clip_config.json"]
    model = settings.get("model_cfg", settings)
    text = model.get("text_cfg") or {}
    check_supported("text_cfg of open_clip_config.json", text, _SUPPORTED["open_clip"], strict=True)
    width = part.shapes["token_embedding.weight"][1]
    sizes = _sizes(part, "open_clip", text.get("heads") or width // _HEAD_WIDTH)
    check_settings(text, width=sizes["hidden_dim"], layers=sizes["num_layers"])
    activation, norm = (text.get(name) or {} for name in ("act_kwargs", "norm_kwargs"))
    is_quick = model.get("quick_gelu", hints.family == "clip" and not model)
    facts = {
        "mlp": "gelu_tanh" if activation.get("approximate") == "tanh" else "quick_gelu" if is_quick else "gelu_exact",
        "layer_norm_epsilon": norm.get("eps", 1e-5),
        "attention": "all" if text.get("no_causal_mask") else "causal",
        "pooling": {"argmax": "largest", "last": "last", "eos": "end"}[text.get("pool_type", "argmax")],
        "padding_id": text.get("pad_id", 0),
    }
    if facts["pooling"] == "end":
        facts["end_id"] = text["eos_id"]
    return _checkpoint(part, "open_clip", sizes | facts)


def read_big_vision(file, hints):
    """The `TextCheckpoint` of a file of SigLIP in the layout of big_vision, or `None` without one."""
    prefix = next((each for each in ("params/", "") if f"{each}txt/Embed_0/embedding" in file), None)
    if prefix is None:
        return None
    names = {name.removeprefix(f"{prefix}txt/"): name for name in file if name.startswith(f"{prefix}txt/")}
    names = {name.replace("Encoder_0/", "Transformer/"): old for name, old in names.items()}
    names |= {name: f"{prefix}{name}" for name in "tb" if f"{prefix}{name}" in file}
    stacked = [name for name in names if name.startswith("Transformer/encoderblock/")]
    for name in stacked:
        old = names.pop(name)
        for i in range(file.shapes[old][0]):
            names[name.replace("encoderblock/", f"encoderblock_{i}/")] = old, i
    part = Renamed(file, names)
    heads = part.shapes["Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"][1]
    facts = {"mlp": "gelu_tanh", "layer_norm_epsilon": 1e-6, "attention": "all", "pooling": "last", "padding_id": 1}
    return _checkpoint(part, "big_vision", _sizes(part, "big_vision", heads) | facts)


def _part(file, prefix, others=(), root=""):
    """The arrays with a prefix, which is removed, and other arrays without `root`."""
    names = {name.removeprefix(prefix): name for name in file if name.startswith(prefix)}
    return Renamed(file, names | {name.removeprefix(root): name for name in others if name in file})


def _gelu(name):
    if name not in _GELUS:
        raise ValueError(f"The activation {name!r} is not available. Accepted: {', '.join(_GELUS)}")
    return _GELUS[name]


_BLOCKS = {
    **dict.fromkeys(("clip", "siglip"), (r"encoder\.layers\.(\d+)\.", "encoder.layers.0.mlp.fc1.bias")),
    "open_clip": (r"transformer\.resblocks\.(\d+)\.", "transformer.resblocks.0.mlp.c_fc.bias"),
    "big_vision": (r"Transformer/encoderblock_(\d+)/", "Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias"),
}
"""{layout: (pattern of the names of blocks, name of the hidden bias of an MLP)}"""


def _sizes(file, layout, num_heads, context_length=None):
    """The fields of `TextConfig` that the shapes define."""
    shapes = {}
    for name in file:
        if (match := _TABLES[layout].find(name)) is not None:
            shapes[match[1][0]] = file.shapes[name]
    pattern, bias = _BLOCKS[layout]
    vocabulary_size, hidden_dim = shapes["token_embedding/embedding"]
    if context_length is None:
        context_length = shapes["position_embedding/embedding"][-2]
    is_transposed = layout in ("clip", "siglip") or "text_projection.weight" in file
    projection = shapes.get("projection/kernel")
    return {
        "vocabulary_size": vocabulary_size,
        "context_length": context_length,
        "hidden_dim": hidden_dim,
        "num_layers": count_blocks(file, re.compile(pattern)),
        "num_heads": num_heads,
        "mlp_dim": file.shapes[bias][0],
        "projection_dim": projection and projection[0 if is_transposed else 1],
        "projection_bias": "projection/bias" in shapes,
    }


_MULTILINGUAL = 256_000
"""Size of Gemma's vocabulary, which SigLIP 2 uses"""


def _checkpoint(file, layout, fields, tokenizer=None, similarity=dict):
    config = TextConfig(**fields)
    is_siglip = any(name in file for name in ("logit_bias", "b"))
    if tokenizer is None:
        is_second = config.vocabulary_size == _MULTILINGUAL
        tokenizer = ("siglip2" if is_second else "siglip") if is_siglip else "clip"

    def read():
        return _TABLES[layout].decode(file, config.num_heads) | similarity()

    return TextCheckpoint(config, read, "sigmoid" if is_siglip else "softmax", tokenizer)


READERS = {"huggingface": read_huggingface, "open_clip": read_open_clip, "google": read_big_vision}
"""{format whose files can have a text encoder: function of a file and its `Hints`, which returns a `TextCheckpoint`}"""


def write_huggingface(weights, description):
    """The files of transformers' `CLIPModel` or `SiglipModel`. `weights` are those of the image encoder."""
    text, config = description.text, description.text.config
    files = writing.write(_without_projection(weights), dataclasses.replace(description, classes=None, output=None))
    arrays, vision = files["model.safetensors"], files["config.json"]
    kind = vision["model_type"].removesuffix("_vision_model")
    if kind not in ("clip", "siglip"):
        refuse("transformers 5", [f"an image encoder of the kind {vision['model_type']} beside a text encoder"])
    is_clip = kind == "clip"
    expected: dict[str, tuple] = {
        "attention": ("causal",) if is_clip else ("all",),
        "pooling": ("largest", "end") if is_clip else ("last",),
        "position_embedding": ("learned",),
        "mlp": tuple(_GELUS.values()),
        "projection_bias": (not is_clip,),
    }
    _refuse_others("transformers 5", description, weights, expected, "softmax" if is_clip else "sigmoid", is_clip)
    arrays = {name if name.startswith("vision_model.") else f"vision_model.{name}": x for name, x in arrays.items()}
    for name, array in _TABLES[kind].encode(text.weights, config.num_heads).items():
        is_root = name.startswith(("text_projection", "logit_"))
        arrays[name if is_root else f"text_model.{name}"] = array.reshape(1) if not (is_clip or array.ndim) else array
    settings = {
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": next(name for name, mlp in _GELUS.items() if mlp == config.mlp),
        "layer_norm_eps": config.layer_norm_epsilon,
        "vocab_size": config.vocabulary_size,
        "max_position_embeddings": config.context_length,
        "pad_token_id": config.padding_id,
    }
    if is_clip:
        arrays["visual_projection.weight"] = weights["predictions/kernel"].T
        settings["eos_token_id"] = _LAST_TOKEN if config.end_id is None else config.end_id
    else:
        settings["projection_size"] = config.projection_dim
    vision_config = {name: value for name, value in vision.items() if name != "architectures"}
    files["model.safetensors"] = arrays
    files["config.json"] = {
        "architectures": ["CLIPModel" if is_clip else "SiglipModel"],
        "model_type": kind,
        **({"projection_dim": config.projection_dim} if is_clip else {}),
        "text_config": {**settings, "model_type": f"{kind}_text_model"},
        "vision_config": vision_config,
    }
    return files


def write_open_clip(weights, description):
    """The files of a `CLIP` of OpenCLIP. `weights` are those of the image encoder."""
    text, config, image = description.text, description.text.config, description.config
    expected: dict[str, tuple] = {"attention": ("causal",), "pooling": ("largest",), "position_embedding": ("learned",)}
    expected |= {"mlp": (image.mlp,), "layer_norm_epsilon": (1e-5,), "projection_bias": (False,)}
    conflicts = [
        ("an activation other than 'quick_gelu' and 'gelu_exact'", image.mlp not in ("quick_gelu", "gelu_exact")),
        ("images that are not square", len(set(description.image_size)) > 1),
        ("an epsilon other than 1e-5", image.layer_norm_epsilon != 1e-5),
        ("an image encoder without CLIP's first LayerNorm", not image.pre_norm),
        ("positions of the patches only", image.position_prefix_rows != 1),
    ]
    check_expressible("OpenCLIP", image, ["clip", "huggingface"], conflicts)
    _refuse_others("OpenCLIP", description, weights, expected, "softmax", True)
    names = _TABLES["open_clip"]
    image_weights = {path: array for path, array in weights.items() if path != "predictions/bias"}
    visual = _VISUAL.encode(image_weights, image.num_heads)
    arrays = {f"visual.{name}": array for name, array in visual.items()} | names.encode(text.weights, config.num_heads)
    vision_cfg, text_cfg = (
        {"layers": each.num_layers, "width": each.hidden_dim, "mlp_ratio": each.mlp_dim / each.hidden_dim}
        for each in (image, config)
    )
    vision_cfg |= {"image_size": description.image_size[0], "patch_size": image.patch_size, "head_width": image.key_dim}
    text_cfg |= {"context_length": config.context_length, "vocab_size": config.vocabulary_size}
    model = {"embed_dim": config.projection_dim, "quick_gelu": image.mlp == "quick_gelu", "vision_cfg": vision_cfg}
    _, crop = description.resize_and_crop
    pixels = {name: description.by_channel(name) for name in ("mean", "std")}
    pixels |= {"interpolation": description.preprocessing["interpolation"]}
    pixels |= {"resize_mode": "squash" if crop is None else "shortest"}
    settings = {"model_cfg": {**model, "text_cfg": {**text_cfg, "heads": config.num_heads}}, "preprocess_cfg": pixels}
    return {"open_clip_model.safetensors": arrays, "open_clip_config.json": settings}


_VISUAL = Names(read_rules("open_clip_names.txt"))
WRITERS = {"huggingface": write_huggingface, "open_clip": write_open_clip}
"""{format: function of the image encoder's weights and a `ModelDescription` with text, as `Format.write`}"""


def _without_projection(weights):
    return {path: array for path, array in weights.items() if not path.startswith("predictions/")}


def _refuse_others(owner, description, weights, expected, activation, has_projection):
    """Raises a ValueError that lists what a format cannot express of a text encoder and of the pair."""
    text = description.text
    problems = [
        f"{name}={getattr(text.config, name)!r} of the text encoder (accepted: {', '.join(map(repr, accepted))})"
        for name, accepted in expected.items()
        if getattr(text.config, name) not in accepted
    ]
    problems += [f"activation={text.activation!r}"] * (text.activation != activation)
    problems += ["a text encoder without a projection"] * (text.config.projection_dim is None)
    if ("predictions/kernel" in weights) != has_projection:
        problems.append(f"an image encoder {'without' if has_projection else 'with'} a projection")
    if "predictions/bias" in weights and weights["predictions/bias"].any():
        problems.append("a bias of the projection of images")
    refuse(owner, problems)
