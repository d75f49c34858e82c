"""Reads and writes transformers' models with an output for each pixel: EoMT, Depth Anything and TIPSv2-DPT."""

import dataclasses

from keras_vit.architectures.dense import DepthEstimatorConfig, NormalEstimatorConfig, SegmenterConfig
from keras_vit.checks import shown
from keras_vit.outputs import Output
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.dense import dpt_head, part_of, with_head
from keras_vit.weights.formats.huggingface import encoder
from keras_vit.weights.formats.huggingface.config import read_class_names
from keras_vit.weights.formats.huggingface.names import GELUS
from keras_vit.weights.formats.settings import check_supported, read_toml

_TABLE = read_toml("huggingface/settings.toml")
_ENCODER = ("embeddings.", "layers.", "layernorm.", "norm.")
_TASKS = {"class_map": "segmentation_head.", "depth": "depth_head.", "normals": "normals_head."}
"""{kind of output: prefix of its head in TIPSv2-DPT}"""
# Settings of image processors that are used. The others describe how images of other sizes are split or padded.
_PIXELS = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor", "resample")


def kind_of(file):
    """`"eomt"`, `"depth_anything"` or `"tipsv2_dpt"`, or `None` for a file of another kind."""
    marks = {
        "eomt": ("query.weight", "class_predictor.weight", "mask_head.fc1.weight"),
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
    read = {"eomt": _describe_eomt, "depth_anything": _describe_depth_anything, "tipsv2_dpt": _describe_tipsv2}
    processor = hints.settings["preprocessor_config.json"]
    pixels = {name: value for name, value in processor.items() if name in _PIXELS}
    settings = hints.settings | {"preprocessor_config.json": pixels, "processor_config.json": {}}
    return read[kind](file, dataclasses.replace(hints, settings=settings), json)


def _describe_eomt(file, hints, json):
    own = _TABLE["eomt"]["any_value"]
    is_dinov3 = "embeddings.patch_embeddings.weight" in file
    settings = {name: value for name, value in json.items() if name not in (*own, "id2label", "label2id")}
    settings |= {"model_type": "dinov3_vit" if is_dinov3 else "dinov2_with_registers"}
    settings.setdefault("layer_norm_eps", 1e-6)
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
    return with_head(base, config, head, "eomt", classes=classes, label_space=names, output=output, ignored=ignored)


def _describe_depth_anything(file, hints, json):
    ignored = check_supported("config.json", json, _TABLE["dpt"])
    backbone = _backbone(json)
    base = encoder.describe(part_of(file, "backbone."), hints, backbone)
    head = part_of(file, "", ("neck.", "head."))
    is_metric = json.get("depth_estimation_type") == "metric"
    fields = {"activation": "sigmoid", "max_depth": float(json["max_depth"])} if is_metric else {"activation": "relu"}
    config = DepthEstimatorConfig.of_encoder(
        base.config,
        head=dpt_head(head.shapes, _taps(backbone), output="image"),
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
    size = backbone["image_size"]
    base_hints = dataclasses.replace(
        hints,
        family="tipsv2",
        num_heads=backbone["num_attention_heads"],
        image_size=hints.image_size or (size, size),
        changes=hints.changes | {"position_interpolation": "bilinear_antialias"},
    )
    base = timm.describe(part_of(file, "vision_encoder."), base_hints, {})
    head = part_of(file, _TASKS[output], section="tipsv2")
    arguments = dpt_head(
        head.shapes,
        _taps(backbone),
        readout=GELUS[json.get("readout_activation", "gelu_pytorch_tanh")],
        output="relu" if output == "depth" else "linear",
    )
    kinds = {"class_map": SegmenterConfig, "depth": DepthEstimatorConfig, "normals": NormalEstimatorConfig}
    facts, fields = {"output": Output(output), "ignored": {**base.ignored, **ignored}}, {}
    num_outputs = head.shapes["head.linear.weight"][0]
    if output == "depth":
        fields = {name: float(json[name]) for name in ("min_depth", "max_depth")}
        fields |= {"num_bins": num_outputs, "activation": "relu", "offset": 0.001}
    elif output == "class_map":
        facts["classes"] = num_outputs
        facts["label_space"], unusable = read_class_names(json, num_outputs)
        facts["ignored"] |= unusable
    config = kinds[output].of_encoder(base.config, head=arguments, **fields)
    return with_head(base, config, head, "dpt", **facts)


def _backbone(json):
    backbone = json.get("backbone_config")
    if not isinstance(backbone, dict):
        raise ValueError(f"config.json must have a backbone_config. Received: {shown(backbone)}")
    return backbone


def _taps(backbone):
    """Indices of the blocks, counted from 0. transformers counts them from 1, or from the end."""
    count = backbone["num_hidden_layers"]
    indices = backbone.get("out_indices") or [int(name.removeprefix("stage")) for name in backbone["out_features"]]
    return [index - 1 if index > 0 else count + index for index in indices]
