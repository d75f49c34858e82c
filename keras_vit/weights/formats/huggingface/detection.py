"""Reads transformers' YOLOS, OWL-ViT and OWLv2, and writes YOLOS. Shapes: N patches, Q detection tokens, D hidden."""

import dataclasses
import functools

import numpy as np

from keras_vit.architectures.dense import DetectorConfig
from keras_vit.checks import check_choice
from keras_vit.outputs import Output
from keras_vit.weights.formats.dense import NAMES, part_of, with_head
from keras_vit.weights.formats.expressible import refuse
from keras_vit.weights.formats.huggingface import encoder, writing
from keras_vit.weights.formats.huggingface.config import encoder_settings, read_class_names, write_class_names
from keras_vit.weights.paths import DENSE_HEAD, HEAD

_TOKENS, _TABLES = "vit.embeddings.detection_tokens", "vit.encoder.mid_position_embeddings"
_OWL_DEFAULTS = {"image_size": 768, "num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
"""Settings of the image encoder that published files do not contain"""
_HEADS = ("class_labels_classifier.", "bbox_predictor.")


def describe(file, hints, json):
    """The `Checkpoint` of a file of YOLOS."""
    settings = encoder_settings(json, "yolos", "vit", 1e-12)
    num_tokens = file.shapes[_TOKENS][1]
    # The detection tokens are described as registers, whose rows in the table of positions are counted, too.
    part = part_of(file, "vit.", ("embeddings.", "encoder.layer.", "layernorm."), "yolos")
    hints = dataclasses.replace(hints, family=hints.family or "deit")  # Its encoder was that of DeiT.
    base = encoder.describe(part, hints, settings, prefix_choices=(1 + num_tokens,))
    head = part_of(file, "", _HEADS)
    classes = head.shapes["class_labels_classifier.layers.2.weight"][0] - 1
    names, unusable = read_class_names(json, classes)
    config = DetectorConfig.of_encoder(
        base.config,
        head={"name": "detection_tokens", "num_tokens": num_tokens, "taps": (base.config.num_layers - 1,)},
        num_register_tokens=0,
        position_interpolation="bicubic",
        position_placement="every_layer" if _TABLES in file else "stem",
    )
    base = dataclasses.replace(base, read=functools.partial(_read, base.read, file, config))
    facts = {"classes": classes, "label_space": names, "ignored": {**base.ignored, **unusable}}
    return with_head(base, config, head, "yolos", output=Output("boxes"), **facts)


def describe_owl(file, hints, json):
    """The `Checkpoint` of a file of OWL-ViT or OWLv2: its image encoder or, with the output `"boxes"`, its detector."""
    check_choice("output", hints.output, (None, "boxes"))
    prefix = "owlv2." if "objectness_head.dense0.weight" in file else "owlvit."
    settings = {**_OWL_DEFAULTS, **(json.get("vision_config") or {}), "model_type": "clip_vision_model"}
    part = part_of(file, prefix, ("vision_model.", "visual_projection."), "owl")
    base = encoder.describe(part, hints, settings)
    if hints.output is None:
        return base
    head = part_of(file, "", ("layer_norm.", "class_head.", "box_head.", "objectness_head."))
    arguments = {
        "name": "box",
        "taps": (base.config.num_layers - 1,),
        "embedding_dim": head.shapes["class_head.dense0.weight"][0],
        "use_objectness": "objectness_head.dense0.weight" in head,
    }
    config = DetectorConfig.of_encoder(base.config, head=arguments)

    def read():
        return {path: array for path, array in base.read().items() if not path.startswith("predictions/")}

    return with_head(dataclasses.replace(base, read=read), config, head, "owl", output=Output("boxes"))


def _table_paths(config):
    """Canonical paths of the position tables, in the order of the blocks."""
    if config.position_placement == "stem":
        return ["position_embedding/embedding"]
    return [f"position_embedding_{i}/embedding" for i in range(config.num_layers)]


def _read(read, file, config):
    """The weights of the encoder, {canonical path: array}. The table of each block becomes an array of its own."""
    weights, num_tokens = read(), config.num_detection_tokens
    weights["detection_tokens/tokens"] = weights.pop("register_tokens/tokens")
    tables = [weights.pop("position_embedding/embedding"), *(file[_TABLES][:, 0] if _TABLES in file else ())]
    tables = [_behind_class(table, num_tokens) for table in tables]
    return weights | dict(zip(_table_paths(config), tables, strict=True))


def _behind_class(table, num_tokens):
    """Moves the last rows of a table (1 + N + Q, D), those of the detection tokens, behind that of the class token."""
    return np.concatenate([table[:1], table[-num_tokens:], table[1:-num_tokens]])


def write(weights, description):
    """`Format.write`: the files of a folder for YOLOS of transformers."""
    config = description.config
    problems = {
        "a BoxHead": not config.has_detection_tokens,
        "position_placement='every_layer_shared'": config.position_placement == "every_layer_shared",
        f"position_embedding={config.position_embedding!r}": config.position_embedding != "learned_1d",
        "registers": config.num_register_tokens > 0,
        "an encoder without a class token": not config.has_class_token,
    }
    refuse("transformers 5", [problem for problem, is_present in problems.items() if is_present])
    head = {path: array for path, array in weights.items() if path.startswith((*DENSE_HEAD, *HEAD))}
    tokens = head.pop("detection_tokens/tokens")
    tables = _table_paths(config)
    rows = [_in_front_of_tokens(weights[path], config) for path in tables]
    encoder_weights = {path: array for path, array in weights.items() if path not in (*head, *tables)}
    del encoder_weights["detection_tokens/tokens"]
    encoder_config = config.encoder(num_position_prefix_rows=None, position_placement="stem")
    base = dataclasses.replace(description, config=encoder_config, classes=None, output=None)
    files = writing.write(encoder_weights | {"position_embedding/embedding": rows[0]}, base)
    if files["config.json"]["model_type"] != "vit":
        refuse("transformers 5", [f"YOLOS with an encoder of the kind {files['config.json']['model_type']}"])
    arrays = {f"vit.{name}": array for name, array in files["model.safetensors"].items()}
    arrays |= NAMES["yolos"].encode(head, config.num_heads) | {_TOKENS: tokens}
    if len(rows) > 1:
        arrays[_TABLES] = np.stack(rows[1:])[:, None]
    files["model.safetensors"] = arrays
    files["config.json"] |= {
        "architectures": ["YolosForObjectDetection"],
        "model_type": "yolos",
        "image_size": list(description.image_size),
        "num_detection_tokens": config.num_detection_tokens,
        "use_mid_position_embeddings": len(rows) > 1,
        **write_class_names(description),
    }
    files["preprocessor_config.json"] |= {"image_processor_type": "YolosImageProcessor", "do_pad": False}
    return files


def _in_front_of_tokens(table, config):
    """The inverse of `_behind_class`. Detection tokens without rows get rows of zeros."""
    count = config.num_class_tokens
    prefix, patches = table[: config.position_prefix_rows], table[config.position_prefix_rows :]
    own = (
        prefix[count:] if len(prefix) > count else np.zeros((config.num_detection_tokens, table.shape[1]), table.dtype)
    )
    return np.concatenate([prefix[:count], patches, own])
