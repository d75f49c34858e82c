"""Catalogue entries of the files that Google published, and of their copies in other layouts.

Sources: the repositories google-research/vision_transformer, google-research/big_vision and
huggingface/pytorch-image-models (timm). The names of copies in the layout of transformers end in `-huggingface`.
"""

import re

from keras_vit.architectures.spellings import SIZE_NAMES
from keras_vit.weights.catalogue_entry import build_entry, measured, split_variant, timm_top1

_VIT_MODELS = "https://storage.googleapis.com/vit_models"
_BIG_VISION = "https://storage.googleapis.com/big_vision"
_WIDTHS = {"B": 768, "L": 1024, "H": 1280}


def google_entries():
    """Yields the entries of all files, except AugReg files that neither Google nor timm recommends.

    `augreg_entry` builds the entry of any AugReg file from the file's name.
    """
    yield from _original_entries()
    yield from _augreg_entries()
    yield from _sam_entries()
    yield from _big_vision_entries()
    yield from _flexivit_entries()
    yield from _siglip_entries()
    yield from _siglip2_entries()


_AUGREG_PAPER = "2106.10270"
_AUGREG_VARIANTS = {
    variant.replace("/", "_").replace("+", "_"): variant
    for variant in ("Ti/16", "S/32", "S/16", "B/32", "B/16", "B/8", "L/16", "R+Ti/16", "R26+S/32", "R50+L/32")
}
AUGREG_STEM = re.compile(
    rf"(?P<variant>{'|'.join(_AUGREG_VARIANTS)})-(?P<upstream>i1k|i21k|i21k_30)-(300|30)ep-lr_0\.001"
    r"-aug_(none|light0|light1|medium1|medium2|strong1|strong2)-wd_(0\.03|0\.1)-do_(0\.0|0\.1)-sd_(0\.0|0\.1)"
    r"(--(?P<transfer>[a-z0-9_]+)-steps_\d+k-lr_(0\.001|0\.003|0\.01|0\.03)-res_(?P<size>224|384))?"
)
_AUGREG_CLASSES = {"imagenet2012": 1000, "cifar100": 100, "kitti": 4, "oxford_iiit_pet": 37, "resisc45": 45}


def augreg_entry(stem, weights=None, top1=(None, None)):
    """Builds the entry of any of the 50,000 AugReg files from its name without `.npz`."""
    parts = AUGREG_STEM.fullmatch(stem).groupdict()  # type: ignore[union-attr]
    if parts["transfer"]:
        classes = _AUGREG_CLASSES.get(parts["transfer"])
    else:
        classes = 1000 if parts["upstream"] == "i1k" else 21843
    url = f"{_VIT_MODELS}/augreg/{stem}.npz"
    size = int(parts["size"] or 224)
    variant = _AUGREG_VARIANTS[parts["variant"]]
    return build_entry(variant, weights or stem, url, "google", "google", _AUGREG_PAPER, classes, size, top1)


# (file, learning rate of the fine-tuning at 384 pixels, top-1). The README of vision_transformer recommends these files
# for their accuracy on ImageNet-21k. big_vision recommends B/8, which was not fine-tuned at 384 pixels.
_RECOMMENDED = (
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 78.22),
    ("S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", "0.01", 79.58),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 83.73),
    ("B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.59),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.03", 85.49),
    ("B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0", None, None),
    ("L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", "0.01", 85.59),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 75.40),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.85),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 85.99),
)
# (file, learning rate of the fine-tuning at 224 pixels, top-1). timm chose and measured these files.
_TIMM_CHOICES = (
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 75.45),
    ("S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 76.01),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 81.40),
    ("B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0", "0.03", 80.73),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.01", 84.53),
    ("B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.01", 85.84),
    ("L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 85.86),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 71.80),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1", "0.03", 81.86),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 84.43),
)
# (file trained only on ImageNet-1k, top-1 at 224 pixels, top-1 at 384 pixels). timm chose and measured these files.
_IMAGENET1K_ONLY = (
    ("S_16-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0", 78.84, 81.13),
    ("B_32-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.1-sd_0.1", 74.91, 78.75),
    ("B_16-i1k-300ep-lr_0.001-aug_strong2-wd_0.1-do_0.1-sd_0.1", 79.15, 81.10),
)


