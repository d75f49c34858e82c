"""Class token or average pooling, at several learning rates.

Paper: Dosovitskiy et al., arXiv 2010.11929, Figure 9 (appendix D.3), which has no numbers. Both poolings work
similarly well, but need different learning rates.
Command: python -m training study pooling
Not included: JFT-300M, and 5-shot accuracy on ImageNet.
"""

from training.errors import InputError
from training.studies.figures import plot_panels
from training.studies.results import measured_panel
from training.studies.study import UNCHANGED_DIGITS, Comparison, Point, Study

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2)
SERIES = {"class token": "token", "average pooling": "avg"}


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: both poolings, with multiples of the recipe's rate."""
    if recipe.model.config is None:
        raise InputError("The study 'pooling' requires a recipe with a model.config.")
    rates = [f"{factor * recipe.optimizer.learning_rate:.3g}" for factor in FACTORS]
    variants = []
    for name, pooling in SERIES.items():
        config = f"model.config.pooling={pooling}", "model.config.class_token=none"
        variants += [Point(name, rate, (*config, f"optimizer.learning_rate={rate}")) for rate in rates]
    return variants


def comparisons(recipe):
    """With a learning rate of its own, average pooling is as good as a class token."""
    (token, average), claim = SERIES, "At the best learning rate of each, both are equal"
    return [Comparison(claim, (token, None), (average, None), expected="tie")]


def figure(summaries, folder):
    """Accuracy against the learning rate."""
    note = (
        "In the paper's Figure 9, which has no numbers, both poolings work similarly well at different learning rates."
    )
    return plot_panels(
        [measured_panel(summaries, "learning_rate", "peak learning rate", "Measured, from scratch", note)]
    )


STUDY = Study(
    title="Is a class token needed?",
    paper="“An Image is Worth 16x16 Words”, appendix D.3, Figure 9",
    claim="Average pooling works as well as a class token, but needs another learning rate.",
    method="A ViT is trained from scratch on 1,293 images of digits, with a class token or average pooling, at five "
    "learning rates.",
    comparisons=comparisons,
    changes=(*UNCHANGED_DIGITS, "fit.epochs=12"),
    points=points,
    figure=figure,
)
