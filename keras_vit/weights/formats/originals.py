"""Reads the `.pth` files that the owners of models published. Their arrays have names similar to timm's.

These are files of DeiT, DINO, DINOv2, DINOv3, EVA, I-JEPA, MAE and MoCo v3. The files do not show the activation, the
rotary positions and the number of heads. For the files of DINOv3 and EVA, all of them follow from the family and the
shapes. The activation follows from every family. `check_family` refuses timm's own files of models whose settings need
the `config.json` beside the file, such as those of Perception Encoder, RoPE-ViT, EVA-02 B and L, and DINOv3.
"""

import re

import numpy as np

from keras_vit.weights.catalogue.families import FAMILIES
from keras_vit.weights.containers.files import Renamed
from keras_vit.weights.formats.settings import read_toml
from keras_vit.weights.formats.timm.architectures import arguments_of

_TABLE = read_toml("originals.toml")
_PATCHES = "patch_embed.proj.weight"
# Prefixes of the names of the model's arrays. If a file contains several models, the one whose prefix matches
# `_AVERAGE` is read. Its weights are a moving average.
_PREFIX = re.compile(
    r"((model_ema|model|module|state_dict|teacher|target_encoder)/|(module|backbone|base_encoder|visual)\.)*"
)
_AVERAGE = re.compile(r"model_ema/|teacher/|target_encoder/")
# Arrays that are computed from the image size, and heads that are used only in pre-training.
_LEFT_OUT = re.compile(r"rope_embed\.periods|(.*\.)?rope\.freqs_(cos|sin)|local_cls_norm\..*|lm_head\..*")
_HEAD = re.compile(r"head\.(?!(weight|bias)$)")  # Projection heads of DINO and MoCo v3.

_DINOV3, _EVA = ("dinov3", "dinov3_sat"), ("eva", "eva02", "eva_clip")
# (part of a name that occurs only in files of some families, these families, whether all of their files have it)
_MARKS = (
    ("storage_tokens", _DINOV3, True),
    ("attn.q_bias", _EVA, True),
    ("attn.q_proj", _EVA, False),
    ("base_encoder", ("mocov3",), False),
    # timm's files of RoPE-ViT with position embeddings have the names and shapes of DeiT III.
    ("gamma_1", ("deit3", *_DINOV3, *_EVA), False),
)
# Combinations of names that only timm's files have. The rotary positions of these models, or the tokens that their
# attention pooling reads, differ between models with the same names and shapes.
_OF_TIMM = (
    ("mlp.fc1_g",),
    ("attn.q_proj.bias",),
    ("rope.freqs",),
    ("reg_token", "gamma_1"),
    *(("attn_pool.latent", name) for name in ("cls_token", "reg_token", "norm_pre")),
)
# Each file that can be read without a `config.json` has at least one name of each of these groups.
_NEEDED = (("pos_embed", "storage_tokens"), ("norm.weight", "fc_norm.weight"))
_ONLY_WITH_CONFIG = ("pe", "rope_vit", "intern")
"""Families whose files in timm's layout need a `config.json`."""


def check_family(file, family):
    """Checks the family of a file of weights if no `config.json` describes its architecture.

    Raises:
        ValueError: If no family was given, if the names in the file belong to another family, or if the settings of the
            model follow neither from the family nor from the arrays.
    """
    _check_readable_without_config(file, family)
    if family is None:
        raise ValueError(
            f"The file has timm's layout, but no config.json beside it contains an architecture. The arrays do not "
            f"show the kind of positions, the activation, the LayerNorm epsilon and the pixel normalisation. Pass "
            f"family=... to keras_vit.from_pretrained or load_weights. The names in the file suggest "
            f"family={_likely_family(file)!r}. If timm published the file, put its config.json beside it instead. "
            f"Accepted: {', '.join(FAMILIES)}."
        )
    for part, families, is_in_all in _MARKS:
        found = _find(file, part)
        if found and family not in families:
            accepted = " or ".join(f"family={name!r}" for name in families)
            raise ValueError(
                f"The file contains {found}, so it is of another family. Pass {accepted}, not {family!r}. If timm "
                f"published the file, put its config.json beside it instead."
            )
        if is_in_all and not found and family in families:
            raise ValueError(
                f"The file is not of the family {family!r}, because it does not contain {part}. The names suggest "
                f"family={_likely_family(file)!r}."
            )


def _check_readable_without_config(file, family):
    prefix = _prefix_of(file)
    own = [name.removeprefix(prefix) for name in file if name.startswith(prefix)]
    found = next((names for names in _OF_TIMM if all(_find(own, name) for name in names)), ())
    missing = next((names for names in _NEEDED if not set(names) & set(own)), ())
    if found:
        reason = f"it contains {' and '.join(_find(own, name) for name in found)}"
    elif missing:
        reason = f"it contains neither {' nor '.join(missing)}"
    elif family in _ONLY_WITH_CONFIG:
        reason = f"the family {family!r} does not define all settings of the model"
    else:
        return
    raise ValueError(
        f"The file has timm's layout, but no config.json beside it contains an architecture. This file cannot be read "
        f"without it, because {reason}. Put the config.json of the model into the folder of the file."
    )


def _find(names, part):
    """The first name that contains `part`, which consists of whole components, or `None`."""
    pattern = re.compile(rf"(^|[./]){re.escape(part)}($|[./])")
    return next(filter(pattern.search, names), None)


def _likely_family(file):
    likely = _TABLE["likely"].items()
    return next((family for pattern, family in likely if any(re.search(pattern, name) for name in file)), "timm")


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
        for pattern, replacement in _TABLE["names"].items():
            new = re.sub(pattern, replacement, new)
        # EVA's pre-training applies this norm to the patch tokens. As in timm, it is applied to their mean here.
        names[f"fc_{new}" if is_masked and new.startswith("norm.") else new] = old
    return Renamed(file, names)


def _prefix_of(file):
    prefixes = [name.removesuffix(_PATCHES) for name in file if name.endswith(_PATCHES)]
    if not prefixes:
        raise ValueError("A NaFlexViT is read only with the config.json of timm beside its weights.")
    known = [prefix for prefix in prefixes if _PREFIX.fullmatch(prefix)]
    if not known:
        raise ValueError(f"The names of the arrays begin with {' or '.join(map(repr, prefixes))}, which is not known.")
    return min(known, key=lambda prefix: not _AVERAGE.search(prefix))


def with_settings(settings, family, shapes):
    """What timm's config.json would say about a file of a family.

    Args:
        settings: Contents of a `config.json` that names no architecture, or `{}`.
        family: Key of `FAMILIES`.
        shapes: {timm's name: shape}
    """
    width = shapes[_PATCHES][0]
    facts = FAMILIES[family]
    arguments = {"num_heads": facts.num_heads.get(width), "act_layer": facts.gelu.removesuffix("_exact")}
    if architecture := _architecture(family, shapes):
        arguments |= arguments_of({"architecture": architecture})
    if family in _DINOV3:
        arguments["qkv_bias"] = "blocks.0.attn.qkv.bias" in shapes
    return {**settings, "model_args": arguments | settings.get("model_args", {})}


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
