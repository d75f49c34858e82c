"""Prints docs/weights.md: the published weights that can be loaded by name.

Command: python -m benchmarks.weights > docs/weights.md
"""

import dataclasses

from keras_vit.weights.catalogue import ENTRIES, FAMILIES

_TITLES = {
    "google": "ViT, AugReg and SAM",
    "big_vision": "big_vision",
    "flexivit": "FlexiViT",
    "siglip": "SigLIP and SigLIP 2, image encoders",
    "timm": "AugReg weights that timm fine-tuned",
    "deit": "DeiT",
    "deit3": "DeiT III",
    "mae": "MAE",
    "dino": "DINO",
    "dinov2": "DINOv2",
    "dinov2_registers": "DINOv2 with registers",
    "huggingface_vit": "ViT in the layout of transformers",
}
_NUM_WITH_SUM = sum(entry.sha256 is not None for entry in ENTRIES.values())
_NUM_AT_GOOGLE, _NUM_ON_HUB = (
    sum(entry.url.startswith(place) for entry in ENTRIES.values())
    for place in ("https://storage.googleapis.com/", "hf://")
)
_INTRODUCTION = f"""\
# Published weights

`python -m benchmarks.weights` prints this page. The catalogue has {len(ENTRIES)} names.
`keras_vit.list_weights("B/16")` lists the names for one variant.

A name is `<variant>@<weights>`: `keras_vit.from_pretrained("B/16@augreg-i21k-i1k-384")`. If the variant is given
separately, use the part after the `@`: `keras_vit.ViT("B/16", weights="augreg-i21k-i1k-384")`. `weights="imagenet"` is
the variant's `augreg-i21k-i1k-224`. Each of the 50,000 AugReg files can be loaded by its name without `.npz`, such as
`B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_224`. Any other file in one
of these layouts can be loaded by its path, `https://…`, `gs://…` or `hf://owner/repository`. `B/30` and `g-swiglu/14`
are not variants of `keras_vit.ViT`; load their weights with `keras_vit.from_pretrained`.

BiT files, in the layouts of big_transfer, big_vision and timm, are not in the catalogue. Pass their path or address to
`keras_vit.BiTResNet50x1(weights=…)` and so on, or to `keras_vit.from_pretrained`. Files of big_vision set
`root_padding="ignored"`, because that code ignores the padding when it pools.

ResNet-18, 34, 50 and 101 of torchvision and timm, as `.pth` and `.safetensors`, are not in the catalogue either. Pass
them to `keras_vit.ResNet50(weights=…)` and so on. `keras_vit.VTResNet50(weights=…)` loads the stem and all stages but
the last, and its token modules keep their initial values. The name of torchvision's file, or timm's `config.json`,
determines how images are resized. Otherwise they are resized to 256 pixels and the centre of 224 pixels is cropped.
ResNeXt, wide ResNets, ResNet-D and ResNets with attention are refused.

In names, `i21k` is ImageNet-21k, `i1k` is ImageNet-1k, and numbers from 224 are image sizes in pixels. The plain names
of Meta's weights are files in timm's layout. Meta's own files, which end in `-original`, and `mae-finetuned` have the
layout `torch`. They are `.pth` files and need torch. Copies in the layout of transformers end in `-huggingface`.

Top-1 is the accuracy in % on the validation set of ImageNet-1k, as published by the source in the next column. None of
these figures was measured with this package. Weights without classes have no head. Their figures are those of a linear
classifier trained on their features, or of zero-shot classification, which is not in the file. The licence is that of
the publisher's repository. MAE's licence does not permit commercial use.

How a file is checked depends on the information that its publisher provides:

* {_NUM_WITH_SUM} of the {len(ENTRIES)} files have the first digits of their SHA-256 in their names. They are checked
  after the download and whenever the file is loaded.
* Google's storage has {_NUM_AT_GOOGLE} of the files. It sends the MD5 of files that were uploaded in one piece. It is
  checked after the download.
* The Hugging Face Hub has {_NUM_ON_HUB} of the files. Its cache names weights by their SHA-256. It is checked whenever
  they are loaded, unless the cache is on a file system without links.
* All other files are used as the server sends them over https.

For each file from `https://…` or `gs://…` a file `<name>.origin` next to it stores its SHA-256, and the ETag and MD5 of
the publisher. If the cached file changes later, it is refused. The query of an address may be a signature. It is left
out of `describe(model).source`, saved models, exports and messages. Only the `recipe.json` of a training run contains
the whole address, because the run needs it to continue."""


def document():
    """The document in Markdown."""
    return "\n\n".join([_INTRODUCTION, *(_section(family, title) for family, title in _TITLES.items())])


def _section(family, title):
    entries = sorted((entry for entry in ENTRIES.values() if entry.family == family), key=lambda entry: entry.name)
    facts = dataclasses.asdict(FAMILIES[family])
    if facts["resize"] is None:
        resize = "resized to exactly the model's size"
    else:
        sides = facts["resize"]
        sides = f"{sides} pixels on the short side" if isinstance(sides, int) else "{} x {} pixels".format(*sides)
        resize = f"resized to {sides} and cropped to the central {facts['crop']} pixels (in proportion for other sizes)"
    rows = [
        "| name | file | layout | pixels | classes | top-1 | measured by | licence | paper |",
        "|---|---|---|--:|--:|--:|---|---|---|",
        *map(_row, entries),
    ]
    return (
        f"## {title}\n\nPixels scaled to [0, 1]: mean {facts['mean']}, standard deviation {facts['std']}. Images are "
        f"{resize}, with {facts['interpolation']} interpolation. MLP `{facts['gelu']}`, LayerNorm epsilon "
        f"{facts['layer_norm_epsilon']:g}, position interpolation `{facts['position_interpolation']}`.\n\n"
    ) + "\n".join(rows)


def _row(entry):
    file = entry.url if entry.url.startswith("hf://") else f"[{entry.url.rpartition('/')[2]}]({entry.url})"
    cells = (
        f"`{entry.name}`",
        file,
        entry.format,
        entry.image_size,
        entry.classes or "",
        f"{entry.top1:.2f}" if entry.top1 else "",
        entry.top1_protocol or "",
        entry.licence,
        f"[{entry.paper}](https://arxiv.org/abs/{entry.paper})",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(document())
