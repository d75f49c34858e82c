"""Reads the owners' files of Depth Anything: `.pth` of versions 1 and 2, `.safetensors` of version 3 (mono, metric)."""

import dataclasses

from keras_vit.architectures.dense import DepthEstimatorConfig
from keras_vit.outputs import Output
from keras_vit.weights.formats import timm
from keras_vit.weights.formats.dense import dpt_head, part_of, taps_of, with_head
from keras_vit.weights.formats.format import Format

_PREFIXES = {"pretrained.": "depth_head.", "model.backbone.pretrained.": "model.head."}
"""{prefix of the encoder: prefix of the head}, of versions 1 and 2, and of version 3"""
_METRIC_FOCAL_LENGTH = 300.0  # The metric model of version 3 predicts metres for this focal length in pixels.


def _recognises(file):
    return any(f"{head}scratch.output_conv1.weight" in file for head in _PREFIXES.values())


def _describe(file, hints):
    prefix = next(prefix for prefix, head in _PREFIXES.items() if f"{head}scratch.output_conv1.weight" in file)
    base = timm.describe(part_of(file, prefix), dataclasses.replace(hints, family="dinov2"), {})
    head = part_of(file, _PREFIXES[prefix], section="depth_anything")
    taps = taps_of(base.config.num_layers)
    if "head.sky_conv2.weight" in head:
        fields = _fields_of_version_3(hints.settings["config.json"])
    elif hints.family not in ("depth_anything", "depth_anything_v2"):
        raise ValueError(
            "The arrays do not show which blocks the head reads. Pass family='depth_anything' or "
            f"family='depth_anything_v2', and for a metric model its max_depth. Received: family={hints.family!r}"
        )
    elif hints.max_depth is None:
        fields = {"activation": "relu", "is_inverse": True}
    else:
        fields = {"activation": "sigmoid", "max_depth": float(hints.max_depth)}
    if hints.family == "depth_anything":
        taps = range(base.config.num_layers - 4, base.config.num_layers)
    config = DepthEstimatorConfig.of_encoder(
        base.config,
        head=dpt_head(head.shapes, taps, output="image"),
        output_dim=head.shapes["head.conv2.weight"][0],
        **fields,
    )
    return with_head(base, config, head, "dpt", output=Output("depth"))


def _fields_of_version_3(json):
    """Fields of the config that the name of the model defines. The arrays of its two models have the same shapes."""
    focal_lengths = {"da3mono-large": None, "da3metric-large": _METRIC_FOCAL_LENGTH}
    if (name := json.get("model_name")) not in focal_lengths:
        raise ValueError(
            f"The arrays do not show whether the depth is in metres. The config.json beside the file must have "
            f"model_name={' or '.join(map(repr, focal_lengths))}. Received: {name!r}"
        )
    return {"activation": "exp", "has_sky": True, "focal_length": focal_lengths[name]}


FORMAT = Format(title="the owners' Depth Anything", recognises=_recognises, describe=_describe)
