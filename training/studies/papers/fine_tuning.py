"""Fine-tuning with the best of several learning rates, on all images.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.1, Table 4 and appendix B.1.1.
Command: python -m training study fine_tuning recipe=finetune_pets

As in the paper, the learning rate is chosen on a part of the training images that is held out. The model is then
fine-tuned again on all of them.
"""

from training.errors import InputError
from training.studies.figures import plot_panels
from training.studies.models import learning_rates
from training.studies.results import measured_panel
from training.studies.study import Point, Study

RATES = {"imagenet2012": ("0.003", "0.01", "0.03", "0.06")}
"""{data set: learning rates of Table 4}. All other data sets have `OTHER_RATES`."""
OTHER_RATES = ("0.001", "0.003", "0.01", "0.03")
_SERIES = "fine-tuned"


def points(recipe):
    """The `training.studies.study.Point` for a recipe: a training on all images."""
    if recipe.model.weights is None or not recipe.data.validation_fraction:
        raise InputError(
            "The study 'fine_tuning' requires a recipe with model.weights and data.validation_fraction, such as "
            "recipe=finetune_pets."
        )
    return [Point(_SERIES, "all images", ("data.validation_fraction=0", "fit.final_weights=last"))]


def rates(recipe):
    """The learning rates of Table 4, with the held-out images of the recipe."""
    values = RATES.get(recipe.data.dataset, OTHER_RATES)
    return {_SERIES: learning_rates(_SERIES, (), values)}


def figure(summaries, folder):
    """The accuracy of the last training."""
    return plot_panels([measured_panel(summaries, "point", "training images", "Measured")])


STUDY = Study(
    title="Fine-tuning with the best learning rate",
    paper="“An Image is Worth 16x16 Words”, section 4.1, Table 4 and appendix B.1.1",
    claim="The learning rate is chosen on held-out training images. Then all training images are used.",
    points=points,
    figure=figure,
    recipe="finetune_cifar10",
    rates=rates,
)
