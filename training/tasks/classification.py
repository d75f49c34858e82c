"""Classification: an image has one class or several. Shapes: B batch, H W C image."""

import re

import keras
import numpy as np

from training.data.images import image_suffix
from training.data.subsets import multi_hot
from training.evaluation.classification import evaluate, nearest_neighbour_accuracy
from training.reports.classification import write_report
from training.reports.text import classification_text
from training.tasks import task
from training.tasks.losses import Objective


class Task(task.Task):
    """The task of classifying whole images. A label is a class index or an array of class indices."""

    metric = task.Metric("accuracy", "accuracy")
    annotation = "label"
    commands: tuple[str, ...] = ("plan", "records", "evaluate", "fewshot", "duplicates", "predict", "explain", "export")
    published_results: tuple[str, ...] = ("accuracy",)

    def read_label(self, sample, num_classes):
        """Multi-hot, (classes,)."""
        return multi_hot(sample["label"], num_classes)

    def head_arguments(self, num_classes, with_logits):
        return {"classes": num_classes, "classifier_activation": None if with_logits else self.recipe.fit.loss}

    def build_objective(self, learner, dataset):
        return Objective(self.recipe)

    def build_metric(self, learner, dataset):
        return keras.metrics.CategoricalAccuracy(name=self.metric.name)

    def evaluate(self, model, dataset, splits):
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        return classification_text(evaluation)

    def write_samples(self, dataset, run):
        """Writes one test image of each class, for at most `task.NUM_SAMPLES` classes. Returns the paths.

        The files are named after the classes. If an image has several right classes, only the first one is used.
        """
        first = {}
        for example in dataset.splits["test"].in_order().as_numpy_iterator():
            for label in np.atleast_1d(example["label"])[:1].tolist():
                first.setdefault(label, example["image"])
            if len(first) == min(task.NUM_SAMPLES, len(dataset.class_names)):
                break
        paths = []
        for label, image in sorted(first.items()):
            name = re.sub(r"[^-\w]+", "_", dataset.class_names[label])
            paths.append(run.samples / f"{label}-{name}{image_suffix(image)}")
            paths[-1].write_bytes(image)
        return paths

    def results(self, evaluation):
        return {
            "test_accuracy": evaluation.accuracy,
            "test_loss": evaluation.loss,
            "test_images": len(evaluation.labels),
        }

    def report(self, run, dataset, state, evaluation, model):
        neighbour = nearest_neighbour_accuracy(model, dataset, self.recipe)
        write_report(run, self.recipe, state, evaluation, neighbour, model)
        return self.results(evaluation) | {"nearest_neighbour_accuracy": neighbour}

    def predict_options(self, run):
        return ("--top", "1")

    def next_commands(self, folder, samples):
        commands = [f"predict {folder} {samples}/*", f"explain {folder}"]
        if self.recipe.data.directory is None:
            commands.append("train folder data.directory=path/to/your/photographs")
        return commands
