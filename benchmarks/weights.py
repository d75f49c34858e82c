"""Prints docs/weights.md: the published weights that can be loaded by name.

Command: python -m benchmarks.weights > docs/weights.md
"""

import textwrap

from benchmarks.model_weights import classes_of
from benchmarks.records import markdown_table
from keras_vit.architectures.vision_transformer import VARIANTS
from keras_vit.licences import restriction
from keras_vit.weights.catalogue import ENTRIES, FAMILIES
from keras_vit.weights.catalogue.sizes import PUBLISHED_VARIANTS

_TITLES = {
    "google": "ViT, AugReg and SAM",
    "big_vision": "big_vision",
    "flexivit": "FlexiViT",
    "siglip": "SigLIP and SigLIP 2, image encoders",
    "timm": "models that timm trained",
    "deit": "DeiT",
    "deit3": "DeiT III",
    "mae": "MAE",
    "dino": "DINO",
    "dinov2": "DINOv2",
    "dinov2_registers": "DINOv2 with registers",
    "depth_anything": "Depth Anything",
    "depth_anything_v2": "Depth Anything V2 and 3",
    "dinov3": "DINOv3, EUPE, LingBot-Vision",
    "dinov3_sat": "DINOv3 for satellite images",
    "mocov3": "MoCo v3",
    "ijepa": "I-JEPA",
    "open_clip": "CLIP and its successors",
    "eva": "EVA",
    "eva02": "EVA-02",
    "eva_clip": "EVA-CLIP",
    "pe": "Perception Encoder",
    "rope_vit": "RoPE-ViT",
    "tipsv2": "TIPSv2",
    "intern": "InternViT",
    "miil": "ImageNet-21K-P",
    "huggingface_vit": "ViT in the layout of transformers",
}
_FAMILY_COLUMNS = ("family", "mean", "std", "resize", "interpolation", "GELU", "position interpolation", "epsilon")
_COLUMNS = ("name", "family", "pixels", "images", "classes", "top-1", "measured by")
_COLUMNS += ("licence", "access", "layout", "file", "paper")
_NUM_WITH_SUM = sum(entry.sha256 is not None for entry in ENTRIES.values())
_URLS = {entry.url for entry in ENTRIES.values()}
_NUM_AT_GOOGLE, _NUM_ON_HUB, _NUM_OF_TIMM = (
    sum(url.startswith(place) for url in _URLS) for place in ("https://storage.googleapis.com/", "hf://", "hf://timm/")
)
_NUM_GATED = sum(entry.gated for entry in ENTRIES.values())
_FILES_ONLY = textwrap.fill(
    "Load the weights of these variants with `keras_vit.from_pretrained`, because they are not variants of "
    f"`keras_vit.ViT`: {', '.join(f'`{variant}`' for variant in PUBLISHED_VARIANTS if variant not in VARIANTS)}.",
    120,
)
_RESTRICTED = "\n".join(
    f"* {licence} ({', '.join(families)}). {restriction(licence)}"
    for licence, families in sorted(
        (licence, sorted({_TITLES[entry.family] for entry in ENTRIES.values() if entry.licence == licence}))
        for licence in {entry.licence for entry in ENTRIES.values()}
    )
    if restriction(licence)
)
_INTRODUCTION = f"""\
# Published weights

`python -m benchmarks.weights` prints this page. The catalogue contains {len(ENTRIES)} names of weights.
[The table at the end](#the-catalogue) lists them. `keras_vit.list_weights("B/16")` returns the names for one variant.

## Names

A name has the form `<variant>@<weights>`: `keras_vit.from_pretrained("B/16@augreg-i21k-i1k-384")`. If the variant is
given separately, use the part after the `@`: `keras_vit.ViT("B/16", weights="augreg-i21k-i1k-384")`.
`weights="imagenet"` selects `augreg-i21k-i1k-224` of the variant. In names, `i21k` and `in21k` mean ImageNet-21k, and
`i1k` and `in1k` mean ImageNet-1k. `in12k` is a subset of ImageNet-22k with 11,821 classes. A number of 196 or more at
the end is an image size in pixels.

Weights have other names, too. `from_pretrained`, `load_weights` and `ViT(…, weights=…)` accept

* a short name: the variant without its slash, and the first words of the name of the weights, in any order:
  `"dinov3-s16"`, `"dinov3-h+16"`, `"dinov3-l16-sat493m"`, `"dinov2-reg4-b14"`, `"eva02-b14"`, `"pe-core-l14"`,
  `"siglip2-b16-384"`. `dinov3` is short for `dinov3-lvd1689m`, `eva02` for `eva02-in22k-224`, and `clip` for
  `clip-openai-224`;
* the name of a repository of the catalogue on the Hugging Face Hub, with or without its owner:
  `"facebook/dinov3-vits16-pretrain-lvd1689m"`, `"timm/vit_small_patch16_dinov3.lvd1689m"`;
* the name of an architecture of timm, if the catalogue has only one file of this architecture:
  `"vit_small_patch16_dinov3"`.

If such a name could mean several weights, an error lists them. If the same weights are published in several layouts,
the preferred file is the one whose name has no ending such as `-huggingface`. For Google's weights, this is Google's
own file. For most other weights, it is timm's `.safetensors` file, which has a `config.json`. All other layouts
are preferred to `.pth` files, which need torch. If a file or folder on this machine has the same name as a repository,
or a name that is also a short name, the file or folder is loaded. Names in the catalogue are preferred to files and
folders.

Each of the 50,000 AugReg files can be loaded by its file name without `.npz`, such as
`B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_224`. Any other file in one
of the layouts on this page can be loaded by its path or URL: `https://…`, `gs://…` or `hf://owner/repository`.

{_FILES_ONLY}

Some weights have a narrower MLP, fewer blocks or more heads than their variant, such as those of EVA-02. They are also
loaded with `keras_vit.from_pretrained`.

Several names can refer to the same weights in different layouts. Names that end in `-original` refer to Meta's own
files. These files, those of `mae-finetuned`, `mocov3` and `ijepa`, and the heads of DINOv2 are `.pth` files in the
layout `torch`. They can only be loaded if torch is installed. Names that end in `-huggingface` refer to copies in the
layout of transformers. The exception is I-JEPA: the files of transformers contain the context encoder, and their names
begin with `ijepa-context`. From Meta's files of I-JEPA, the target encoder is read. Names that end in `-qkvb` refer to
files of timm that store the biases of queries and values, which are zero. All other names of Meta's weights refer to
files in timm's layout.

The files define how a model pools its tokens. timm's models of DINOv3 average the patches. Those of transformers return
the class token, as Meta's code does. Pass `pooling="token"` for the class token. CLIP models have the activation with
which they were trained: models of OpenAI, MetaCLIP and some others have `mlp="quick_gelu"`, like timm's architectures
with `quickgelu` in their names. This also holds if such a file is loaded by its address `"hf://timm/…"`, although the
`config.json` beside it names the architecture with the exact GELU.

## Models with an output for each pixel

These files contain a Vision Transformer and a head for masks (EoMT), depth (Depth Anything), or one of several outputs
(TIPSv2-DPT, heads of DINOv2). `keras_vit.from_pretrained` builds the whole model. Names without the ending
`-huggingface` can refer to the layout of transformers here, because no other copy can be read.

| weights | layout of the file | further arguments, if the file is loaded by its path or address |
|---|---|---|
| EoMT | transformers | |
| EoMT on DINOv3, differences from DINOv3 | transformers | `encoder="L/16@dinov3-lvd1689m"`, or a path |
| Depth Anything 1 and 2 | transformers | |
| Depth Anything 1 and 2, the owners' `.pth` | `depth_anything` | `family="depth_anything"` or `"depth_anything_v2"`; \
`max_depth=20` (indoor) or `80` (outdoor) for metric models |
| Depth Anything 3, mono and metric | `depth_anything` | |
| TIPSv2-DPT | transformers | `output="depth"`, `"normals"` or `"class_map"` |
| heads of DINOv2 | `dinov2_heads` | `encoder="S/14@dinov2"`, or a path; `max_depth=10` (NYU) or `80` (KITTI) |

Names in the catalogue need none of these arguments. [Models](models/index.md) describes the outputs, and [Which model
for which task](choosing_a_model.md) compares the models. `save_weights` writes EoMT and Depth Anything 1 and 2 in the
layout of transformers.

## ResNets

BiT files, in the layouts of big_transfer, big_vision and timm, are not in the catalogue. Pass their path or URL to
`keras_vit.BiTResNet50x1(weights=…)` and so on, or to `keras_vit.from_pretrained`. A model that is built from a file of
big_vision has `stem_pooling_padding="ignored"`, because the max pooling of big_vision's stem ignores the padded pixels.

ResNet-18, 34, 50 and 101 of torchvision and timm, as `.pth` and `.safetensors`, are not in the catalogue either. Pass
their path or URL to `keras_vit.ResNet50(weights=…)` and so on. `keras_vit.VTResNet50(weights=…)` loads the stem and all
stages except the last one. The token modules keep their initial values. The name of torchvision's file, or timm's
`config.json`, determines how images are resized. Without this information, images are resized to 256 pixels, and the
central 224 pixels are cropped. ResNeXt, wide ResNets, ResNet-D and ResNets with attention are not supported.

## Columns

Top-1 is the accuracy in % on the validation set of ImageNet-1k. The column "measured by" names the source that
published this accuracy. None of these accuracies was measured with this package. Files without classes contain no
head. Their accuracy was measured with a linear classifier on the features, or with a text encoder (zero-shot
classification). The file contains neither of these. "Projection" in the column "classes" means that the head projects
to the space of an image-text model. Models with an output for each pixel have its kind in this column, such as `depth`
or `masks`. The column "images" describes how images are resized. The settings in the `config.json` or
`preprocessor_config.json` beside a file have precedence. The licence is that of the publisher's repository, or the one
in timm's `pretrained_cfg`.

{_NUM_GATED} files are gated: the Hugging Face Hub sends them only to users who have accepted the licence on the page of
the repository. Create an access token in the settings of your account there, and set the environment variable
`HF_TOKEN` to it. timm does not say that its copies of these weights are gated. Meta sends the addresses of DINOv3's
original `.pth` files by e-mail to users who have filled in a form, so the catalogue does not contain these files. To
load one, download it and pass its path.

## Licences

These licences restrict how weights may be used:

{_RESTRICTED}

When such weights are loaded, `keras_vit.LicenceWarning` names the licence, the source and the restriction, once in each
process. The restriction also applies to models that are fine-tuned from these weights.

`keras_vit.describe(model).licence` returns the licence. It is stored in `.keras` files and in the files of
`keras_vit.save_weights`, and remains after fine-tuning. For weights that are not in the catalogue, the licence is read
from the file itself, from the `config.json` in its folder (`license`), or from the model card in its folder. For the
path or URL of an `.npz` file, only the file itself is read. If no licence is found, `licence` is `None`.

`keras_vit.save_weights(…, card=True)` writes a model card with the source and licence of the weights. The licence is in
the front matter of the card only if the weights are unchanged or their use is restricted. Otherwise the author of the
changed weights chooses the licence.

## Checks

The addresses come from documents of their publishers. `tests/weights/catalogue/published_urls.txt` lists them.
{_NUM_OF_TIMM} of them are timm's, and agree with timm 1.0.31. It was not checked that all files exist.

How a file is checked depends on the information that its publisher provides:

* For {_NUM_WITH_SUM} of the {len(_URLS)} files, the file name contains the first digits of the SHA-256. The SHA-256
  is checked after the download and whenever the file is loaded.
* {_NUM_AT_GOOGLE} of the files are in Google's storage. The server sends the MD5 of files that were uploaded in one
  piece. The MD5 is checked after the download.
* {_NUM_ON_HUB} of the files are on the Hugging Face Hub. The cache of the Hub names weight files by their SHA-256. The
  SHA-256 is checked whenever the file is loaded, unless the cache is on a file system without links.
* The publishers of all other files provide no checksum. These files are not checked after the download over https.

For each downloaded file from `https://…` or `gs://…`, a second file `<name>.origin` stores the SHA-256 of the download,
and the ETag and MD5 that the server sent. If the cached file changes later, an error is raised.

The query of a URL may contain a signature. It is therefore removed from `describe(model).source`, saved models, exports
and messages. Only the `recipe.json` of a training run contains the whole URL, because the run needs it to continue.

## Families

All models of a family have the same numerics, and their images are prepared in the same way. The settings in the
`config.json` beside a file have precedence. For example, timm's copies of Google's files are read with the exact GELU
of timm if their `config.json` is beside them, and with the tanh approximation if it is missing and `family="google"` is
passed. Pixels are scaled to [0, 1], then normalised with the mean and the standard deviation. "Crop" is the side of the
central crop in pixels. The column "resize" contains both sizes for models of 224 x 224 pixels, and for FlexiViT of 240
x 240 pixels. For models of another image size, both are scaled in proportion."""


