"""Estimation of depth: each pixel has a distance. Shapes: B batch, H W image."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import describe
from training.errors import InputError
from training.evaluation.depth import evaluate
from training.reports.depth import write_depth_report
from training.reports.text import depth_text
from training.tasks import task
from training.tasks.depth_losses import AbsRel, ScaleShiftInvariantLoss, SiLogLoss

_NUM_CHECKED = 8  # Number of images whose depth is checked before the training.
_LIMITS = (1e-3, 100.0)  # In metres, if the model has no limits.


class Task(task.DenseTask):
    """The task of estimating depth.

    The labels of a batch are depths, float32 (B, H, W, 1). 0 is unknown. In training, depths that the model cannot
    return are unknown, too.
    """

    metric = task.Metric("abs_rel", "AbsRel", is_higher_better=False)
    annotation = "depth"
    predicted = "values"
    commands = ("evaluate", "predict", "export")
    published_results = ("abs_rel", "rmse", "delta_1")
    factory, output = "DepthEstimator", "depth"
    max_depth = None

    def read_label(self, sample, num_classes):
        """float32 (H, W, 1)"""
        depth = sample["depth"]
        return depth if self.max_depth is None else tf.where(depth < self.max_depth, depth, 0.0)

    def head_arguments(self, num_classes, with_logits):
        return {}

    def prepare(self, model, total_steps):
        self.max_depth = _is_relative_and_limits(model)[1][1]

    def build_objective(self, learner, dataset):
        is_relative, limits = _is_relative_and_limits(learner)
        _check_depth(dataset, *limits)
        return ScaleShiftInvariantLoss() if is_relative else SiLogLoss()

    def build_metric(self, learner, dataset):
        is_relative, limits = _is_relative_and_limits(learner)
        return AbsRel(limits[1] if is_relative else None, name=self.metric.name)

    def finish(self, model, dataset):
        """The layers and the config of the model say what its output means."""

    def evaluate(self, model, dataset, splits):
        is_relative, limits = _is_relative_and_limits(model)
        return evaluate(model, dataset, splits, self.recipe, limits, is_relative)

    def evaluation_text(self, evaluation):
        return depth_text(evaluation)

    def results(self, evaluation):
        names = {"AbsRel": "abs_rel", "RMSE": "rmse", "δ1": "delta_1"}
        _, means = evaluation.main
        scores = {f"test_{name}": means[error] for error, name in names.items()}
        return scores | {"test_constant_abs_rel": evaluation.constant[1], "test_images": evaluation.num_images}

    def report(self, run, dataset, state, evaluation, model):
        write_depth_report(run, self.recipe, state, evaluation, model, (self.metric.name, "AbsRel (%)", 100))
        return self.results(evaluation)


def _check_depth(dataset, low, high):
    """Raises an InputError if no depth of the first training images can be learned."""
    first = dataset.splits["train"].in_order().take(_NUM_CHECKED).as_numpy_iterator()
    depths = np.concatenate([example["depth"].ravel() for example in first])
    if not ((depths > low) & (depths < high)).any():
        known = depths[depths > 0]
        raise InputError(
            f"No depth of the first training images is between {low:g} and {high:g} metres. Received: a median of "
            f"{np.median(known) if known.size else 0:.3g} metres. Correct data.depth_scale or max_depth"
        )


def _is_relative_and_limits(model):
    """Whether a model returns inverse depth, and the lowest and highest depth of its evaluation."""
    config: Any = describe(model).config
    return config.is_inverse, (_LIMITS[0], config.max_depth or _LIMITS[1])
