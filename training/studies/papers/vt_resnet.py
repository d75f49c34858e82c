"""A VT-ResNet beside the ResNet that it changes.

Paper: Wu et al., "Visual Transformers", arXiv 2006.03677, Tables 1 and 8.
Command: python -m training study vt_resnet
Not included: ImageNet, the published sizes, and the paper's stronger recipe (`pretrain_imagenet_vt_r18_advanced`).
"""

from training.studies.figures import plot_panels
from training.studies.models import learning_rates, resnet_of_vt, small_vt_resnet
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

_SIZE = 160  # Pixels. The modules get maps of 10 x 10, from which they compute 16 tokens.
_RESNET, _VT = "ResNet", "VT-ResNet"


def points(recipe):
    """The `training.studies.study.Point`s for a recipe, one for each model."""
    return [Point(name, f"{_SIZE} pixels", changes) for name, changes in _models().items()]


def _models():
    return {_RESNET: resnet_of_vt(_SIZE), _VT: small_vt_resnet(_SIZE)}


def rates(recipe):
    """Three learning rates of each model."""
    return {name: learning_rates(name, changes) for name, changes in _models().items()}


def comparisons(recipe):
    """The VT-ResNet is above the ResNet."""
    label = f"{_SIZE} pixels"
    return [Comparison("The VT-ResNet is above the ResNet", (_VT, label), (_RESNET, label))]


def figure(summaries, folder):
    """Accuracy against compute."""
    note = (
        "In the paper's Table 8, VT-ResNets of 18 and 34 layers are 3.0 and 2.2 points above ResNets with the same "
        "recipe on ImageNet, with fewer FLOPs."
    )
    return plot_panels([measured_panel(summaries, "gmacs", "GMACs per image", "Measured, from scratch", note)])


STUDY = Study(
    title="Do visual tokens improve a ResNet?",
    paper="“Visual Transformers”, Tables 1 and 8",
    claim="If token modules replace the last stage of a ResNet, the accuracy on ImageNet increases, and the compute "
    "decreases.",
    method="A ResNet with four stages of two units and 16 to 128 channels is trained from scratch on 15,000 images of "
    "CIFAR-10, enlarged to 160 x 160 pixels, for 20 epochs. So is the VT-ResNet in which two modules of 16 tokens "
    "replace the last stage. An image takes 69.1 million multiply-accumulates in the ResNet, and 65.5 million in the "
    "VT-ResNet.",
    recipe="cifar10_study",
    changes=("data.train_images=15000", "fit.epochs=20"),
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
)
