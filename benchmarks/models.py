"""Prints the tables of models on the pages in docs/models/: parameters and multiply-accumulates (MACs).

Command: make models
"""

import contextlib
import functools
import math
import re

import keras
import numpy as np

import keras_vit
from benchmarks import model_weights
from benchmarks.records import markdown_table
from keras_vit import baselines
from keras_vit.architectures.dense import DepthEstimatorConfig, NormalEstimatorConfig, SegmenterConfig
from keras_vit.models import bit_resnet, dense, resnet
from keras_vit.models.building import SharedArguments
from keras_vit.weights.catalogue import ENTRIES
from training.reports import published

PRINTED = {
    # arXiv 2010.11929, Table 1.
    "ViTB16": "86 M",
    "ViTL16": "307 M",
    "ViTH14": "632 M",
    # arXiv 2006.03677, Table 8.
    **{
        row["function"]: f"{row['parameters']:.1f} M, {row['gmacs']:g}"
        for row in published.read("vt_table8").rows
        if row["gmacs"]
    },
    # Not in Table 8. A2-Net: arXiv 1910.03151, Table 3. SAN: arXiv 2004.13621.
    **{"A2ResNet50": "33.0 M", "SAN19Pairwise": "17.6 M"},
}
"""{function: parameters, and for the models of Table 8 multiply-accumulates, as the papers print them}"""

# arXiv 2006.03677, Tables 9 and 10: shape of the images, classes, {backbone: printed GMACs of Panoptic FPN and VT-FPN}.
_SEGMENTATION = {
    "COCO-Stuff": ((800, 1216, 3), 54, {"R50": ("159", "113"), "R101": ("231", "185")}),
    "LIP": ((473, 473, 3), 20, {"R50": ("37.1", "26.4"), "R101": ("54.4", "43.6")}),
}


@contextlib.contextmanager
def shapes_only():
    """Models that are built in this context have weights without values, which need no memory."""
    with keras.StatelessScope(initialize_variables=False):
        yield
        # Otherwise, Keras would initialise the variables at the end of the next scope.
        keras.utils.clear_session(free_memory=False)


def build_entry(entry, **changes):
    """Builds the model of a `CatalogueEntry` with fresh weights, without a head if the file has none.

    `changes` replaces fields of its config, but not if the model has an output for each pixel.
    """
    if entry.output is not None:
        shape = (entry.image_size, entry.image_size, 3)
        return dense.build_model(_dense_config(entry), SharedArguments(input_shape=shape, classes=entry.classes or 1))
    return keras_vit.ViT(
        entry.config.replace(**changes),
        include_top=bool(entry.classes),
        classes=entry.classes or 1000,
        input_shape=(entry.image_size, entry.image_size, 3),
    )


def _dense_config(entry):
    """The config of EoMT, Depth Anything or TIPSv2-DPT, except for fields that do not change the cost."""
    width, weights = entry.config.hidden_dim, entry.name.partition("@")[2]
    if entry.output == "masks":
        queries = 100 if "semantic" in weights else 200
        head = {"name": "eomt", "num_queries": queries, "num_blocks": _EOMT_BLOCKS.get(width, 3)}
        return SegmenterConfig.of_encoder(entry.config, head=head)
    if weights.startswith("depth-anything"):
        features, widths = _DEPTH_ANYTHING[width]
        head = {"name": "dpt", "features": features, "widths": widths, "output": "image"}
        fields = {"output_dim": 32, "has_sky": weights.startswith("depth-anything-3")}
        return DepthEstimatorConfig.of_encoder(entry.config, head=head, **fields)
    head = {"name": "dpt", "readout": "gelu_tanh"}
    if entry.output == "depth":
        fields = {"num_bins": 256, "activation": "relu", "offset": 0.001, "min_depth": 0.001, "max_depth": 10.0}
        return DepthEstimatorConfig.of_encoder(entry.config, head=head, **fields)
    kind = SegmenterConfig if entry.output == "class_map" else NormalEstimatorConfig
    return kind.of_encoder(entry.config, head={**head, "output": "linear"})


_EOMT_BLOCKS = {1024: 4, 1536: 5}
"""{width of EoMT: number of blocks with queries}, if it is not 3 (configs/dinov2 of tue-mps/eomt)"""
_DEPTH_ANYTHING = {384: (64, None), 768: (128, None), 1024: (256, (256, 512, 1024, 1024))}
"""{width: (features, widths) of the DPT head of Depth Anything}"""


