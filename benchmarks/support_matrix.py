"""Checks which of timm's Vision Transformers can be read, and that their outputs are right.

Each architecture is built without the values of its weights. keras_vit reads the config.json and the header that timm
would write for the architecture. Settings that the arrays do not show, such as the rotary positions, are compared with
those of timm's model. Architectures that differ only in their sizes have the same structure. For each structure that
can be read, timm writes one model with two blocks and random weights, and `keras_vit.from_pretrained` reads it. The
logits of both models are compared. If they differ, the command exits with 1.
Command: make support-matrix
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import re
import struct
import sys
import tempfile

import numpy as np
import timm
import torch
from timm.layers import RotaryEmbeddingDinoV3, RotaryEmbeddingMixed
from timm.models._hub import save_config_for_hf

import keras_vit
from benchmarks.support_page import TIMM, write_part
from keras_vit.weights.formats.timm.architectures import check_architecture
from keras_vit.weights.opening import open_checkpoint

MODULES = ("vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam")
MODULES += ("deit", "eva", "beit", "naflexvit")
TOLERANCE, HYBRID_TOLERANCE = 1e-5, 5e-5
"""Relative to the largest logit. timm standardises a hybrid's kernels with another epsilon than this package."""
_FLAGS = ("global_pool", "has_class_token", "no_embed_class", "pool_include_prefix", "num_classes", "num_reg_tokens")


def architectures():
    """Names of timm's Vision Transformers, except those for the tests of timm."""
    names = (name for module in MODULES for name in timm.list_models(module=module))
    return sorted(name for name in names if not name.startswith("test_"))


def refusal(name):
    """The reason why an architecture cannot be read, from its name alone if possible. `None` if it can be read."""
    with torch.device("meta"):
        model = timm.create_model(name)
    with tempfile.TemporaryDirectory() as folder:
        write_header(model, pathlib.Path(folder))
        try:
            config = open_checkpoint(folder).config
        except ValueError as error:
            return _refusal_by_name(name) or str(error).replace(f"{folder}: ", "")
    check_settings(name, config, model)
    return None


def check_settings(name, config, model):
    """Raises ValueError if a setting that the arrays do not show was read with a value other than that of timm's model.

    Args:
        name: Name of the architecture.
        config: `ViTConfig` that was read.
        model: timm's model.
    """
    is_map = config.pooling == "map"
    found = {
        "attention heads": config.num_heads,
        "heads of the pooling": (config.pooling_num_heads or config.num_heads) if is_map else None,
        "LayerNorm epsilons": {config.layer_norm_epsilon},
        "rotary positions": config.rotary,
    }
    expected = {
        "attention heads": model.blocks[0].attn.num_heads,
        "heads of the pooling": model.attn_pool.num_heads if is_map else None,
        "LayerNorm epsilons": {part.eps for part in model.modules() if isinstance(part, torch.nn.LayerNorm)},
        "rotary positions": rotary_of(model),
    }
    for setting, value in expected.items():
        if found[setting] != value:
            raise ValueError(f"{name} was read with these {setting}: {found[setting]}. timm has {value}.")


def rotary_of(model):
    """The `keras_vit.RotaryConfig` of timm's model, or `None` if it has no rotary positions."""
    rope = getattr(model, "rope", None)
    if rope is None:
        return None
    return keras_vit.RotaryConfig(
        kind="mixed" if isinstance(rope, RotaryEmbeddingMixed) else "axial",
        base=rope.temperature,
        layout="half" if model.blocks[0].attn.rotate_half else "interleaved",
        coordinates="normalized" if isinstance(rope, RotaryEmbeddingDinoV3) else "grid",
        reference_grid=getattr(rope, "ref_feat_shape", None),
        offset=getattr(rope, "grid_offset", 0.0),
        axis_order="xy" if rope.grid_indexing == "xy" else "yx",
    )


def _refusal_by_name(name):
    try:
        check_architecture({"architecture": name})
    except ValueError as error:
        return str(error)
    return None


