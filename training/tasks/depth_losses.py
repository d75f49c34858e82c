"""Losses and the metric of depth. Shapes: B batch, H W pixels.

Labels are depths, float32 (B, H, W, 1). 0 means that the depth is unknown. Unknown pixels have no effect.
"""

import keras
from keras import ops

from training.tasks.matching import gather

_SMALLEST = 1e-6  # The smallest predicted depth, and the smallest scale of an image.
_NUM_SCALES, _GRADIENT_WEIGHT = 4, 0.5


class SiLogLoss:
    """Scale-invariant error of logarithms (Eigen et al., arXiv 1406.2283).

    d are the differences between the logarithms of predicted and true depths at the known pixels of an image. The
    loss is sqrt(mean(d^2) - f mean(d)^2). With f = 1, it does not change if all predictions are multiplied by a number.
    Eigen et al. use f = 0.5 without the root (equation 4), and Depth Anything V2 uses 0.5 with the root. BTS (arXiv
    1907.10326), AdaBins (arXiv 2011.14141) and DINOv2 use 0.85. BTS and AdaBins also multiply the loss by 10. All but
    Eigen et al. take the means over the pixels of a batch.

    Args:
        variance_focus: The number f, from 0 to 1.
    """

    def __init__(self, variance_focus=0.85):
        self.variance_focus = variance_focus

    def __call__(self, labels, outputs):
        """The losses, float32 (B,), of depths and predicted depths, both (B, H, W, 1). 0 if no depth is known.

        Predictions below 1e-6 count as 1e-6.
        """
        depths, known = _known(labels)
        errors = ops.log(ops.maximum(_flat(outputs), _SMALLEST)) - ops.log(depths)
        mean = _mean(errors, known)
        square = _mean(ops.square(errors - mean[:, None]), known) + (1 - self.variance_focus) * ops.square(mean)
        # The root has no finite derivative at 0.
        return ops.where(square > 0, ops.sqrt(ops.where(square > 0, square, 1.0)), 0.0)


class ScaleShiftInvariantLoss:
    """The loss of MiDaS for inverse depths of unknown scale and shift (arXiv 1907.01341, section 5).

    The predictions of an image and its inverse depths are aligned: their median is subtracted, and they are divided by
    their mean distance from the median. R are the differences between aligned predictions and aligned inverse depths.
    The loss is the sum of two terms:

    * the sum of the 80 % smallest abs(R), divided by twice the number of known pixels (equation 7);
    * 0.5 sum(abs(R(x + 1, y) - R(x, y)) + abs(R(x, y + 1) - R(x, y))) / (number of known pixels), added up over maps
      with each row and column, each second, fourth and eighth (equation 11). Both pixels must be known.

    The authors' code divides by the number of known pixels of a batch. Here, the loss is computed for each image.
    """

    def __call__(self, labels, outputs):
        """The losses, float32 (B,), of depths and predicted inverse depths, both (B, H, W, 1). 0 if no depth is known.

        A scale below 1e-6 counts as 1e-6.
        """
        depths, known = _known(labels)
        errors = _aligned(_flat(outputs), known) - _aligned(1 / depths, known)
        count = ops.sum(ops.cast(known, "int32"), axis=1, keepdims=True)
        ordered = ops.sort(ops.where(known, ops.abs(errors), float("inf")), axis=1)
        is_kept = ops.arange(ordered.shape[1], dtype="int32") < 4 * count // 5
        loss = ops.sum(ops.where(is_kept, ordered, 0.0), axis=1) / (2 * _at_least_one(count[:, 0]))
        errors, known = (ops.reshape(values, (-1, *labels.shape[1:3])) for values in (errors, known))
        for step in (2**scale for scale in range(_NUM_SCALES)):
            loss = loss + _GRADIENT_WEIGHT * _mean_gradient(errors[:, ::step, ::step], known[:, ::step, ::step])
        return loss


class AbsRel(keras.metrics.Mean):
    """Mean absolute relative error: abs(prediction - depth) / depth, averaged over the known pixels of an image.

    Images without known pixels are not counted.

    Args:
        max_depth: `None` if outputs are depths. If they are inverse depths of unknown scale and shift, the largest
            depth of an aligned prediction: scale and shift of each image are those with the smallest squared error of
            the inverse depths, and larger depths are replaced by this depth (arXiv 1907.01341, section 6).
    """

    def __init__(self, max_depth=None, name="abs_rel"):
        super().__init__(name=name)
        self.max_depth = max_depth

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch of depths and outputs (B, H, W, 1), and weights of images (B,)."""
        depths, known = _known(y_true)
        predictions = _flat(y_pred)
        if self.max_depth is not None:
            predictions = 1 / ops.maximum(_least_squares(predictions, 1 / depths, known), 1 / self.max_depth)
        has_depth = ops.cast(ops.any(known, axis=1), "float32")
        weights = has_depth if sample_weight is None else has_depth * ops.cast(sample_weight, "float32")
        super().update_state(_mean(ops.abs(predictions - depths) / depths, known), weights)


def _flat(maps):
    return ops.reshape(ops.cast(maps, "float32"), (ops.shape(maps)[0], -1))


def _known(labels):
    """Depths (B, H W), 1 where they are unknown, and whether they are known."""
    depths = _flat(labels)
    return ops.where(depths > 0, depths, 1.0), depths > 0


def _at_least_one(count):
    return ops.maximum(ops.cast(count, "float32"), 1.0)


def _mean(values, known):
    """The mean of the known values of each image, (B,). 0 if there are none."""
    axes = tuple(range(1, len(values.shape)))
    return ops.sum(ops.where(known, values, 0.0), axis=axes) / _at_least_one(ops.sum(known, axis=axes))


def _aligned(values, known):
    """(values - median) / (mean distance from the median), (B, H W). The median is that of the known values."""
    count = ops.sum(ops.cast(known, "int32"), axis=1, keepdims=True)
    middle = ops.maximum(ops.concatenate([(count - 1) // 2, count // 2], axis=1), 0)
    ordered = ops.sort(ops.where(known, values, float("inf")), axis=1)
    distances = values - ops.where(count > 0, ops.mean(gather(ordered, middle), axis=1, keepdims=True), 0.0)
    return distances / ops.maximum(_mean(ops.abs(distances), known), _SMALLEST)[:, None]


def _mean_gradient(errors, known):
    """Sum of absolute differences between neighbouring known pixels (B, h, w), by the number of known pixels, (B,)."""
    right = ops.where(known[:, :, 1:] & known[:, :, :-1], errors[:, :, 1:] - errors[:, :, :-1], 0.0)
    down = ops.where(known[:, 1:] & known[:, :-1], errors[:, 1:] - errors[:, :-1], 0.0)
    total = ops.sum(ops.abs(right), axis=(1, 2)) + ops.sum(ops.abs(down), axis=(1, 2))
    return total / _at_least_one(ops.sum(known, axis=(1, 2)))


def _least_squares(values, targets, known):
    """s values + t, (B, H W), with the scale s and shift t of each image that fit the known targets best."""
    mean, target = _mean(values, known)[:, None], _mean(targets, known)[:, None]
    covariance = _mean((values - mean) * (targets - target), known)[:, None]
    scale = covariance / ops.maximum(_mean(ops.square(values - mean), known)[:, None], 1e-12)
    return target + scale * (values - mean)
