"""How often predictions change when images are shifted, for a ViT and a ResNet.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 3.1 ("Inductive bias") and section 1.
Command: python -m training study translation
"""

from training.studies.figures import Panel, plot_panels
from training.studies.measures import MEASURES, SHIFT_NAMES, SHIFTS, measure
from training.studies.papers import data_size
from training.studies.results import percentage
from training.studies.study import Comparison, Study


def comparisons(recipe):
    """A ResNet changes fewer predictions than a ViT."""
    *_, (vit, label), (resnet, _) = ((point.series, point.label) for point in data_size.points(recipe))
    return [
        Comparison(
            f"With {label}, a shift by {shift} px changes fewer predictions of the ResNet",
            (resnet, label),
            (vit, label),
            column=SHIFT_NAMES[shift],
        )
        for shift in SHIFTS
    ]


def figure(summaries, folder):
    """The share of unchanged predictions against the shift, for the models that were trained with all images."""
    largest = max(summary.first.train_images for summary in summaries)
    series = {}
    for summary in summaries:
        if summary.first.train_images == largest:
            series[summary.first.series] = [percentage(summary, shift, SHIFT_NAMES[shift]) for shift in SHIFTS]
    title = f"Measured: 1,000 test images, models trained with {largest:,} images"
    return plot_panels([Panel(title, "shift (pixels of 32)", "unchanged predictions (%)", series)])


STUDY = Study(
    title="Do predictions change when an image is shifted?",
    paper="“An Image is Worth 16x16 Words”, sections 1 and 3.1",
    claim="Convolutions are equivariant to translation, and a Vision Transformer has much less of this inductive bias.",
    method="The models of the study [data_size](data_size.md) classify 1,000 test images, and the same images shifted "
    "by 1 to 8 pixels to the left, right, top or bottom, with mirrored edges. Counted are the predictions that stay "
    "the same, right or wrong. In training, images are shifted by up to 4 pixels.",
    recipe=data_size.STUDY.recipe,
    points=data_size.points,
    figure=figure,
    comparisons=comparisons,
    rates=data_size.rates,
    measures=MEASURES,
    shown=tuple(SHIFT_NAMES.values()),
    measure=measure,
)