def document():
    """The document in Markdown."""
    entries = sorted(ENTRIES.values(), key=lambda entry: (list(_TITLES).index(entry.family), entry.name))
    return "\n\n".join(
        [
            _INTRODUCTION,
            markdown_table(_FAMILY_COLUMNS, map(_family_row, _TITLES)),
            "## The catalogue",
            markdown_table(_COLUMNS, map(_row, entries), ("pixels", "classes", "top-1")),
        ]
    )


def _family_row(name):
    family = FAMILIES[name]
    if family.resize is None:
        resize = "the model's size"
    elif isinstance(family.resize, int):
        resize = f"short side {family.resize}, crop {family.crop}"
    else:
        resize = f"{family.resize[0]} x {family.resize[1]}, crop {family.crop}"
    numbers = (", ".join(map(str, x)) if isinstance(x, tuple) else x for x in (family.mean, family.std))
    code = (f"`{x}`" for x in (family.gelu, family.position_interpolation))
    return (_TITLES[name], *numbers, resize, family.interpolation, *code, f"{family.layer_norm_epsilon:g}")


def _row(entry):
    file = entry.url if entry.url.startswith("hf://") else f"[{entry.url.rpartition('/')[2]}]({entry.url})"
    return (
        f"`{entry.name}`",
        _TITLES[entry.family],
        entry.image_size,
        _images(**entry.preprocessing),
        classes_of(entry),
        f"{entry.top1:.2f}" if entry.top1 else "",
        entry.top1_protocol or "",
        entry.licence,
        "gated" if entry.gated else "",
        entry.format,
        file,
        f"[{entry.paper}](https://arxiv.org/abs/{entry.paper})" if entry.paper else "",
    )


def _images(resize, crop, interpolation, **_):
    """Describes how images are resized, such as "short side 256, bicubic". The crop is the image size of the model."""
    side = f"short side {resize}" if isinstance(resize, int) else "{} x {}".format(*resize)
    return f"{side}{', crop' if crop else ''}, {interpolation}"


if __name__ == "__main__":
    print(document())
