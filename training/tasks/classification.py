"""Classification: an image has one class or several. Shapes: B batch, H W C image."""

import re

import keras
import numpy as np

from training.data.augment import Augmentation, build_augmentation
from training.data.images import image_suffix
from training.data.loading import load_dataset
from training.data.subsets import multi_hot
from training.evaluation.classification import evaluate, nearest_neighbour_accuracy
from training.reports.classification import write_report
from training.reports.text import classification_text
from training.tasks.losses import Objective

NUM_SAMPLES = 8


class Task:
    """The task of classifying whole images.

    Args:
        recipe: `training.recipe.config.Recipe`

    Attributes:
        metric: Name of the metric in the history. The best weights are those with its highest value.
        has_predictions: Whether the model predicts something that can be served, so that a run exports it.
    """

    metric = "accuracy"
    has_predictions = True

    def __init__(self, recipe):
        self.recipe = recipe

    def load(self, disjoint=True, record=None):
        """The `training.data.dataset.Dataset` of the recipe. A label is a class index or an array of class indices."""
        return load_dataset(self.recipe.data, disjoint, record)

    def read_label(self, label, image, num_classes):
        """The label of an image in a batch: multi-hot (classes,)."""
        return multi_hot(label, num_classes)

    def build_changes(self, model, num_classes):
        """Builds the `training.data.augment.Augmentation` of training images and their labels.

        The result of `decode(image_bytes, label)` may be cached. `change(image, label, seed)` returns the changed image
        and its label vector. `mix` mixes the images and labels of a batch.
        """
        image_augmentation = build_augmentation(model, self.recipe.augment)

        def decode(image_bytes, label):
            return image_augmentation.decode(image_bytes), label

        def change(decoded, label, seed):
            return image_augmentation.change(decoded, seed), self.read_label(label, None, num_classes)

        return Augmentation(decode, change, image_augmentation.mix)

    def build_learner(self, model):
        """The model that learns: `model`, or a model that contains it. Its outputs are passed to loss and metric."""
        return model

    def build_objective(self, learner):
        """Builds a function that computes the loss of each image from labels, logits and, if used, teacher logits."""
        return Objective(self.recipe)

    def build_metric(self, learner, num_classes):
        """Builds a Keras metric of labels and logits."""
        return keras.metrics.CategoricalAccuracy(name=self.metric)

    def evaluate(self, model, dataset, splits):
        """The `training.evaluation.classification.Classification` of a model on one split or several."""
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        """Describes an evaluation in lines of text."""
        return classification_text(evaluation)

    def write_samples(self, dataset, run):
        """Writes one test image of each class, for at most `NUM_SAMPLES` classes. Returns the paths.

        The files are named after the classes. If an image has several right classes, only the first one is used.
        """
        first = {}
        for example in dataset.splits["test"].in_order().as_numpy_iterator():
            for label in np.atleast_1d(example["label"])[:1].tolist():
                first.setdefault(label, example["image"])
            if len(first) == min(NUM_SAMPLES, len(dataset.class_names)):
                break
        paths = []
        for label, image in sorted(first.items()):
            name = re.sub(r"[^-\w]+", "_", dataset.class_names[label])
            paths.append(run.samples / f"{label}-{name}{image_suffix(image)}")
            paths[-1].write_bytes(image)
        return paths

    def results(self, evaluation):
        """The numbers of an evaluation on test images, for a run's `recipe.json`."""
        return {
            f"test_{self.metric}": evaluation.accuracy,
            "test_loss": evaluation.loss,
            "test_images": len(evaluation.labels),
        }

    def report(self, run, dataset, state, evaluation, model):
        """Writes the report of a run. Returns the test results for its `recipe.json`."""
        neighbour = nearest_neighbour_accuracy(model, dataset, self.recipe)
        write_report(run, self.recipe, state, evaluation, neighbour, model)
        return self.results(evaluation) | {"nearest_neighbour_accuracy": neighbour}

    def predict_options(self, run):
        """Options of the command `predict`, which a run calls for its sample images after the training."""
        return ("--top", "1")
