"""Reads and writes transformers' models with an output for each pixel: EoMT, Depth Anything and TIPSv2-DPT."""

import dataclasses
import functools
import re
import typing

import numpy as np

from keras_vit.architectures.dense import DenseConfig, DepthEstimatorConfig, NormalEstimatorConfig, SegmenterConfig
from keras_vit.checks import shown
from keras_vit.outputs import Output
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.dense import NAMES, dpt_head, part_of, with_head
from keras_vit.weights.formats.expressible import refuse
from keras_vit.weights.formats.huggingface import detection, encoder, writing
from keras_vit.weights.formats.huggingface.config import encoder_settings, read_class_names, write_class_names
from keras_vit.weights.formats.huggingface.names import GELUS
from keras_vit.weights.formats.settings import check_supported, pair, read_toml

_TABLE = read_toml("huggingface/settings.toml")
_ENCODER = ("embeddings.", "layers.", "layernorm.", "norm.")
_SMALL = 0.05
"""Mean size of the scales of LayerNorms. Scales are about 1, and differences between them are much smaller."""
_TASKS = {"class_map": "segmentation_head.", "depth": "depth_head.", "normals": "normals_head."}
"""{kind of output: prefix of its head in TIPSv2-DPT}"""
_KINDS: dict[str, type[DenseConfig]] = {
    "class_map": SegmenterConfig,
    "depth": DepthEstimatorConfig,
    "normals": NormalEstimatorConfig,
}
# Settings of image processors that are used. The others describe how images of other sizes are split or padded.
_PIXELS = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor", "resample")


def kind_of(file):
    """`"eomt"`, `"depth_anything"`, `"yolos"`, `"owl"` or `"tipsv2_dpt"`, or `None` for a file of another kind."""
    marks = {
        "eomt": ("query.weight", "class_predictor.weight", "mask_head.fc1.weight"),
        "owl": ("class_head.dense0.weight", "box_head.dense0.weight"),
        "yolos": ("vit.embeddings.detection_tokens",),
        "depth_anything": ("neck.convs.0.weight", "head.conv3.weight", "backbone.embeddings.cls_token"),
    }
    if any(f"{head}reassemble.resize_layers.0.weight" in file for head in _TASKS.values()):
        return "tipsv2_dpt"
    return next((kind for kind, names in marks.items() if all(name in file for name in names)), None)


def describe(file, hints):
    """The `Checkpoint` of a file whose `kind_of` is known."""
    json = hints.settings["config.json"]
    kind = kind_of(file)
    if not json:
        raise ValueError(
            "The arrays do not show which blocks the head reads. Put the config.json of the model into the folder of "
            "the file."
        )
    read = {
        "eomt": _describe_eomt,
        "depth_anything": _describe_depth_anything,
        "owl": detection.describe_owl,
        "yolos": detection.describe,
        "tipsv2_dpt": _describe_tipsv2,
    }
    processor = hints.settings["preprocessor_config.json"]
    pixels = {name: value for name, value in processor.items() if name in _PIXELS}
    settings = hints.settings | {"preprocessor_config.json": pixels, "processor_config.json": {}}
    return read[kind](file, dataclasses.replace(hints, settings=settings), json)


def _describe_eomt(file, hints, json):
    is_dinov3 = "embeddings.patch_embeddings.weight" in file
    settings = encoder_settings(json, "eomt", "dinov3_vit" if is_dinov3 else "dinov2_with_registers", 1e-6)
    part = part_of(file, "", _ENCODER, "eomt_dinov3" if is_dinov3 else "eomt")
    base = encoder.describe(part, hints, settings, prefix_choices=(0,))
    head = part_of(file, "", ("query.", "mask_head.", "upscale_block.", "class_predictor."))
    shapes = head.shapes
    classes = shapes["class_predictor.weight"][0] - 1
    names, unusable = read_class_names(json, classes)
    arguments = {
        "name": "eomt",
        "num_queries": shapes["query.weight"][0],
        "num_blocks": json.get("num_blocks", 4),
        "num_upscales": sum(name.endswith("conv1.weight") for name in shapes),
    }
    config = SegmenterConfig.of_encoder(base.config, head=arguments)
    output, ignored = Output("masks"), {**base.ignored, **unusable}
    if is_dinov3:
        base = dataclasses.replace(base, read=functools.partial(_read_differences, base, hints.encoder))
    return with_head(base, config, head, "eomt", classes=classes, label_space=names, output=output, ignored=ignored)


def _read_differences(base, encoder):
    """The weights of a file that may contain differences from those of its encoder, {canonical path: array}."""
    weights = base.read()
    scale = np.mean([np.abs(array).mean() for path, array in weights.items() if path.endswith("norm/gamma")])
    if encoder is None and scale < _SMALL:
        raise ValueError(
            "The file contains differences from the weights of DINOv3, which have another licence. Pass encoder=, the "
            "weights of DINOv3, such as encoder='S/16@dinov3-lvd1689m'."
        )
    if encoder is not None and scale >= _SMALL:
        raise ValueError("The file contains complete weights of the encoder. Do not pass encoder=.")
    own = {} if encoder is None else encoder.read()
    if missing := [path for path in weights if encoder is not None and path not in own]:
        raise ValueError(f"encoder has no {missing[0]}. Pass the encoder from which the model was trained.")
    return {path: array + own[path] if path in own else array for path, array in weights.items()}