def function_name(variant):
    """Name of the function that builds a variant, or `from_pretrained` if only published files have this variant."""
    if variant not in keras_vit.VARIANTS:
        return "from_pretrained"
    stem, _, size = variant.rpartition("+")
    return f"{stem}ViT{size.replace('/', '').replace('-opt', 'Opt')}"


def transformers(functions):
    """The table of Vision Transformers, {variant: name of its function}, for 224 x 224 pixels and 1,000 classes."""
    rows = []
    for variant, name in functions.items():
        config, *cost = _cost(getattr(keras_vit, name))
        sizes = (config.num_layers, config.hidden_dim, config.mlp_dim, config.num_heads)
        rows.append((variant, f"`{name}`", *sizes, *cost))
    columns = ("variant", "function", "layers", "width", "MLP", "heads", "parameters", "GMACs")
    return _markdown(columns, _with_printed(rows), 2)


def files(*papers):
    """The table of the models that the files of some papers contain, each at the image size of its files."""
    entries = {}
    # If several files have the same model, the costs are those with 1,000 classes.
    for entry in sorted(ENTRIES.values(), key=lambda entry: entry.classes != 1000):
        if entry.paper in papers and entry.output is None:
            entries.setdefault((_name_with_additions(entry), entry.image_size), entry)
    rows = []
    for (name, size), entry in sorted(entries.items(), key=lambda item: model_weights.place(item[1])):
        config = entry.config
        sizes = (size, config.num_layers, config.hidden_dim, config.num_heads)
        is_other = not entry.changes.keys().isdisjoint(_SIZES)  # The function of the variant builds another model.
        function = "from_pretrained" if is_other else function_name(entry.variant)
        rows.append((name, f"`{function}`", *sizes, *_cost_of_entry(entry)))
    columns = ("variant", "function", "pixels", "layers", "width", "heads", "parameters", "GMACs")
    return _markdown(columns, rows, 2)


def with_heads(*papers):
    """The table of models with an output for each pixel. Weights of models that differ in classes only share a row."""
    rows = {}
    for entry in model_weights.entries_of(papers, "dense"):
        key = repr(_dense_config(entry)), entry.image_size
        if key not in rows:
            config, cost = entry.config, _counts(functools.partial(build_entry, entry))[1:]
            sizes = (entry.image_size, config.num_layers, config.hidden_dim, config.num_heads)
            rows[key] = (f"`{entry.name}`", entry.output, *sizes, *_shown(*cost))
    columns = ("weights", "output", "pixels", "layers", "width", "heads", "parameters", "GMACs")
    return _markdown(columns, list(rows.values()), 2)


_SIZES = ("num_layers", "num_heads", "mlp_dim", "rotary")


def _name_with_additions(entry):
    name = entry.variant
    if entry.changes.get("distillation_token"):
        name += ", distilled"
    if registers := entry.changes.get("num_register_tokens"):
        name += f", {registers} register{'s' if registers > 1 else ''}"
    _, *words = entry.name.partition("@")[2].split("-")
    return ", ".join([name, *(_ADDITIONS[word] for word in words if word in _ADDITIONS)])


# {word in the name of weights: addition to the name of the variant}. The first word of the name is not looked up.
_ADDITIONS = {
    **{"core": "Core", "lang": "Lang", "spatial": "Spatial"},
    **{"mixed": "mixed", "ape": "ape", "rope": "rotary"},
}


def convolutional(module, names):
    """The table of some functions of a module, with a classifier for 1,000 classes, at 224 x 224 pixels."""
    rows = []
    for name in names:
        config, *cost = _cost(getattr(module, name))
        rows.append((f"`{name}`", "-".join(map(str, config.stage_depths)), config.width, *cost))
    columns = ("function", "units per stage", "width", "parameters", "GMACs")
    return _markdown(columns, _with_printed(rows), 1)


def segmentation():
    """The table of segmentation models, at the image sizes of Tables 9 and 10 of arXiv 2006.03677."""
    rows = []
    for data, (shape, classes, by_backbone) in _SEGMENTATION.items():
        for backbone, printed in by_backbone.items():
            for name, giga_macs in zip(("PanopticFPN", "VTFPN"), printed, strict=True):
                build = functools.partial(getattr(keras_vit, name), backbone, input_shape=shape, classes=classes)
                _, *cost = _cost(build)
                pixels = f"{shape[0]} x {shape[1]}"
                rows.append((f"`{name}`", backbone, data, pixels, classes, *cost, giga_macs))
    columns = ("function", "backbone", "data set", "pixels", "classes", "parameters", "GMACs", "in the paper")
    return _markdown(columns, rows, 3)


