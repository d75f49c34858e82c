"""Evaluation of depth. Shapes: H W image, N images, n pixels whose depth is known.

Errors are computed for each image, and averaged over the images, as in the published evaluations on NYU Depth V2 and
KITTI (Eigen et al., arXiv 1406.2283; ZoeDepth, arXiv 2302.12288; Depth Anything V2, arXiv 2406.09414).

A model predicts depth or relative inverse depth. Depth is compared with the true depth as predicted, and again with its
median scaled to the true one. Relative inverse depth, as of MiDaS and Depth Anything, has an unknown scale and shift in
each image. Both are fitted to the true depth before the comparison.
"""

import dataclasses

import numpy as np

from training.errors import InputError
from training.evaluation.outputs import Pictures, Predictions

NUM_EXAMPLES = 6
ERRORS = ("AbsRel", "RMSE", "log10", "δ1", "δ2", "δ3")
"""Mean |p - d| / d, root mean squared p - d, mean |log10 p - log10 d|, and the shares of the pixels where max(p / d,
d / p) is less than 1.25, 1.25^2 and 1.25^3, of predicted depth p and true depth d."""
HISTOGRAM = np.linspace(-1, 1, 81)
"""Bounds of the bins of the relative errors (p - d) / d. The outer bins contain the errors outside."""
_BIN_WIDTH = 0.002  # Of the logarithm of depth.


@dataclasses.dataclass(frozen=True)
class Depth:
    """A model's predictions for the images of a split that have known pixels, at the model's input resolution.

    `means` is {comparison: {error of `ERRORS`: mean over the images}}. The comparisons are "as predicted", which is the
    main one, and "aligned". A relative model has only "aligned". `constant` is the depth that has the lowest AbsRel if
    it is predicted for every pixel, and this AbsRel. `histogram` counts the pixels of each bin of `HISTOGRAM`, in the
    main comparison.

    `examples` and `worst` are {index: (AbsRel, image (H, W, channels), true depth (H, W), predicted depth (H, W))}, as
    in `Pictures`, in the main comparison. Unknown depth is 0.
    """

    means: dict[str, dict[str, float]]
    num_images: int
    size: tuple[int, int]
    unit: str
    constant: tuple[float, float]
    histogram: np.ndarray
    examples: dict[int, tuple]
    worst: dict[int, tuple]

    @property
    def main(self):
        """The main comparison and its means."""
        return next(iter(self.means.items()))

    def with_unit(self, depth):
        """A depth as text."""
        return f"{depth:.4g} {self.unit}".rstrip()

    def __str__(self):
        name, means = self.main
        errors = f"AbsRel {means['AbsRel']:.2%}, RMSE {self.with_unit(means['RMSE'])}, δ1 {means['δ1']:.2%}"
        return f"{errors}, {name} ({self.num_images:,} images)"


def depth_errors(predicted, true):
    """The `ERRORS` of predicted depth (n,), compared with the true depth (n,); both are above 0: (6,)."""
    ratio = np.abs(np.log(predicted / true))
    within = [(ratio < power * np.log(1.25)).mean() for power in (1, 2, 3)]
    difference = predicted - true
    relative, squared = (np.abs(difference) / true).mean(), np.sqrt((difference**2).mean())
    return np.array([relative, squared, ratio.mean() / np.log(10), *within])


def scale_to_median(predicted, true, is_known, limits):
    """Depth (H, W), multiplied so that the median of the known pixels is the true one (arXiv 1704.07813).

    Args:
        predicted, true: Predicted and true depth (H, W).
        is_known: bool (H, W)
        limits: Lowest and highest depth.
    """
    return predicted * (np.median(true[is_known]) / max(np.median(predicted[is_known]), limits[0]))


def align_inverse(predicted, true, is_known, limits):
    """Converts relative inverse depth to depth (H, W), as MiDaS is evaluated (arXiv 1907.01341).

    The inverse depth is multiplied by a scale and shifted, so that its squared error is least for the known pixels.

    Args:
        predicted: Relative inverse depth (H, W): larger is nearer.
        true, is_known, limits: As in `scale_to_median`.
    """
    inverse, values = 1 / true[is_known], predicted[is_known]
    centred = values - values.mean()
    variance = (centred**2).mean()
    scale = (centred * inverse).mean() / variance if variance > 0 else 0.0
    # The aligned inverse depth can be 0 or negative.
    return 1 / np.maximum(inverse.mean() + scale * (predicted - values.mean()), 1 / limits[1])


