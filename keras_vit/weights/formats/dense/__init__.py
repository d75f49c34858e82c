"""Reads a file of an encoder with a head for pixels, with the formats of encoders. Shapes: D hidden size, C classes."""

import dataclasses
import re

from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.names import Names, read_rules
from keras_vit.weights.formats.settings import read_toml

_RENAMES = read_toml("dense/names.toml")
# The coarsest map has no second input, although some files have weights for it. The others are buffers.
_IGNORED = (
    *(r"neck\.fusion_stage\.layers\.0\.residual_layer1\..*", r"attn_mask_probs", r"criterion\..*"),
    r".*num_batches_tracked",
)
NAMES = {
    section: Names(read_rules("dense/names.txt", section), _IGNORED) for section in ("dpt", "eomt", "yolos", "owl")
}
"""{section of `names.txt`: `Names`}"""


def part_of(file, prefix="", beginnings=("",), section=None):
    """The arrays of a part of a model, as a `Renamed`.

    Args:
        file: Mapping of arrays.
        prefix: Beginning of the names, which is removed.
        beginnings: Possible beginnings of the rest of the names.
        section: Section of `names.toml`, whose replacements are made. `None`: no replacements.
    """
    names = {}
    for old in file:
        new = old.removeprefix(prefix)
        if old.startswith(prefix) and new.startswith(beginnings):
            for pattern, replacement in _RENAMES[section].items() if section else ():
                new = re.sub(pattern, replacement, new)
            names[new] = old
    return Renamed(file, names)


def with_head(encoder, config, head, section, **facts):
    """The `Checkpoint` of an encoder with a head.

    Args:
        encoder: `Checkpoint` of the encoder.
        config: Architecture of the whole model.
        head: Mapping of the arrays of the head.
        section: Key of `NAMES`.
        **facts: Other fields of the `Checkpoint`, such as `classes`.
    """

    def read():
        return encoder.read() | NAMES[section].decode(head, config.num_heads)

    facts = {"classes": None, "label_space": None, "unsupported_head": None, **facts}
    return dataclasses.replace(encoder, config=config, read=read, **facts)


def dpt_head(shapes, taps, **arguments):
    """`DenseConfig.head` of a DPT head.

    Args:
        shapes: {name of `names.txt`: shape}
        taps: Indices of the blocks, counted from 0.
        **arguments: Other arguments of `keras_vit.heads.DPTHead`.
    """
    widths = [shapes[f"neck.reassemble_stage.layers.{i}.projection.weight"][0] for i in range(4)]
    features = shapes["neck.convs.0.weight"][0]
    return {"name": "dpt", "taps": tuple(taps), "features": features, "widths": widths, **arguments}


def taps_of(num_layers):
    """The four blocks that heads of DINOv2 and Depth Anything read, if the files do not show them."""
    return TAPS.get(num_layers, tuple((i + 1) * num_layers // 4 - 1 for i in range(4)))


TAPS = {24: (4, 11, 17, 23)}
"""{number of blocks: blocks that are read}, where these are not evenly spaced"""
