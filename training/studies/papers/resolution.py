"""Fine-tuning at a higher resolution than in the pre-training.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 3.2.
Command: python -m training study resolution
Not included: pre-training on other images than those of the fine-tuning.
"""

from training.studies.figures import plot_panels
from training.studies.models import image_shape, learning_rates, require_plain_vit, small_vit
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

_BEFORE, _AFTER = "pre-trained", "fine-tuned at {} pixels"
_RATES = ("0.0001", "0.0003", "0.001")


def _sizes(recipe):
    """Half the height of the recipe's images, and the whole height."""
    require_plain_vit(recipe)
    height, _, channels = image_shape(recipe)
    return {size: f"model.input_shape={size},{size},{channels}" for size in (height // 2, height)}


def _pretrained(recipe):
    small, *_ = _sizes(recipe)
    return Point(_BEFORE, f"{small} pixels", (*small_vit(96), _sizes(recipe)[small]))


def _fine_tuning(recipe, size):
    return (_sizes(recipe)[size], "fit.steps=1000")


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: the pre-training, and a fine-tuning at each size."""
    before = _pretrained(recipe)
    return [
        before,
        *(Point(_AFTER.format(size), f"{size} pixels", _fine_tuning(recipe, size), before) for size in _sizes(recipe)),
    ]


def rates(recipe):
    """Three learning rates of each fine-tuning."""
    return {
        series: learning_rates(series, _fine_tuning(recipe, size), _RATES, _pretrained(recipe))
        for size in _sizes(recipe)
        for series in [_AFTER.format(size)]
    }


def comparisons(recipe):
    """The higher resolution is better."""
    (small, small_name), (large, large_name) = ((size, _AFTER.format(size)) for size in _sizes(recipe))
    claim = f"After pre-training at {small} pixels, fine-tuning at {large} pixels is above that at {small} pixels"
    return [Comparison(claim, (large_name, f"{large} pixels"), (small_name, f"{small} pixels"))]


def figure(summaries, folder):
    """The accuracy of each training."""
    return plot_panels([measured_panel(summaries, "point", "size of the images", "Measured")])


STUDY = Study(
    title="Does a higher resolution help in fine-tuning?",
    paper="“An Image is Worth 16x16 Words”, section 3.2",
    claim="It is often beneficial to fine-tune at a higher resolution than in the pre-training, with the same patch "
    "size and interpolated positions.",
    method="A ViT with patches of 4 x 4 pixels is pre-trained on CIFAR-10 at 16 x 16 pixels, to which the images are "
    "reduced. Then it is fine-tuned with the same number of steps on images of 32 x 32 pixels, or again of 16 x 16.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
)