class BestConstant:
    """Finds the constant depth with the lowest AbsRel: the median of the depths d, weighted by 1 / d.

    The pixels of an image have the same weight together. Depths are counted in bins that are 0.2 % wide, so the error
    of the AbsRel is usually below 1e-5.

    `count` is the number of images.

    Args:
        limits: Lowest and highest depth.
    """

    def __init__(self, limits):
        self._least, self.count = limits[0], 0
        self._weights = np.zeros((2, int(np.log(limits[1] / limits[0]) / _BIN_WIDTH) + 1))  # Sums of 1, and of 1 / d.

    def add(self, true):
        """Adds the true depth (n,) of an image."""
        bins = (np.log(true / self._least) / _BIN_WIDTH).astype(int)
        for sums, weights in zip(self._weights, (np.ones_like(true), 1 / true), strict=True):
            sums += np.bincount(bins, weights, len(sums)) / len(true)
        self.count += 1

    def result(self):
        """The constant and its AbsRel."""
        sums = self._weights[:, self._weights[0] > 0]
        constants = sums[0] / sums[1]
        # AbsRel is the sum of c / d - 1 over the depths d below c, and of 1 - c / d above. The bin of c adds 0.
        below_minus_above = 2 * sums.cumsum(axis=1) - sums.sum(axis=1, keepdims=True)
        errors = (constants * below_minus_above[1] - below_minus_above[0]) / self.count
        return float(constants[errors.argmin()]), float(errors.min())


def evaluate(model, dataset, splits, recipe, limits, is_relative=False):
    """Evaluates a model of depth on one or several splits. Images and depth are resized to the model's input size.

    Args:
        model: A model that returns depth or relative inverse depth, (B, H, W, 1).
        dataset: `training.data.dataset.Dataset` of images with depth.
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`
        limits: Lowest and highest depth, above 0: (1e-3, 10) for NYU Depth V2, (1e-3, 80) for KITTI. Pixels with a true
            depth outside are unknown. Predicted depth is clipped.
        is_relative: Whether the model returns inverse depth.

    Returns:
        A `Depth`.

    Raises:
        InputError: If no pixel is known.
    """
    predictions = Predictions(model, dataset, splits, lambda sample: sample["depth"][..., 0], recipe)
    pictures, best_constant = Pictures(NUM_EXAMPLES, predictions.total), BestConstant(limits)
    metric = {"as predicted": lambda predicted, *_: predicted, "aligned": scale_to_median}
    alignments = {"aligned": align_inverse} if is_relative else metric
    errors, histogram = {name: [] for name in alignments}, np.zeros(len(HISTOGRAM) - 1, "int64")
    for first, images, truths, outputs in predictions:
        truths, outputs = truths.astype("float64"), outputs[..., 0].astype("float64")
        is_known = (truths > limits[0]) & (truths < limits[1])
        for row in np.flatnonzero(is_known.any(axis=(1, 2))).tolist():
            true, known = truths[row], is_known[row]
            depths = [np.clip(align(outputs[row], true, known, limits), *limits) for align in alignments.values()]
            for rows, predicted in zip(errors.values(), depths, strict=True):
                rows.append(depth_errors(predicted[known], true[known]))
            best_constant.add(true[known])
            relative = depths[0][known] / true[known] - 1
            histogram += np.histogram(np.clip(relative, -1, 1), HISTOGRAM)[0]
            error = float(np.abs(relative).mean())
            pictures.add(first + row, error, images[row], np.where(known, true, 0), depths[0])
    if not best_constant.count:
        raise InputError(
            f"No depth is between {limits[0]:g} and {limits[1]:g} m. Correct data.depth_scale or max_depth."
        )
    means = {name: dict(zip(ERRORS, np.mean(rows, axis=0).tolist(), strict=True)) for name, rows in errors.items()}
    known = means, best_constant.count, tuple(model.input_shape[1:3]), dataset.units[0] if dataset.units else ""
    return Depth(*known, best_constant.result(), histogram, pictures.examples, pictures.worst)
