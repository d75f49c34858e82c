"""Accuracy against compute for ViTs, hybrids and ResNets.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 5 and Table 6.
Command: python -m training study scaling
Not included: pre-training on JFT-300M, and fine-tuning to the paper's data sets.

For images of 128 pixels or more, the points are the models of Table 6. For smaller images, they are small models of the
same three families.
"""

from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Point, Study

LARGE_IMAGE = 128  # Pixels. Smaller images are too small for the paper's patches and strides.
_UNITS = (1e18, "exa"), (1e15, "peta"), (1e12, "tera"), (1e9, "giga")
_VITS = ((24, 8), (48, 8), (96, 8), (48, 4))  # Width and patch size.
_HYBRIDS = ((24, 32), (48, 32), (48, 64))  # Width of the encoder and of the stem.
_RESNETS = ((32, "1,1"), (32, "1,1,1"), (64, "1,1,1"))  # Width, and number of units in each stage.


def points(recipe):
    """The `training.studies.study.Point`s for a recipe."""
    height, *_ = recipe.model.input_shape or (224,)
    return _published_points() if height >= LARGE_IMAGE else _small_points()


def _published_points():
    table_points = []
    for row in published.read("vit_table6").rows:
        name, epochs = row["model"], int(row["epochs"])
        duration = "fit.steps=none", f"fit.epochs={epochs}"
        if row["family"] == "ResNet":
            model = resnet(f"BiT{name}")
        else:
            variant = name.replace("R50x1+ViT-", "R50+").removeprefix("ViT-")
            model = "model.weights=none", f"model.config={variant}"
        table_points.append(Point(row["family"], f"{name}, {epochs} epochs", (*model, *duration)))
    return table_points


def _small_points():
    vits = [Point("ViT", f"{width}/{patch}", _vit(width, patch)) for width, patch in _VITS]
    hybrids = [
        Point("hybrid", f"R{stem}+{width}/8", (*_vit(width, 1), *stem_changes(stem))) for width, stem in _HYBRIDS
    ]
    resnets = [
        Point("ResNet", f"{depths.count('1')}x{width}", resnet("BiTResNet", f"stage_depths={depths}", f"width={width}"))
        for width, depths in _RESNETS
    ]
    return [*vits, *hybrids, *resnets]


def _vit(width, patch_size):
    return (
        f"model.config.hidden_dim={width}",
        f"model.config.mlp_dim={4 * width}",
        f"model.config.patch_size={patch_size}",
    )


def stem_changes(width):
    """Changes that add a small stem to a ViT: a ResNet with two stages of one unit."""
    return "model.config.stem.stage_depths=1,1", f"model.config.stem.width={width}"


def resnet(function, *arguments):
    """Changes that replace the ViT by a ResNet: the `function` of `keras_vit`, and its `arguments` (`name=value`)."""
    changes = (f"model.arguments.{argument}" for argument in arguments)
    scratch = "model.config=none", "model.weights=none", "model.attention_initialization=random"
    return (*scratch, f"model.function={function}", *changes)


def figure(summaries, folder):
    """The measured results beside the paper's Table 6."""
    series = {"ViT": [], "hybrid": [], "ResNet": []}
    for row in published.read("vit_table6").rows:
        short = row["model"].replace("R50x1+ViT-", "R50+").removeprefix("ViT-").replace("ResNet", "R")
        short += ", 14 epochs" if row["epochs"] == 14 and short != "H/14" else ""
        series[row["family"]].append(Value(row["exaflops"], row["ImageNet"], label=short))
    printed = Panel(
        "The paper's Table 6: pre-trained on JFT-300M for 7 epochs (H/14: 14), fine-tuned to ImageNet",
        "pre-training compute (exaFLOPs, as printed)",
        "ImageNet accuracy (%)",
        series,
    )
    largest = max(summary.first.flops for summary in summaries)
    unit, name = next((unit, name) for unit, name in _UNITS if largest >= unit or unit == _UNITS[-1][0])
    x_label = f"training compute ({name}FLOPs: 6 x MACs x images)"
    own = measured_panel(summaries, "flops", x_label, "Measured, from scratch", unit=unit)
    return plot_panels([own, printed])


STUDY = Study(
    title="How does accuracy grow with compute?",
    paper="Figure 5 and Table 6",
    changes=(*UNCHANGED_DIGITS, "fit.epochs=12"),
    points=points,
    figure=figure,
)
