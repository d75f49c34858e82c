"""Reads the heads of DINOv2 (arXiv 2304.07193) for segmentation and depth, whose files do not contain the encoder."""

import re
import typing

from keras_vit.architectures.dense import DepthEstimatorConfig, SegmenterConfig
from keras_vit.outputs import Output
from keras_vit.weights.formats.dense import dpt_head, part_of, taps_of, with_head
from keras_vit.weights.formats.format import Format

_PREFIX = re.compile(r"(state_dict/)?decode_head\.")
_MARKS = ("conv_seg.weight", "conv_depth.weight", "conv_depth.head.0.weight")
_MIN_DEPTH = 0.001  # In metres.


def _recognises(file):
    return any(_PREFIX.match(name) and name.endswith(_MARKS) for name in file)


def _describe(file, hints):
    encoder = hints.encoder
    if encoder is None:
        raise ValueError(
            "The file contains the head of DINOv2, but not the encoder. Pass encoder=, the weights of the encoder for "
            "which the head was trained, such as encoder='S/14@dinov2'."
        )
    prefix = next(match[0] for name in file if (match := _PREFIX.match(name)))
    head = part_of(file, prefix, section="dinov2")
    count, width, shapes = encoder.config.num_layers, encoder.config.hidden_dim, head.shapes
    if "batch_norm.weight" in head:
        num_taps, classes = shapes["batch_norm.weight"][0] // width, shapes["head.conv3.weight"][0]
        arguments: dict[str, typing.Any] = {"name": "linear", "taps": tuple(range(count - num_taps, count))}
        config = SegmenterConfig.of_encoder(encoder.config, head=arguments)
        return with_head(encoder, config, head, "dpt", classes=classes, output=Output("class_map"))
    if hints.max_depth is None:
        raise ValueError(
            "The arrays do not show the largest depth. Pass max_depth=10 for NYU, or max_depth=80 for KITTI."
        )
    fields = {"activation": "relu", "offset": 0.1, "min_depth": _MIN_DEPTH, "max_depth": float(hints.max_depth)}
    if "neck.convs.0.weight" in head:
        arguments = dpt_head(shapes, taps_of(count), use_norm=False, readout="gelu_exact", output="double")
        fields |= {"output_dim": shapes["head.conv2.weight"][0], "offset": _MIN_DEPTH}
    else:
        num_bins, channels = shapes["head.conv3.weight"][:2]
        taps = taps_of(count) if channels > 2 * width else (count - 1,)
        flags = {"use_norm": False, "use_class_token": True, "use_batch_norm": False}
        arguments = {"name": "linear", "taps": taps, **flags}
        fields |= {"num_bins": num_bins, "upsampling": 4}
    config = DepthEstimatorConfig.of_encoder(encoder.config, head=arguments, **fields)
    return with_head(encoder, config, head, "dpt", output=Output("depth"))


FORMAT = Format(title="the heads of DINOv2", recognises=_recognises, describe=_describe)
