"""Regression: an image has one number or several. Shapes: B batch, V values."""

import keras
import numpy as np
from keras import ops

import keras_vit
from training.evaluation.regression import evaluate
from training.reports.regression import write_regression_report
from training.reports.text import regression_text
from training.tasks import task


class Task(task.Task):
    """The task of predicting numbers.

    In training, the outputs of the model are values minus their mean, divided by their standard deviation. `finish`
    changes the last layer, so that the outputs are the values themselves.
    """

    metric = task.Metric("mean_absolute_error", "mean absolute error", is_share=False, is_higher_better=False)
    annotation = "values"
    predicted = "values"
    commands = ("plan", "records", "evaluate", "predict", "explain", "export")
    published_results = ("mean_absolute_error", "r_squared")

    def read_label(self, sample, num_classes):
        """The values, float32 (V,)."""
        return sample["values"]

    def label_text(self, annotation, class_names):
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(class_names, annotation, strict=True))

    def head_arguments(self, num_classes, with_logits):
        return {"classes": num_classes, "classifier_activation": None}

    def build_objective(self, learner, dataset):
        return StandardizedSquaredError(*dataset.scale)

    def build_metric(self, learner, dataset):
        return MeanAbsoluteError(*dataset.scale)

    def finish(self, model, dataset):
        mean, deviation = dataset.scale
        head = model.get_layer("predictions")
        kernel, bias = head.get_weights()
        head.set_weights([kernel * deviation, bias * deviation + mean])
        keras_vit.set_output(model, "values", names=dataset.class_names, units=dataset.units)

    def evaluate(self, model, dataset, splits):
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        return regression_text(evaluation)

    def results(self, evaluation):
        return {
            "test_mean_absolute_error": evaluation.mean_absolute_error,
            "test_r_squared": evaluation.r_squared,
            "test_images": len(evaluation.values),
        }

    def report(self, run, dataset, state, evaluation, model):
        write_regression_report(run, self.recipe, state, evaluation, model)
        return self.results(evaluation)

    def next_commands(self, folder, samples):
        return [f"predict {folder} {samples}/*", f"explain {folder}"]


class StandardizedSquaredError:
    """Squared error of standardised values, averaged over the values of an image.

    Args:
        mean, deviation: Means and standard deviations of the values, (V,).
    """

    def __init__(self, mean, deviation):
        self.mean, self.deviation = (np.asarray(array, "float32") for array in (mean, deviation))

    def __call__(self, labels, outputs):
        """The errors, float32 (B,), of values (B, V) and standardised outputs (B, V)."""
        targets = (ops.cast(labels, "float32") - self.mean) / self.deviation
        return ops.mean(ops.square(ops.cast(outputs, "float32") - targets), axis=-1)


class MeanAbsoluteError(keras.metrics.Mean):
    """Mean absolute error of the values of standardised outputs. Errors of several values are standardised, too.

    Args:
        mean, deviation: As in `StandardizedSquaredError`.
    """

    def __init__(self, mean, deviation, name="mean_absolute_error"):
        super().__init__(name=name)
        self._mean, self._deviation = (np.asarray(array, "float32") for array in (mean, deviation))

    def update_state(self, y_true, y_pred, sample_weight=None):
        targets = (ops.cast(y_true, "float32") - self._mean) / self._deviation
        scale = self._deviation if len(self._deviation) == 1 else 1.0  # Several values can have different units.
        errors = ops.mean(ops.abs(targets - ops.cast(y_pred, "float32")) * scale, axis=-1)
        super().update_state(errors, sample_weight)