def write_header(model, folder):
    """Writes timm's config.json and weight file of a model without values. The file is sparse after its header."""
    save_config_for_hf(model, str(folder / "config.json"))
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        start, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def structure(name):
    """A text that is the same for architectures that differ only in their sizes."""
    with torch.device("meta"):
        model = timm.create_model(name, depth=1)
    flags = [getattr(model, flag, None) for flag in _FLAGS]
    shown = [bool(value) if isinstance(value, int) else value for value in flags]
    text = re.sub(r"(?<![\w.-])\d+(?![\w.-])", "n", repr((model, shown)))
    rotary = rotary_of(model)
    is_scaled = rotary is not None and rotary.reference_grid is not None
    settings = rotary and dataclasses.replace(rotary, reference_grid=None)
    return repr((text, list(model.state_dict()), settings, is_scaled))


def difference(name):
    """The largest difference of the logits (or features) of timm and this package, divided by the largest logit."""
    torch.manual_seed(0)
    model = timm.create_model(name, depth=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # Some parameters are all zeros or ones.
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.02))
    with tempfile.TemporaryDirectory() as folder:
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        ours = keras_vit.from_pretrained(folder, classifier_activation=None)
    images = np.random.default_rng(0).normal(size=(1, *ours.input_shape[1:])).astype("float32")
    with torch.no_grad():
        expected = model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    return float(np.abs(np.asarray(ours(images)) - expected).max() / np.abs(expected).max())


def is_hybrid(name):
    return bool(re.search(r"_r\d*_s\d+", name))


def smallest(names):
    """The architecture with the least computation."""

    def cost(name):
        size = timm.get_pretrained_cfg(name).input_size[-1]
        with torch.device("meta"):
            width = timm.create_model(name, depth=1).num_features
        return size**2 * width**2, name

    return min(names, key=cost)


def compare(readable):
    """Returns [(architectures of one structure, the compared architecture, its difference)]."""
    groups = collections.defaultdict(list)
    for name in readable:
        groups[structure(name)].append(name)
    rows = []
    for names in groups.values():
        name = smallest(names)
        rows.append((names, name, difference(name)))
        print(f"{rows[-1][2]:.1e}  {name}  ({len(names)} architectures)", flush=True)
    return sorted(rows)


def markdown(rows, refusals):
    count = sum(len(names) for names, _, _ in rows) + len(refusals)
    by_reason = collections.defaultdict(list)
    for name, reason in refusals.items():
        kind = re.fullmatch(r"timm's \S+ has (.*), which this package does not (?:compute|support)\.", reason)
        by_reason[kind[1] if kind else reason.partition(".")[0]].append(name)
    lines = [
        "# Models of timm and transformers\n",
        f"`make support-matrix` writes this page. This part was written with timm {timm.__version__}. The command "
        f"reads the `config.json` and the header of the weight file of {count} architectures. It compares the settings "
        f"that the arrays do not show, such as the rotary positions, with those of timm's model. A row of the first "
        f"table lists architectures that differ only in their sizes. For each row, the command builds the model in the "
        f'column "compared", with two blocks and random weights, and compares its logits with those of timm. The '
        f'column "difference" contains the largest difference, divided by the largest logit. An architecture in the '
        f"second table cannot be loaded: the error names the unsupported feature.\n",
        "## Supported\n",
        "| architectures | compared | difference |\n|---|---|--:|",
        *(f"| {', '.join(names)} | {name} | {error:.0e} |" for names, name, error in rows),
        "\n## Unsupported\n",
        "| unsupported feature | architectures |\n|---|---|",
        *(f"| {reason} | {', '.join(names)} |" for reason, names in sorted(by_reason.items())),
    ]
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.support_matrix", description=__doc__.split("\n")[0])
    parser.add_argument("--document", action="store_true", help="write the part of docs/support.md")
    options = parser.parse_args(arguments)
    refusals = {name: refusal(name) for name in architectures()}
    rows = compare([name for name, reason in refusals.items() if reason is None])
    text = markdown(rows, {name: reason for name, reason in refusals.items() if reason})
    if options.document:
        write_part(TIMM, text)
    wrong = [name for _, name, error in rows if not error <= (HYBRID_TOLERANCE if is_hybrid(name) else TOLERANCE)]
    refused = sum(reason is not None for reason in refusals.values())
    print(f"{len(refusals) - refused} architectures can be loaded, {refused} are refused.")
    print(f"{len(rows)} structures compared. Loaded with wrong outputs: {', '.join(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
