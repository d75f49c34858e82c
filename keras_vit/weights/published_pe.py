"""Catalogue entries of the Perception Encoder (arXiv 2504.13181). Source: timm 1.0.31.

There are three kinds of models: Core, Lang and Spatial. Core models have a head that projects to the embedding space of
images and texts. Lang and Spatial models have no layer after the last block. In timm, the mean of the patch tokens of
this block is their output.
"""

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.catalogue_entry import split_variant, timm_entry

_NAMES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "G-pe": "gigantic"}


def pe_entries():
    """Yields all entries."""
    for variant, image_size, width in (
        ("Ti/16", 384, 512),
        ("S/16", 384, 512),
        ("B/16", 224, 1024),
        ("L/14", 336, 1024),
        ("G-pe/14", 448, 1280),
    ):
        changes = {"pooling": "map", "pooling_num_heads": 8}
        changes |= {"pooling_mlp_dim": 6144} if variant == "G-pe/14" else {"pool_prefix_tokens": True}
        yield _entry(variant, "core", "fb", image_size, classes=width, has_projection=True, **changes)
    for variant, num_layers in (("L/14", 23), ("G-pe/14", 47)):
        for tag in ("fb", "fb_tiling"):
            changes = {"num_layers": num_layers, "layer_scale": 0.1, "pooling": "avg", "final_norm": False}
            yield _entry(variant, "lang", tag, 448, **changes)
    for variant, image_size in (("Ti/16", 512), ("S/16", 512), ("B/16", 512), ("L/14", 448), ("G-pe/14", 448)):
        changes = {"pooling": "avg", "final_norm": False}
        if variant == "G-pe/14":
            changes["layer_scale"] = 0.1
        yield _entry(variant, "spatial", "fb", image_size, **changes)


def _entry(variant, kind, tag, image_size, **facts):
    size, patch_size = split_variant(variant)
    has_class_token = size != "G-pe"
    side = image_size // patch_size
    rotary = RotaryConfig(
        base=10000.0,
        layout="interleaved",
        coordinates="grid",
        reference_grid=(side, side),
        offset=1.0 if has_class_token else 0.0,
        axis_order="xy",
    )
    changes = {"rotary": rotary, "pre_norm": True, "class_token": has_class_token}
    name = f"vit_pe_{kind}_{_NAMES[size]}_patch{patch_size}_{image_size}.{tag}"
    weights = f"pe-{kind}{tag.removeprefix('fb').replace('_', '-')}-{image_size}"
    return timm_entry(variant, weights, name, "pe", "2504.13181", image_size, **changes, **facts)
