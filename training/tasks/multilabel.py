"""Multi-label classification: an image can have several labels, or none. Shapes: B batch, L labels."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from training.evaluation.multilabel import evaluate
from training.reports.multilabel import write_multilabel_report
from training.reports.text import multilabel_text
from training.tasks import task
from training.tasks.losses import SigmoidCrossEntropy


class Task(task.Task):
    """The task of predicting which labels an image has."""

    metric = task.Metric("mean_average_precision", "mean average precision")
    annotation = "labels"
    predicted = "labels"
    commands = ("plan", "records", "evaluate", "predict", "explain", "export")
    published_results = ("mean_average_precision", "f1")

    def read_label(self, sample, num_classes):
        """Float32 (L,): 1 for each label of the image, 0 for the others."""
        return tf.cast(sample["labels"], tf.float32)

    def label_text(self, annotation, class_names):
        return ", ".join(class_names[index] for index in np.flatnonzero(annotation)) or "no label"

    def head_arguments(self, num_classes, with_logits):
        return {"classes": num_classes, "classifier_activation": None if with_logits else "sigmoid"}

    def build_objective(self, learner, dataset):
        return SigmoidCrossEntropy(self.recipe.fit.label_smoothing)

    def build_metric(self, learner, dataset):
        return MeanAveragePrecision(len(dataset.class_names), name=self.metric.name)

    def evaluate(self, model, dataset, splits):
        return evaluate(model, dataset, splits, self.recipe)

    def evaluation_text(self, evaluation):
        return multilabel_text(evaluation)

    def results(self, evaluation):
        return {
            "test_mean_average_precision": evaluation.mean_average_precision,
            "test_f1": evaluation.f1,
            "test_exact": evaluation.exact,
            "test_loss": evaluation.loss,
            "test_images": len(evaluation.labels),
        }

    def report(self, run, dataset, state, evaluation, model):
        write_multilabel_report(run, self.recipe, state, evaluation, model)
        return self.results(evaluation)

    def next_commands(self, folder, samples):
        return [f"predict {folder} {samples}/*", f"explain {folder}"]


class MeanAveragePrecision(keras.metrics.Metric):
    """Mean over the labels of the average precision, from counts in 200 ranges of the probability.

    The counts of several replicas can be added. Probabilities in the same range have the same rank, so the result
    differs from the exact one of `training.evaluation.multilabel` in the third decimal place.

    Args:
        num_labels: Number L of labels.
    """

    NUM_BINS = 200

    def __init__(self, num_labels, name="mean_average_precision"):
        super().__init__(name=name)
        # Numbers of images with and without each label, by the range of the probability.
        self.counts = self.add_variable((2, num_labels, self.NUM_BINS), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch of labels (B, L) and logits (B, L). Images of weight 0 are not counted."""
        probabilities = ops.sigmoid(ops.cast(y_pred, "float32"))
        bins = ops.one_hot(ops.cast(probabilities * (self.NUM_BINS - 1e-3), "int32"), self.NUM_BINS)  # (B, L, bins)
        truths = ops.cast(y_true > 0, "float32")
        known = ops.ones_like(truths[:, :1]) if sample_weight is None else ops.cast(sample_weight > 0, "float32")
        shares = ops.stack([truths, 1 - truths]) * ops.reshape(known, (1, -1, 1))  # (2, B, L)
        self.counts.assign(self.counts + ops.einsum("sbl,blk->slk", shares, bins))

    def result(self):
        # From the highest probability down: right and all images, and the precision at the end of each range.
        right, wrong = (ops.cumsum(ops.flip(self.counts[row], axis=-1), axis=-1) for row in (0, 1))
        precision = right / ops.maximum(right + wrong, 1)
        total = right[:, -1:]
        gained = ops.concatenate([right[:, :1], right[:, 1:] - right[:, :-1]], axis=-1)
        scores = ops.sum(gained * precision, axis=-1) / ops.maximum(total[:, 0], 1)
        occurs = ops.cast(total[:, 0] > 0, "float32")
        return ops.sum(scores * occurs) / ops.maximum(ops.sum(occurs), 1)
