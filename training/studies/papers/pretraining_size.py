"""Few-shot accuracy on new classes against the number of pre-training images, for ViTs and a ResNet.

Paper: Dosovitskiy et al., arXiv 2010.11929, section 4.3, Figure 4.
Command: python -m training study pretraining_size
Not included: pre-training on JFT-300M, and 5-shot accuracy on ImageNet.

The models are trained to classify one half of the classes. As in the paper, a linear classifier is then fitted in
closed form to the frozen features of a few images of each new class. The new classes are the other half.
"""

import dataclasses

import numpy as np

from training.data.loading import load_dataset
from training.data.subsets import read_labels
from training.evaluation.fewshot import choose_shots, fewshot_accuracy
from training.evaluation.outputs import features, features_of_some
from training.studies.figures import plot_panels
from training.studies.models import classes_and_size, halves_of_classes, learning_rates
from training.studies.papers.data_size import LARGE_VIT, RESNET, counts, small_models, subset
from training.studies.results import measured_panel
from training.studies.study import Comparison, Point, Study

FRACTIONS = (1 / 22.5, 5 / 22.5, 1)
"""Fractions of the training images. Of five classes of CIFAR-10: about 1,000, 5,000 and 22,500 images."""
SHOTS = (5, 25)
MEASURES = tuple(f"{shots}-shot" for shots in SHOTS)
_NUM_SEEDS = 10
"""Number of random choices of the images of the new classes."""


def _counts(recipe, classes):
    _, size = classes_and_size(dataclasses.replace(recipe.data, classes=classes))
    return counts(size, FRACTIONS)


def points(recipe):
    """The `training.studies.study.Point`s for a recipe: each model with several fractions of the training images."""
    classes, _ = halves_of_classes(recipe)
    *_, total = numbers = _counts(recipe, classes)
    return [
        Point(name, f"{count:,} images", (*changes, _classes(classes), *subset(count, total)))
        for count in numbers
        for name, changes in small_models(recipe).items()
    ]


def rates(recipe):
    """Three learning rates of each model, with all images."""
    classes, _ = halves_of_classes(recipe)
    return {name: learning_rates(name, (*changes, _classes(classes))) for name, changes in small_models(recipe).items()}


def _classes(names):
    return f"data.classes={','.join(names)}"


def measure(model, recipe):
    """Few-shot accuracies of a trained model on the other classes, means over random choices of the images."""
    names = load_dataset(dataclasses.replace(recipe.data, classes=None, train_images=None)).class_names
    others = tuple(name for name in names if name not in recipe.data.classes)
    dataset = load_dataset(dataclasses.replace(recipe.data, classes=others, train_images=None, train_images_seed=0))
    train, test = dataset.source("train"), dataset.source("test")
    labels, test_labels = read_labels(train, "the train split"), read_labels(test, "the test split")
    needed = np.unique(np.concatenate([choose_shots(labels, max(SHOTS), seed) for seed in range(_NUM_SEEDS)]))
    accuracies = fewshot_accuracy(
        *(features_of_some(model, train, recipe, needed), labels, features(model, test, recipe), test_labels),
        shots=SHOTS,
        seeds=range(_NUM_SEEDS),
    )
    return {name: float(accuracies[shots].mean()) for name, shots in zip(MEASURES, SHOTS, strict=True)}


def comparisons(recipe):
    """The ResNet is better after few images. Whether a ViT is better after many is asked, too."""
    few, _, many = (f"{count:,} images" for count in _counts(recipe, halves_of_classes(recipe)[0]))
    return [
        comparison
        for column in MEASURES
        for comparison in (
            Comparison(f"After {few}, {column}: the ResNet is above the ViT", (RESNET, few), (LARGE_VIT, few), column),
            Comparison(
                f"After {many}, {column}: the ViT is above the ResNet", (LARGE_VIT, many), (RESNET, many), column
            ),
        )
    ]


def figure(summaries, folder):
    """Few-shot accuracies against the number of pre-training images."""
    return plot_panels(
        [
            measured_panel(
                summaries,
                "train_images",
                "pre-training images",
                f"Measured: {column} accuracy on five new classes",
                column=column,
                y_label=f"{column} accuracy (%)",
            )
            for column in MEASURES
        ]
    )


STUDY = Study(
    title="How many images does a pre-training need?",
    paper="“An Image is Worth 16x16 Words”, section 4.3, Figure 4",
    claim="After pre-training on few images, the frozen features of a ResNet classify new images better than those of a"
    " ViT. After pre-training on many images, those of a ViT are better, because ResNets stop improving earlier.",
    method="The models of the study [data_size](data_size.md) are trained to classify five classes of CIFAR-10 "
    "(airplane, bird, deer, frog, ship) with random subsets of their images, with the same number of steps. A "
    "linear classifier is then fitted in closed form to the frozen features of 5 or 25 images of each of the "
    "other five classes. Its accuracy on 5,000 test images is a mean over ten random choices of these images.",
    recipe="cifar10_study",
    points=points,
    figure=figure,
    comparisons=comparisons,
    rates=rates,
    measures=MEASURES,
    measure=measure,
)
