"""Reads the text encoders in files of image-text models: of transformers, OpenCLIP, Perception Encoder and big_vision.

The formats of the same files read the image encoders.
"""

import math
import re

import numpy as np

from keras_vit.architectures.text import TextConfig
from keras_vit.weights.checkpoint import TextCheckpoint
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.describing import count_blocks
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import check_settings, check_supported, read_toml

_GELUS = {"gelu": "gelu_exact", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}
_SUPPORTED = read_toml("text/settings.toml")
_TWO_TOWERS = read_rules("huggingface/names.txt", "two_towers")
_TABLES = {
    "huggingface": Names(read_rules("text/names.txt", "huggingface") + _TWO_TOWERS, [r".*position_ids"]),
    "open_clip": Names(read_rules("text/names.txt", "open_clip") + read_rules("open_clip_names.txt"), ["attn_mask"]),
    "big_vision": Names(read_rules("text/names.txt", "big_vision") + read_rules("google_names.txt")),
}
# {name of a layout: (prefix of the text encoder, name of its table of tokens without the prefix)}
_HEAD_WIDTH = 64  # Of the text encoders of OpenCLIP and Perception Encoder whose settings do not say it.
_LAST_TOKEN = 2  # In old files of CLIP, `eos_token_id` is 2, and the largest id ends a text.


def read_huggingface(file, hints):
    """The `TextCheckpoint` of a file of CLIP, SigLIP or TIPSv2 in transformers' layout, or `None` without one."""
    json = hints.settings["config.json"]
    settings = json.get("text_config") or {}
    if "text_encoder.token_embedding.weight" in file:
        return _tipsv2(file, json, settings)
    if "text_model.embeddings.token_embedding.weight" not in file:
        return None
    check_supported("text_config of config.json", settings, _SUPPORTED["huggingface"])
    file = _part(file, "text_model.", ("text_projection.weight", "logit_scale", "logit_bias"))
    is_siglip = "head.weight" in file
    sizes = _sizes(file, "huggingface", settings.get("num_attention_heads", 12 if is_siglip else 8))
    check_settings(settings, hidden_size=sizes["hidden_dim"], num_hidden_layers=sizes["num_layers"])
    facts = {
        "mlp": _gelu(settings.get("hidden_act", "gelu_pytorch_tanh" if is_siglip else "quick_gelu")),
        "layer_norm_epsilon": settings.get("layer_norm_eps", 1e-6 if is_siglip else 1e-5),
    }
    if is_siglip:
        facts |= {"attention": "all", "pooling": "last", "padding_id": settings.get("pad_token_id", 1)}
    elif (end_id := settings.get("eos_token_id", _LAST_TOKEN)) != _LAST_TOKEN:
        facts |= {"pooling": "end", "end_id": end_id}
    return _checkpoint(file, "huggingface", sizes | facts)


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
    "huggingface": (r"encoder\.layers\.(\d+)\.", "encoder.layers.0.mlp.fc1.bias"),
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
    is_transposed = layout == "huggingface" or "text_projection.weight" in file
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