def _cost(build):
    """(config of the model, parameters, GMACs)"""
    config, parameters, macs = _counts(build)
    return config, *_shown(parameters, macs)


def _cost_of_entry(entry):
    """(parameters, GMACs) of the model of a `CatalogueEntry`. Encoder blocks are alike, so two of them are enough."""
    one, two = (np.array(_counts(lambda n=n: build_entry(entry, num_layers=n))[1:]) for n in (1, 2))
    return _shown(*(one + (entry.config.num_layers - 1) * (two - one)))


def _counts(build):
    """(config of the model, parameters, MACs). Statistics of batch norms are not counted, as in papers."""
    with shapes_only():  # Counting needs no values.
        model = build()
        macs = keras_vit.profile(model).macs
    return keras_vit.describe(model).config, sum(math.prod(weight.shape) for weight in model.trainable_weights), macs


def _shown(parameters, macs):
    return f"{parameters / 1e6:,.2f} M", f"{macs / 1e9:,.2f}"


def _with_printed(rows):
    """Appends the numbers that papers print for the function in each row, if there are any."""
    names = [next(cell for cell in row if str(cell).startswith("`")) for row in rows]
    printed = [PRINTED.get(name.strip("`"), "") for name in names]
    return [(*row, number) for row, number in zip(rows, printed, strict=True)] if any(printed) else rows


def _markdown(columns, rows, num_left):
    """A table in Markdown. The first columns are left-aligned, and the others right-aligned."""
    columns = (*columns, "in the paper") if len(rows[0]) > len(columns) else columns
    return markdown_table(columns, rows, columns[num_left:])


# CLIP, OpenCLIP, DataComp, DFN, MetaCLIP (3), TinyCLIP, MobileCLIP2.
_CLIP = (
    *("2103.00020", "2212.07143", "2304.14108", "2309.17425", "2309.16671", "2410.17251", "2507.22062"),
    *("2309.12314", "2508.20691"),
)
_PLAIN, _HYBRIDS = (
    {variant: function_name(variant) for variant in keras_vit.VARIANTS if ("+" in variant) == is_hybrid}
    for is_hybrid in (False, True)
)
TABLES = {
    "vit": lambda: transformers(_PLAIN),
    "hybrids": lambda: transformers(_HYBRIDS),
    "deit": lambda: files("2012.12877"),
    "deit3": lambda: files("2204.07118"),
    "siglip": lambda: files("2303.15343"),
    "siglip2": lambda: files("2502.14786"),
    "flexivit": lambda: files("2212.08013"),
    "mae": lambda: files("2111.06377"),
    "dino": lambda: files("2104.14294"),
    "dinov2": lambda: files("2304.07193", "2309.16588"),
    "dinov3": lambda: files("2508.10104"),
    "dinov3_kin": lambda: files("2603.22387", "2607.05247"),
    "eva": lambda: files("2211.07636"),
    "eva02": lambda: files("2303.11331"),
    "eva_clip": lambda: files("2303.15389"),
    "perception_encoder": lambda: files("2504.13181"),
    "rope_vit": lambda: files("2403.13298"),
    "clip": lambda: files(*_CLIP),
    "tipsv2": lambda: files("2604.12012"),
    "tipsv2_dpt": lambda: with_heads("2604.12012"),
    "eomt": lambda: with_heads("2503.19108"),
    "depth_anything": lambda: with_heads("2401.10891", "2406.09414", "2511.10647"),
    "internvit": lambda: files("2410.16261", "2412.05271"),
    "mocov3": lambda: files("2104.02057"),
    "ijepa": lambda: files("2301.08243"),
    "timm": lambda: files(None),
    "axial_vit": lambda: transformers({"B/32": "AxialViTB32", "B/16": "AxialViTB16"}),
    "axial_resnet": lambda: convolutional(keras_vit, ["AxialResNet50"]),
    "bit": lambda: convolutional(keras_vit, bit_resnet.__all__[1:]),
    "resnet": lambda: convolutional(keras_vit, resnet.__all__[1:]),
    "visual_transformers": lambda: convolutional(keras_vit, [f"VTResNet{depth}" for depth in (18, 34, 50, 101)]),
    "segmentation": segmentation,
    "baselines": lambda: convolutional(baselines, [name for name in baselines.__all__ if re.search(r"\d", name)]),
}
"""{name of a table: function that returns it in Markdown}"""


if __name__ == "__main__":
    for title, table in TABLES.items():
        print(f"{title}\n\n{table()}\n")