def _describe_depth_anything(file, hints, json):
    ignored = check_supported("config.json", json, _TABLE["dpt"])
    backbone = _backbone(json)
    base = encoder.describe(part_of(file, "backbone."), hints, backbone)
    head = part_of(file, "", ("neck.", "head."))
    is_metric = json.get("depth_estimation_type") == "metric"
    if not is_metric and json.get("max_depth") not in (None, 1):
        raise ValueError(f"Relative depth with max_depth={shown(json['max_depth'])} is not supported. Accepted: 1")
    fields = {"activation": "sigmoid", "max_depth": _metres(json, "max_depth")} if is_metric else {"activation": "relu"}
    config = DepthEstimatorConfig.of_encoder(
        base.config,
        head=dpt_head(head.shapes, _taps(backbone, base.config.num_layers), output="image"),
        output_dim=head.shapes["head.conv2.weight"][0],
        is_inverse=not is_metric,
        **fields,
    )
    return with_head(base, config, head, "dpt", output=Output("depth"), ignored={**base.ignored, **ignored})


def _describe_tipsv2(file, hints, json):
    ignored = check_supported("config.json", json, _TABLE["dpt"])
    backbone = _backbone(json)
    found = [kind for kind, prefix in _TASKS.items() if f"{prefix}project.weight" in file]
    output = hints.output or (found[0] if len(found) == 1 else None)
    if output not in found:
        raise ValueError(
            f"The file has several heads. Pass output=, one of {', '.join(map(repr, found))}, to "
            f"keras_vit.from_pretrained. Received: output={output!r}"
        )
    base = tipsv2_encoder(file, hints, backbone)
    head = part_of(file, _TASKS[output], section="tipsv2")
    arguments = dpt_head(
        head.shapes,
        _taps(backbone, base.config.num_layers),
        readout=GELUS[json.get("readout_activation", "gelu_pytorch_tanh")],
        output="relu" if output == "depth" else "linear",
    )
    facts: dict[str, typing.Any] = {"output": Output(output), "ignored": {**base.ignored, **ignored}}
    fields: dict[str, typing.Any] = {}
    num_outputs = head.shapes["head.linear.weight"][0]
    if output == "depth":
        fields = {name: _metres(json, name) for name in ("min_depth", "max_depth")}
        fields |= {"num_bins": num_outputs, "activation": "relu", "offset": 0.001}
    elif output == "class_map":
        facts["classes"] = num_outputs
        facts["label_space"], unusable = read_class_names(json, num_outputs)
        facts["ignored"] |= unusable
    config = _KINDS[output].of_encoder(base.config, head=arguments, **fields)
    return with_head(base, config, head, "dpt", **facts)


def tipsv2_encoder(file, hints, settings):
    """The `Checkpoint` of the image encoder in a file of TIPSv2, for its settings in config.json."""
    hints = dataclasses.replace(
        hints,
        family="tipsv2",
        num_heads=hints.num_heads or settings.get("num_attention_heads"),
        image_size=hints.image_size or pair(settings.get("image_size")),
        changes=hints.changes | {"position_interpolation": "bilinear_antialias"},
    )
    return timm.describe(part_of(file, "vision_encoder."), hints, {})


def _metres(json, name):
    if not isinstance(json.get(name), int | float):
        raise ValueError(f"config.json must have {name}, a depth in metres. Received: {shown(json.get(name))}")
    return float(json[name])


def _backbone(json):
    backbone = json.get("backbone_config")
    if not isinstance(backbone, dict):
        raise ValueError(f"config.json must have a backbone_config. Received: {shown(backbone)}")
    return backbone


def _taps(backbone, count):
    """Indices of the blocks, counted from 0, for a number of blocks. transformers counts from 1, or from the end.

    The number is that of the arrays: a published config.json does not contain settings that have their defaults.
    """
    indices = backbone.get("out_indices") or [int(name.removeprefix("stage")) for name in backbone["out_features"]]
    return [index - 1 if index > 0 else count + index for index in indices]


def write(weights, description):
    """`Format.write`: the files of a folder for EoMT or Depth Anything of transformers."""
    config = description.config
    is_depth = config.output == "depth"
    problems = _problems(config) if is_depth else {"an EoMT without layer scale": config.layer_scale is None}
    refuse("transformers 5", [problem for problem, is_present in problems.items() if is_present])
    head = {path: array for path, array in weights.items() if path.startswith(_HEAD) and "/encoder_" not in path}
    encoder_weights = {path.removeprefix("head/"): array for path, array in weights.items() if path not in head}
    table = encoder_weights.get("position_embedding/embedding")
    if table is not None and config.position_prefix_rows == 0:  # The encoder's own format has a row of the class token.
        encoder_weights["position_embedding/embedding"] = np.pad(table, ((config.num_class_tokens, 0), (0, 0)))
    encoder_config = config.encoder(num_position_prefix_rows=None)
    base = dataclasses.replace(description, config=encoder_config, classes=None, output=None)
    files = writing.write(encoder_weights, base)
    (_write_depth_anything if is_depth else _write_eomt)(files, head, description)
    return files


