"""Accuracy against the number of training images, for ViTs and a ResNet.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.3, Figures 3 and 4 and Table 5.
Command: python -m training study data_size
Not included: subsets of JFT-300M (9 to 300 million images). The study `pretraining_size` measures few-shot accuracies.

As in the paper, the images are a random subset, and only the number of images changes. Each run takes the same number
of steps. As in early stopping, the weights with the best validation accuracy are used. The models are the paper's for
images of 128 pixels or more, and small ones for smaller images.
"""

from training.reports import published
from training.studies.figures import Panel, Value, plot_panels
from training.studies.measures import MEASURES, measure
from training.studies.models import (
    classes_and_size,
    has_large_images,
    learning_rates,
    require_plain_vit,
    resnet,
    small_resnet,
    small_vit,
)
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

FRACTIONS = (1 / 45, 4 / 45, 1 / 3, 1)
"""Fractions of the training images. Of CIFAR-10: 1,000, 4,000, 15,000 and 45,000 images."""
_LARGE = {f"ViT-{name}": ("model.weights=none", f"model.config={name}") for name in ("B/16", "B/32", "L/16", "L/32")}
_LARGE["ResNet50x1"] = resnet("BiTResNet50x1")
SMALL_VIT, LARGE_VIT, RESNET = "ViT, width 48", "ViT, width 96", "BiT-ResNet"


def small_models(recipe):
    """{series: changes} of two small ViTs and of a BiT-ResNet, which gets the images twice as large.

    An image of 32 pixels takes 6.6, 22.7 and 24.7 million multiply-accumulates.
    """
    require_plain_vit(recipe)
    return {SMALL_VIT: small_vit(48), LARGE_VIT: small_vit(96), RESNET: small_resnet(recipe, "1,1,1")}


def subset(count, total):
    """Changes that select `count` of `total` training images."""
    return () if count == total else (f"data.train_images={count}",)


def _models(recipe):
    return _LARGE if has_large_images(recipe) else small_models(recipe)


def counts(total, fractions=FRACTIONS):
    """Numbers of training images."""
    return sorted({max(round(fraction * total), 1) for fraction in fractions})


def _total(recipe):
    return classes_and_size(recipe.data)[1]


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: each model with several fractions of the training images."""
    total = _total(recipe)
    return [
        Point(name, f"{count:,} images", (*changes, *subset(count, total)))
        for count in counts(total)
        for name, changes in _models(recipe).items()
    ]


def rates(recipe):
    """Three learning rates of each model, with a third of the training images."""
    total = _total(recipe)
    images = subset(counts(total)[-2], total)
    return {name: learning_rates(name, (*changes, *images)) for name, changes in _models(recipe).items()}


def comparisons(recipe):
    """The ResNet is better on few images. Whether a ViT is better on many is asked, too."""
    few, *_, many = (f"{count:,} images" for count in counts(_total(recipe)))
    *_, vit, resnet_name = _models(recipe)
    return [
        Comparison(f"With {few}, the ResNet is above the ViT", (resnet_name, few), (vit, few)),
        Comparison(f"With {many}, the ViT is above the ResNet", (vit, many), (resnet_name, many)),
    ]


def figure(summaries, folder):
    """The measured results beside the paper's Table 5."""
    table = published.read("vit_table5")
    models = [name for name in table.rows[0] if name not in ("pretraining", "images")]
    printed = Panel(
        "The paper's Table 5: pre-trained on ImageNet, ImageNet-21k and JFT-300M",
        "pre-training images (millions)",
        "ImageNet accuracy (%)",
        {
            f"ViT-{model}": [Value(row["images"] / 1e6, row[model]) for row in table.rows if row[model] is not None]
            for model in models
        },
    )
    measured = measured_panel(summaries, "train_images", "training images", "Measured, from scratch on random subsets")
    return plot_panels([measured, printed])


STUDY = Study(
    title="How many images does a model need?",
    paper="“An Image is Worth 16x16 Words”, section 4.3, Figures 3 and 4 and Table 5",
    claim="On small data sets, a ViT is below a ResNet of its size, although regularised. On large ones it is above, "
    "because the inductive bias of convolutions helps only on small data sets.",
    method="Two ViTs with patches of 4 x 4 pixels and a BiT-ResNet are trained from scratch on random subsets of "
    "CIFAR-10, with the same number of steps. The ResNet gets the images enlarged to 64 x 64 pixels. The weights "
    "with the best accuracy on 5,000 validation images are tested on 10,000 images. The larger ViT takes 22.7 "
    "million multiply-accumulates, and the ResNet 24.7 million.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
    measures=MEASURES,
    shown=(),
    measure=measure,
)
