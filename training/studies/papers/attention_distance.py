"""How far the tokens of a ViT and of a hybrid attend, in each block.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.5, Figures 7 (right) and 11.
Command: python -m training study attention_distance
"""

from training.studies.figures import Panel, plot_panels
from training.studies.measures import DISTANCE_NAMES, MEASURES, measure
from training.studies.papers import scaling
from training.studies.results import percentage
from training.studies.study import Comparison, Study


def points(recipe):
    """The ViTs and hybrids of the study `scaling`."""
    return [point for point in scaling.points(recipe) if point.series in scaling.WITH_ATTENTION]


def rates(recipe):
    return {series: points for series, points in scaling.rates(recipe).items() if series in scaling.WITH_ATTENTION}


def comparisons(recipe):
    """Distances grow with depth, and are larger in the first block of a hybrid."""
    models = [(point.series, point.label) for point in points(recipe)]
    (_, vit, _), (_, hybrid, _) = models[:3], models[3:]
    claim = "In the first block, the tokens of the hybrid attend farther than those of the ViT"
    return [Comparison(claim, hybrid, vit, column=DISTANCE_NAMES[1])]


def figure(summaries, folder):
    """The mean attention distance against the block."""
    series = {
        f"{summary.first.series}, {summary.first.point}": [
            percentage(summary, block, column) for block, column in DISTANCE_NAMES.items()
        ]
        for summary in summaries
    }
    return plot_panels(
        [Panel("Measured: 128 test images", "block", "mean attention distance (% of the height)", series)]
    )


STUDY = Study(
    title="How far do tokens attend?",
    paper="“An Image is Worth 16x16 Words”, section 4.5, Figures 7 (right) and 11",
    claim="In the lowest layers of a ViT, some heads attend to near tokens only. The distance grows with depth. In a "
    "hybrid, such local attention is less pronounced.",
    method="The mean attention distance of each block is measured in the ViTs and hybrids of the study "
    "[scaling](scaling.md), on 128 test images. It is a mean over heads, as a share of the image's height.",
    recipe=scaling.STUDY.recipe,
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
    measures=MEASURES,
    shown=tuple(DISTANCE_NAMES.values()),
    measure=measure,
)