_HEAD = ("head", "predictions/", "sky_predictions/")
"""Beginnings of the paths of the head"""
_EOMT_NAMES: dict[str, typing.Any] = {
    r"^(?:encoder\.layer|layer)\.": "layers.",
    r"\.attention\.attention\.(query|key|value)\.": lambda match: f".attention.{match[1][0]}_proj.",
    r"\.attention\.output\.dense\.": ".attention.out_proj.",
    r"^embeddings\.position_embeddings$": "embeddings.position_embeddings.weight",
    r"^norm\.": "layernorm.",
}
"""{pattern of a part of an encoder's name: its replacement in EoMT}"""


def _problems(config):
    """{what transformers' Depth Anything cannot express: whether the model has it}"""
    head = config.head
    is_published = head["name"] == "dpt" and head.get("readout") is None and head.get("output") == "image"
    activation = config.activation == ("sigmoid" if config.max_depth else "relu")
    return {
        "a head other than DPTHead(output='image') with output_dim": not (is_published and config.output_dim),
        "use_norm=False": not head.get("use_norm", True),
        f"activation={config.activation!r} (accepted: 'relu', or 'sigmoid' with max_depth)": not activation,
        f"max_depth={config.max_depth} (accepted: integers)": (config.max_depth or 1) % 1 != 0,
        "is_inverse=False without max_depth": not (config.is_inverse or config.max_depth),
        "several bins, an offset or a sky": config.num_bins > 1 or config.offset != 0 or config.has_sky,
        "an upsampling or a focal length": config.upsampling > 1 or config.focal_length is not None,
    }


def _write_eomt(files, head, description):
    config, arrays, settings = description.config, files["model.safetensors"], files["config.json"]
    arrays.pop("embeddings.mask_token", None)
    is_dinov3 = config.rotary is not None
    if not is_dinov3:  # EoMT has no row of the class token. It is part of the token.
        table = arrays.pop("embeddings.position_embeddings")[0]
        arrays["embeddings.cls_token"] = arrays["embeddings.cls_token"] + table[:1]
        arrays["embeddings.position_embeddings"] = table[1:]
        arrays.setdefault("embeddings.register_tokens", np.zeros((1, 0, config.hidden_dim), "float32"))
    for name in list(arrays):
        new = name
        for pattern, replacement in _EOMT_NAMES.items():
            new = re.sub(pattern, replacement, new)
        arrays[new] = arrays.pop(name)
    arrays |= NAMES["eomt"].encode(head, config.num_heads)
    kind = "EomtDinov3" if is_dinov3 else "Eomt"
    settings |= {
        "architectures": [f"{kind}ForUniversalSegmentation"],
        "model_type": "eomt_dinov3" if is_dinov3 else "eomt",
        "num_register_tokens": config.num_register_tokens,
        "num_queries": config.head["num_queries"],
        "num_blocks": config.head["num_blocks"],
        "num_upscale_blocks": config.head["num_upscales"],
        **write_class_names(description),
    }
    size = dict(zip(("height", "width"), description.image_size, strict=True))
    files["preprocessor_config.json"] |= {"image_processor_type": "EomtImageProcessor", "size": size}
    # Inference does not mask the attention.
    arrays["attn_mask_probs"] = np.zeros(config.head["num_blocks"], "float32")
    arrays["criterion.empty_weight"] = np.r_[np.ones(description.classes), 0.1].astype("float32")


def _write_depth_anything(files, head, description):
    config = description.config
    arrays = {f"backbone.{name}": array for name, array in files["model.safetensors"].items()}
    arrays |= NAMES["dpt"].encode(head, config.num_heads)
    first, second = "neck.fusion_stage.layers.0.residual_layer1.", "neck.fusion_stage.layers.0.residual_layer2."
    for name in [name for name in arrays if name.startswith(second)]:  # transformers expects it, but does not use it.
        arrays[name.replace(second, first)] = np.zeros_like(arrays[name])
    backbone = files["config.json"]
    taps = [tap + 1 for tap in config.head["taps"]]
    backbone |= {"out_indices": taps, "out_features": [f"stage{tap}" for tap in taps], "reshape_hidden_states": False}
    files["model.safetensors"] = arrays
    files["config.json"] = {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": "depth_anything",
        "backbone_config": backbone,
        "patch_size": config.patch_size,
        "reassemble_hidden_size": config.hidden_dim,
        "reassemble_factors": [4, 2, 1, 0.5],
        "neck_hidden_sizes": list(config.head["widths"] or [config.hidden_dim // part for part in (8, 4, 2, 1)]),
        "fusion_hidden_size": config.head["features"],
        "head_hidden_size": config.output_dim,
        "depth_estimation_type": "metric" if config.max_depth else "relative",
        "max_depth": int(config.max_depth or 1),
    }
