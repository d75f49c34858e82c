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
_WITH_SUM = sum(entry.sha256 is not None for entry in ENTRIES.values())
_ON_GOOGLES, _ON_THE_HUB = (
    sum(entry.url.startswith(place) for entry in ENTRIES.values())
    for place in ("https://storage.googleapis.com/", "hf://")
)
_INTRODUCTION = f"""\
# Published weights

Printed by `python -m benchmarks.weights`. The catalogue has {len(ENTRIES)} names; `keras_vit.list_weights("B/16")`
lists those of a variant.

A name is `<variant>@<weights>`: `keras_vit.from_pretrained("B/16@augreg-i21k-i1k-384")`. Where the variant is given,
the part behind the `@` is enough: `keras_vit.ViT("B/16", weights="augreg-i21k-i1k-384")`. `weights="imagenet"` is the
variant's `augreg-i21k-i1k-224`. Each of the 50,000 AugReg files can be loaded by its name without `.npz`, such as
`B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_224`, and any other file in
one of these layouts by its path, by `https://…` or `gs://…`, or by `hf://owner/repository`. Weights of `B/30` and
`g-swiglu/14`, which are no variants of `keras_vit.ViT`, are loaded with `keras_vit.from_pretrained`.

BiT's files, in the layouts of big_transfer, big_vision and timm, have no names here: their paths and addresses go into
`keras_vit.BiTResNet50x1(weights=…)` and so on, and into `keras_vit.from_pretrained`. Those of big_vision set
`root_padding="ignored"`, as that code pools.

Nor have ResNet-18, 34, 50 and 101 of torchvision and timm, `.pth` and `.safetensors`: they go into
`keras_vit.ResNet50(weights=…)` and so on, and their stem and all stages but the last into
`keras_vit.VTResNet50(weights=…)`, whose modules of tokens start afresh. Images are resized as the name of torchvision's
file or timm's `config.json` says, otherwise to 256 pixels for the 224 in the centre. ResNeXt, wide ResNets, ResNet-D,
and those with attention are refused.

In names, `i21k` is ImageNet-21k, `i1k` is ImageNet-1k, and numbers from 224 are image sizes in pixels. Meta's weights
go by the plain name in timm's layout; Meta's own files, which end in `-original`, and `mae-finetuned` are in the layout
`torch`: `.pth` files, which need torch to be read. Copies in the layout of transformers end in `-huggingface`.

Top-1 is the accuracy in % on the validation set of ImageNet-1k that the source beside it states. None of these figures
was measured with this package. Weights without classes have no head: their figures are of a linear classifier trained
on their features, or of zero-shot classification, and that part is not in the file. The licence is that of the
publisher's repository; MAE's does not permit commercial use.

How files are checked depends on what their publishers say:

* {_WITH_SUM} of the {len(ENTRIES)} files have the first digits of their SHA-256 in their names. They are compared with
  it when they arrive and whenever they are loaded.
* Google's storage, which has {_ON_GOOGLES} of them, announces the MD5 of files that were uploaded in one piece. It is
  compared when a file arrives.
* The Hugging Face Hub has {_ON_THE_HUB}. Its cache names weights by their SHA-256, which is compared whenever they are
  loaded, unless the cache is on a file system without links.
* All others are as the server sent them, over https.

Beside each file that comes by `https://…` or `gs://…` a file `<name>.origin` keeps its SHA-256, and the ETag and MD5 of
its publisher. If the file in the cache is another one later, it is refused. The query of an address, which may be a
signature, is left out of `describe(model).source`, saved models, exports and messages. Only `recipe.json` of a training
run has the whole address, because the run needs it to go on."""


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
        sides = f"short side resized to {sides}" if isinstance(sides, int) else "resized to {} x {}".format(*sides)
        resize = f"{sides} for a centre of {facts['crop']} pixels, or in proportion"
    rows = [
        "| name | file | layout | pixels | classes | top-1 | measured by | licence | paper |",
        "|---|---|---|--:|--:|--:|---|---|---|",
        *map(_row, entries),
    ]
    return (
        f"## {title}\n\nPixels scaled to [0, 1]: mean {facts['mean']}, standard deviation {facts['std']}. Images are "
        f"{resize}, {facts['interpolation']}. MLP `{facts['gelu']}`, LayerNorm epsilon "
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
