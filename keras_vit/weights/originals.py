"""Reads the `.pth` files that the owners of models published. Their arrays have names similar to timm's.

These are files of DeiT, DINO, DINOv2, DINOv3, EVA, I-JEPA, MAE and MoCo v3. The files do not say how a model rotates
queries and keys, or how many heads it has. Both follow from the family of the file.
"""

import dataclasses
import re

import numpy as np

from keras_vit.weights.catalogue import FAMILIES
from keras_vit.weights.renamed import Renamed
from keras_vit.weights.timm_architectures import arguments_of

_PATCHES = "patch_embed.proj.weight"
# Prefixes of the names of the model's arrays. If a file contains several models, the one whose prefix matches
# `_AVERAGE` is read. Its weights are a moving average.
_PREFIX = re.compile(
    r"((model_ema|model|module|state_dict|teacher|target_encoder)/|(module|backbone|base_encoder|visual)\.)*"
)
_AVERAGE = re.compile(r"model_ema/|teacher/|target_encoder/")
# (pattern of a part of a name, replacement)
_NAMES = (
    (r"^(register|storage)_tokens$", "reg_token"),
    (r"^patch_embed\.backbone\.(conv|norm)\.", r"patch_embed.backbone.stem.\1."),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.attn\.inner_attn_ln\.", ".attn.norm."),
    (r"\.mlp\.ffn_ln\.", ".mlp.norm."),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)
# Arrays that are computed from the image size, and heads that are used only in pre-training.
_LEFT_OUT = re.compile(r"rope_embed\.periods|(.*\.)?rope\.freqs_(cos|sin)|local_cls_norm\..*|lm_head\..*")
_HEAD = re.compile(r"head\.(?!(weight|bias)$)")  # Projection heads of DINO and MoCo v3.

# (pattern of a name, family). The family of the first pattern that matches a name of a file is suggested.
_LIKELY = (
    (r"^storage_tokens$", "dinov3"),
    (r"(^|\.)base_encoder\.", "mocov3"),
    (r"^target_encoder/", "ijepa"),
    (r"^visual\.blocks\.", "eva_clip"),
    (r"\.mlp\.w1\.", "eva02"),
    (r"\.attn\.q_bias$", "eva"),
    (r"(^|/)decoder_|fc_norm", "mae"),
    (r"^register_tokens$", "dinov2_registers"),
    (r"^mask_token$", "dinov2"),
    (r"^teacher/|backbone\.", "dino"),
    (r"\.gamma_1$", "deit3"),
    (r"dist_token", "deit"),
)
_DINOV3, _EVA = ("dinov3", "dinov3_sat"), ("eva", "eva02", "eva_clip")
# (pattern of a name that occurs only in files of some families, these families, whether all of their files have it)
_MARKS = (
    (r"(^|\.)storage_tokens$", _DINOV3, True),
    (r"\.attn\.q_bias$", _EVA, True),
    (r"(^|\.)base_encoder\.", ("mocov3",), False),
)


def check_family(file, family):
    """Raises ValueError if no family was given, or if the names in the file belong to another family."""
    if family is None:
        raise ValueError(
            f"The file has timm's layout, but no config.json beside it contains an architecture. The arrays do not "
            f"show the kind of positions, the activation, the LayerNorm epsilon and the pixel normalisation. Pass "
            f"family=... to keras_vit.from_pretrained or load_weights. The names in the file suggest "
            f"family={_likely_family(file)!r}. Accepted: {', '.join(FAMILIES)}."
        )
    for pattern, families, is_in_all in _MARKS:
        found = next((name for name in file if re.search(pattern, name)), None)
        if found and family not in families:
            accepted = " or ".join(f"family={name!r}" for name in families)
            raise ValueError(f"The file contains {found}, so it is of another family. Pass {accepted}, not {family!r}.")
        if is_in_all and not found and family in families:
            raise ValueError(
                f"The file is not of the family {family!r}, because none of its names matches {pattern!r}. The names "
                f"suggest family={_likely_family(file)!r}."
            )


def _likely_family(file):
    return next((family for mark, family in _LIKELY if any(re.search(mark, name) for name in file)), "timm")


def renamed(file, family):
    """The arrays of the model under timm's names, as a `Renamed`.

    Raises:
        ValueError: If all models in the file have unknown prefixes.
    """
    prefix = _prefix_of(file)
    is_masked = family in _EVA and f"{prefix}mask_token" in file
    names = {}
    for old in file:
        new = old.removeprefix(prefix)
        if not old.startswith(prefix) or "/" in new or _HEAD.match(new) or _LEFT_OUT.fullmatch(new):
            continue
        for pattern, replacement in _NAMES:
            new = re.sub(pattern, replacement, new)
        # EVA's pre-training applies this norm to the patch tokens. As in timm, it is applied to their mean here.
        names[f"fc_{new}" if is_masked and new.startswith("norm.") else new] = old
    return Renamed(file, names)


def _prefix_of(file):
    prefixes = [name.removesuffix(_PATCHES) for name in file if name.endswith(_PATCHES)]
    if not prefixes:
        raise ValueError("Models with patches as inputs (NaFlex) are not supported. Use weights for a fixed size.")
    known = [prefix for prefix in prefixes if _PREFIX.fullmatch(prefix)]
    if not known:
        raise ValueError(f"The names of the arrays begin with {' or '.join(map(repr, prefixes))}, which is not known.")
    return min(known, key=lambda prefix: not _AVERAGE.search(prefix))


def with_settings(hints, shapes):
    """`Hints` whose config contains what timm's config.json would say about a file of `hints.family`.

    Args:
        hints: `Hints` whose config names no architecture.
        shapes: {timm's name: shape}
    """
    width = shapes[_PATCHES][0]
    arguments = {"num_heads": FAMILIES[hints.family].num_heads.get(width)}
    if architecture := _architecture(hints.family, shapes):
        arguments |= arguments_of({"architecture": architecture})
    if hints.family in _DINOV3:
        arguments["qkv_bias"] = "blocks.0.attn.qkv.bias" in shapes
    arguments |= hints.config.get("model_args", {})
    return dataclasses.replace(hints, config={**hints.config, "model_args": arguments})


def _architecture(family, shapes):
    """Name of an architecture of timm with the same settings, or `None` for a plain Vision Transformer."""
    if family in _DINOV3:
        return "vit_small_patch16_dinov3_qkvb"
    if family not in _EVA:
        return None
    if shapes["blocks.0.mlp.fc2.weight"][1] != shapes.get("blocks.0.mlp.fc1.weight", (None,))[0]:
        return "eva02_base_patch14_224"  # All models of EVA-02 with SwiGLU have rotary positions.
    return "eva02_enormous_patch14_clip_224" if shapes[_PATCHES][0] == 1792 else "eva_giant_patch14_224"


def without_masked_biases(weights, file):
    """Removes the biases of keys that DINOv3 multiplies by a mask of zeros. Returns `weights`."""
    for name in [name for name in file if name.endswith(".qkv.bias_mask")]:
        query, key, value = np.split(file[name], 3)
        if key.any() or not (query == 1).all() or not (value == 1).all():
            raise ValueError(f"{name} must be 1 for queries and values, and 0 for keys.")
        del weights[f"encoder_block_{name.split('.')[1]}/attention/key/bias"]
    return weights
