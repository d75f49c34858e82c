"""Adam or SGD for the same BiT-ResNet with the same initial weights.

Paper: Dosovitskiy et al., arXiv 2010.11929, Table 7 (appendix D.1).
Command: python -m training study optimizers
Not included: JFT-300M, and fine-tuning to the paper's data sets. The paper's SGD has the settings of BiT
(arXiv 1912.11370). This study tries several learning rates for each optimizer instead.
"""

from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.models import has_large_images, resnet
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Comparison, Point, Study

# {series: (changes, learning rates)}
OPTIMIZERS = {
    "Adam": (("optimizer.kind=adamw", "optimizer.weight_decay=0.1"), (3e-4, 1e-3, 3e-3)),
    "SGD": (("optimizer.kind=sgd", "optimizer.weight_decay=1e-4"), (1e-2, 3e-2, 1e-1)),
}


def points(recipe):
    """The `training.studies.study.Point`s for a recipe."""
    model = resnet("BiTResNet50x1")
    if not has_large_images(recipe):
        model = resnet("BiTResNet", "stage_depths=1,1,1", "width=32")
    return [
        Point(name, f"{rate:g}", (*model, *changes, "optimizer.momentum=0.9", f"optimizer.learning_rate={rate}"))
        for name, (changes, rates) in OPTIMIZERS.items()
        for rate in rates
    ]


def comparisons(recipe):
    """Adam is better than SGD."""
    adam, sgd = OPTIMIZERS
    return [Comparison("At the best learning rate of each, Adam is above SGD", (adam, None), (sgd, None))]


def figure(summaries, folder):
    """The measured results beside the means of the paper's Table 7."""
    series = {}
    for row in published.read("vit_table7").rows:
        series.setdefault(row["optimizer"], []).append(Value(row["model"], row["mean"]))
    measured = measured_panel(summaries, "learning_rate", "peak learning rate", "Measured, from scratch")
    printed = Panel(
        "The paper's Table 7: pre-trained on JFT-300M, fine-tuned",
        "model",
        "mean accuracy on five data sets (%)",
        series,
    )
    return plot_panels([measured, printed])


STUDY = Study(
    title="Adam or SGD for a ResNet?",
    paper="“An Image is Worth 16x16 Words”, appendix D.1, Table 7",
    claim="After fine-tuning, ResNets that were pre-trained with Adam are better than those pre-trained with SGD.",
    method="A BiT-ResNet with three units of 32 to 128 channels is trained from scratch on 1,293 images of digits, "
    "with three learning rates of each optimizer. It is not fine-tuned.",
    comparisons=comparisons,
    changes=(*UNCHANGED_DIGITS, "fit.epochs=10"),
    points=points,
    figure=figure,
)
