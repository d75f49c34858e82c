"""Fine-tuning on few labels after pre-training without labels, with labels, or not at all.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.6 and appendix B.1.2.
Command: python -m training study self_supervision
Not included: pre-training on JFT-300M and fine-tuning on ImageNet.
"""

from training.studies.figures import plot_panels
from training.studies.models import halves_of_classes, learning_rates, require_plain_vit, small_vit
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

_SHOTS = 50
_RATES = ("0.0003", "0.001", "0.003")
_NONE, _LABELS, _MASKED = "from scratch", "after supervised pre-training", "after masked patch prediction"
_TARGETS = {"mean_color": "mean color", "small_patch": "4 x 4 colors", "pixels": "pixels"}
_CORRUPTIONS = (0.15, 0.5)
_BEST = "mean color, 50 %"
"""The setting for which the paper gives its result."""


def _pretrainings(recipe):
    """{(series, label): the `Point` of the pre-training, or `None`}"""
    known, _ = halves_of_classes(recipe)
    model = (*small_vit(96), f"data.classes={','.join(known)}")
    points = {(_NONE, "none"): None, (_LABELS, "labels"): Point("pre-training", "labels", model)}
    for target, name in _TARGETS.items():
        for rate in _CORRUPTIONS:
            label = f"{name}, {rate:.0%}".replace("%", " %")
            settings = "task=pretraining", f"pretraining.target={target}", f"pretraining.mask_ratio={rate}"
            points[_MASKED, label] = Point("pre-training", label, (*model, *settings))
    return points


def _fine_tuning(recipe, initial):
    """The changes to the recipe of a fine-tuning. `initial`: the `Point` of the pre-training, or `None`."""
    _, new = halves_of_classes(recipe)
    images = f"data.classes={','.join(new)}", f"data.train_images={_SHOTS * len(new)}", "fit.steps=500"
    return (*small_vit(96), *images) if initial is None else images


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: a fine-tuning after each kind of pre-training."""
    require_plain_vit(recipe)
    return [
        Point(series, label, _fine_tuning(recipe, initial), initial)
        for (series, label), initial in _pretrainings(recipe).items()
    ]


def rates(recipe):
    """Three learning rates of the fine-tuning from scratch, after supervision and after the paper's best setting."""
    return {
        series: learning_rates(series, _fine_tuning(recipe, initial), _RATES, initial)
        for (series, label), initial in _pretrainings(recipe).items()
        if series != _MASKED or label == _BEST
    }


def comparisons(recipe):
    """Masked patch prediction is above scratch and below supervision. The paper's best setting is above others."""
    masked = _MASKED, _BEST
    return [
        Comparison("Masked patch prediction is above training from scratch", masked, (_NONE, "none")),
        Comparison("Supervised pre-training is above masked patch prediction", (_LABELS, "labels"), masked),
        Comparison("50 % of the patches are better than 15 %", masked, (_MASKED, "mean color, 15 %")),
        Comparison("Mean colors are better than pixels", masked, (_MASKED, "pixels, 50 %")),
    ]


def figure(summaries, folder):
    """The accuracy after each kind of pre-training."""
    return plot_panels([measured_panel(summaries, "point", "pre-training", "Measured: fine-tuned on few labels")])


STUDY = Study(
    title="Does pre-training without labels help?",
    paper="“An Image is Worth 16x16 Words”, section 4.6 and appendix B.1.2",
    claim="With masked patch prediction, ViT-B/16 reaches 79.9 % on ImageNet, 2 points above training from scratch and "
    "4 points below supervised pre-training. All three targets work well, pixels slightly worse. A corruption of 15 % "
    "is slightly worse than one of 50 %.",
    method=f"A ViT with patches of 4 x 4 pixels is pre-trained on the images of five classes of CIFAR-10 (airplane, "
    f"bird, deer, frog, ship) by masked patch prediction or with labels, for the same number of steps. Then it is "
    f"fine-tuned for 500 steps on {5 * _SHOTS} images of the other five classes, about {_SHOTS} of each, as is a model "
    f"with random weights. The accuracy is that on the 5,000 test images of these classes.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
)