def _augreg_entries():
    for stem, rate, top1 in _RECOMMENDED:
        yield augreg_entry(stem, "augreg-i21k")
        if rate:
            top1 = measured(top1, "vision_transformer README, 384 px")
            yield augreg_entry(f"{stem}--imagenet2012-steps_20k-lr_{rate}-res_384", "augreg-i21k-i1k-384", top1)
    for stem, rate, top1 in _TIMM_CHOICES:
        fine_tuned = f"{stem}--imagenet2012-steps_20k-lr_{rate}-res_224"
        yield augreg_entry(fine_tuned, "augreg-i21k-i1k-224", timm_top1(top1, 224))
    for stem, *figures in _IMAGENET1K_ONLY:
        for size, top1 in zip((224, 384), figures, strict=True):
            fine_tuned = f"{stem}--imagenet2012-steps_20k-lr_0.01-res_{size}"
            yield augreg_entry(fine_tuned, f"augreg-i1k-{size}", timm_top1(top1, size))
    for variant, patch_size, top1 in (("B/16", 16, 85.11), ("B/8", 8, 86.25)):
        url = f"hf://timm/vit_base_patch{patch_size}_224.augreg2_in21k_ft_in1k"
        facts = ("timm", "timm", _AUGREG_PAPER, 1000, 224, timm_top1(top1, 224))
        yield build_entry(variant, "augreg2-i21k-i1k-224", url, *facts)


def _original_entries():
    """The original ViT: Google's files and their copies in the layout of transformers."""
    paper = "2010.11929"
    for variant in ("B/8", "B/16", "B/32", "L/16", "L/32", "H/14", "R50+B/16", "R26+B/32", "R50+L/32"):
        size, patch_size = split_variant(variant.rpartition("+")[2])
        facts = {"representation_dim": _WIDTHS[size]}
        url = f"{_VIT_MODELS}/imagenet21k/{_google_name(variant)}.npz"
        yield build_entry(variant, "i21k", url, "google", "google", paper, 21843, **facts)
        if "+" not in variant and variant != "B/8":
            url = f"hf://google/vit-{SIZE_NAMES[size]}-patch{patch_size}-224-in21k"
            yield build_entry(variant, "i21k-huggingface", url, "huggingface", "huggingface_vit", paper, **facts)
    for variant, image_size, top1 in (
        ("B/8", 384, None),
        ("B/16", 224, 81.78),
        ("B/16", 384, 84.21),
        ("B/32", 384, None),
        ("L/16", 224, None),
        ("L/16", 384, None),
        ("L/32", 384, 81.51),
        ("R50+B/16", 384, 84.99),
    ):
        weights = f"i21k-i1k-{image_size}"
        suffix = "" if image_size == 384 else f"-{image_size}"
        url = f"{_VIT_MODELS}/imagenet21k+imagenet2012/{_google_name(variant)}{suffix}.npz"
        trained = (paper, 1000, image_size)
        yield build_entry(variant, weights, url, "google", "google", *trained, timm_top1(top1, image_size))
        if "+" not in variant and variant != "B/8":
            size, patch_size = split_variant(variant)
            url = f"hf://google/vit-{SIZE_NAMES[size]}-patch{patch_size}-{image_size}"
            yield build_entry(variant, f"{weights}-huggingface", url, "huggingface", "huggingface_vit", *trained)


def _sam_entries():
    for variant, top1 in (("S/16", None), ("B/16", 80.25), ("B/32", 73.70), ("L/16", None), ("L/32", None)):
        url = f"{_VIT_MODELS}/sam/{_google_name(variant)}.npz"
        yield build_entry(variant, "sam", url, "google", "google", "2106.01548", 1000, 224, timm_top1(top1, 224))


def _big_vision_entries():
    changes = {"pooling": "avg", "position_embedding": "sincos_2d", "representation_dim": 384}
    for epochs, top1 in ((90, 76.5), (150, None), (300, None)):
        url = f"{_BIG_VISION}/vit_s16_i1k_{epochs}ep.npz"
        facts = ("google", "big_vision", "2205.01580", 1000, 224, measured(top1, "big_vision README, 224 px"))
        yield build_entry("S/16", f"i1k-{epochs}ep", url, *facts, **changes)


