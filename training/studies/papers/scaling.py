"""Accuracy against compute for ViTs, hybrids and ResNets.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 5 and Table 6.
Command: python -m training study scaling
Not included: pre-training on JFT-300M, and fine-tuning to the paper's data sets.

For images of 128 pixels or more, the points are the models of Table 6. For smaller images, they are small models of the
same three families.
"""

from training.data.loading import load_dataset
from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.measures import MEASURES, measure
from training.studies.models import (
    has_large_images,
    learning_rates,
    require_plain_vit,
    resnet,
    small_hybrid,
    small_resnet,
    small_vit,
)
from training.studies.papers.data_size import counts, subset
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

_UNITS = (1e18, "exa"), (1e15, "peta"), (1e12, "tera"), (1e9, "giga")
WITH_ATTENTION = _VIT, _HYBRID = "ViT", "hybrid"
_RESNET = "ResNet"


def points(recipe):
    """The `training.studies.study.Point`s for a recipe."""
    if has_large_images(recipe):
        return _published_points()
    return [
        Point(series, label, changes) for series, models in _small(recipe).items() for label, changes in models.items()
    ]


def _published_points():
    table_points = []
    for row in published.read("vit_table6").rows:
        name, epochs = row["model"], int(row["epochs"])
        # The paper's warm-up of 10,000 steps would be longer than a training on ImageNet.
        duration = "fit.steps=none", f"fit.epochs={epochs}", "schedule.warmup=5%"
        if row["family"] == "ResNet":
            model = resnet(f"BiT{name}")
        else:
            variant = name.replace("R50x1+ViT-", "R50+").removeprefix("ViT-")
            model = "model.weights=none", f"model.config={variant}"
        table_points.append(Point(row["family"], f"{name}, {epochs} epochs", (*model, *duration)))
    return table_points


def _small(recipe):
    """{series: {label: changes}}. Of images of 32 pixels, the models of each series take about 6, 24 and 50 MMACs."""
    require_plain_vit(recipe)
    return {
        _VIT: {f"width {width}": small_vit(width) for width in (48, 96, 144)},
        _HYBRID: {
            "width 48": small_hybrid(recipe, 48, scale=1),
            "width 48, larger images": small_hybrid(recipe, 48),
            "width 96, larger images": small_hybrid(recipe, 96),
        },
        _RESNET: {f"stages {depths}": small_resnet(recipe, depths) for depths in ("1,1", "1,1,1", "3,3,3")},
    }


def rates(recipe):
    """Three learning rates of the model of middle size of each series, with a third of the training images."""
    if has_large_images(recipe):
        return {}
    total = load_dataset(recipe.data).source("train").size
    images = subset(counts(total)[-2], total)
    middle = {series: list(models.values())[1] for series, models in _small(recipe).items()}
    return {series: learning_rates(series, (*changes, *images)) for series, changes in middle.items()}


def comparisons(recipe):
    """At equal compute, a ViT is better than a ResNet, and a small hybrid is better than a ViT."""
    if has_large_images(recipe):
        return []
    vits, hybrids, resnets = ([(series, label) for label in models] for series, models in _small(recipe).items())
    return [
        Comparison("Middle size: the ViT is above the ResNet", vits[1], resnets[1]),
        Comparison("Large size: the ViT is above the ResNet", vits[2], resnets[2]),
        Comparison("Small size: the hybrid is above the ViT", hybrids[0], vits[0]),
        Comparison("Middle size: the hybrid is above the ViT", hybrids[1], vits[1]),
        Comparison("Large size: hybrid and ViT are equal", hybrids[2], vits[2], expected="tie"),
    ]


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
    measured = measured_panel(summaries, "flops", x_label, "Measured, from scratch", unit=unit)
    return plot_panels([measured, printed])


STUDY = Study(
    title="How does accuracy grow with compute?",
    paper="“An Image is Worth 16x16 Words”, section 4.4, Figure 5 and Table 6",
    claim="At the same compute, ViTs are better than ResNets: they need two to four times less compute for the same "
    "accuracy. Hybrids are slightly better than ViTs if the compute is small. For large models, the difference "
    "vanishes.",
    method="Three ViTs, three hybrids and three BiT-ResNets are trained from scratch on CIFAR-10, with the same number "
    "of steps. In each series, the models take about 6, 24 and 50 million multiply-accumulates per image (the smallest "
    "ResNet 17, the largest hybrid 41). ResNets and the larger hybrids get the images enlarged to 64 x 64 pixels.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
    measures=MEASURES,
    shown=(),
    measure=measure,
)