def _flexivit_entries():
    rows: list[tuple[str, str, str, int, float | None]] = [
        ("B/16", f"i21k-{epochs}ep", f"flexivit_b_i21k_{epochs}ep", 21843, None) for epochs in (90, 300, 1000)
    ]
    for size, *figures in (("S", 82.17, 82.39, 82.58), ("B", 84.40, 84.56, 84.68), ("L", 85.28, 85.53, 85.65)):
        # The file without a number of epochs in its name was trained for 1,200 epochs.
        for run, top1 in zip(("-90ep", "-300ep", "-600ep", ""), (None, *figures), strict=True):
            file = f"flexivit_{size.lower()}_i1k{run.replace('-', '_')}"
            rows.append((f"{size}/16", f"i1k{run}", file, 1000, top1))
    # The FlexiViT paper's baselines, each trained at one patch size.
    rows += [(f"B/{side}", "baseline-i21k-300ep", f"vit_b{side}_i21k_300ep", 21843, None) for side in (16, 30)]
    for variant, weights, file, classes, top1 in rows:
        url = f"{_BIG_VISION}/flexivit/{file}.npz"
        facts = ("google", "flexivit", "2212.08013", classes, 240, timm_top1(top1, 240))
        yield build_entry(variant, f"flexivit-{weights}", url, *facts, num_position_prefix_rows=0)


def _siglip_entries():
    for variant, image_size, file, repository in (
        ("B/16", 224, "en_b16_224_63724782", "base-patch16-224"),
        ("B/16", 256, "en_b16_256_60500360", "base-patch16-256"),
        ("B/16", 384, "en_b16_384_68578854", "base-patch16-384"),
        ("B/16", 512, "en_b16_512_68580893", "base-patch16-512"),
        ("L/16", 256, "en_l16_256_60552751", "large-patch16-256"),
        ("L/16", 384, "en_l16_384_63634585", "large-patch16-384"),
        ("So400m/14", 224, "en_so400m_224_57633886", "so400m-patch14-224"),
        ("So400m/14", 384, "en_so400m_384_58765454", "so400m-patch14-384"),
        ("B/16", 256, "i18n_b16_256_66117334", "base-patch16-256-multilingual"),
    ):
        weights = f"siglip-{image_size}" if file.startswith("en") else f"siglip-i18n-{image_size}"
        url = f"{_BIG_VISION}/siglip/webli_{file}.npz"
        yield from _encoders(variant, weights, url, f"hf://google/siglip-{repository}", "2303.15343", image_size, None)


def _siglip2_entries():
    for variant, figures in {
        "B/32": {256: 74.0},
        "B/16": {224: 78.2, 256: 79.1, 384: 80.6, 512: 81.2},
        "L/16": {256: 82.5, 384: 83.1, 512: 83.5},
        "So400m/14": {224: 83.2, 384: 84.1},
        "So400m/16": {256: 83.4, 384: 84.1, 512: 84.3},
        "g-opt/16": {256: 84.5, 384: 85.0},
    }.items():
        size, patch_size = split_variant(variant)
        file = variant[0].lower() + variant[1:].replace("/", "")
        for image_size, top1 in figures.items():
            url = f"{_BIG_VISION}/siglip2/siglip2_{file}_{image_size}.npz"
            hub = f"hf://google/siglip2-{SIZE_NAMES[size]}-patch{patch_size}-{image_size}"
            yield from _encoders(variant, f"siglip2-{image_size}", url, hub, "2502.14786", image_size, top1)


def _encoders(variant, weights, url, hub, paper, image_size, top1):
    """Yields the entries of an image-text model's image encoder: Google's file, and its copy for transformers."""
    changes = {"pooling": "map", "class_token": False}
    if image_size % split_variant(variant)[1]:
        changes["crop_to_patches"] = True
    top1 = measured(top1, f"big_vision README, {image_size} px, zero-shot with the text encoder")
    facts = ("siglip", paper, 0, image_size, top1)
    yield build_entry(variant, weights, url, "google", *facts, **changes)
    yield build_entry(variant, f"{weights}-huggingface", hub, "huggingface", *facts, **changes)


def _google_name(variant):
    """Google's name of a variant, such as `"R50+ViT-B_16"` for `"R50+B/16"`."""
    trunk, plus, plain = variant.rpartition("+")
    return f"{trunk}{plus}ViT-{plain.replace('/', '_')}"
