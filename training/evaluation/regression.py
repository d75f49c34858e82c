"""Evaluation of regression. Shapes: N images, V values, H W image size."""

import dataclasses
import functools

import numpy as np

from training.evaluation.outputs import Pictures, Predictions

NUM_EXAMPLES = 8


@dataclasses.dataclass(frozen=True)
class Regression:
    """A model's predictions for the images of a split.

    `values` and `predictions` are (N, V). `names` has V strings, and `units` too, or it is `None`. `examples` and
    `worst` are {index: pixels from 0 to 255 (H, W, channels)}: images that are evenly spaced in the split, and those
    with the largest errors, the largest first. An error is measured in standard deviations of the values.
    """

    values: np.ndarray
    predictions: np.ndarray
    names: tuple[str, ...]
    units: tuple[str, ...] | None = None
    examples: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    worst: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def errors(self):
        """Predictions minus values, (N, V)."""
        return self.predictions - self.values

    @property
    def scale(self):
        """The number by which the errors of each value are divided, (V,): 1 for one value.

        Several values can have different units. Their errors are divided by the standard deviations of the values.
        """
        deviation = self.values.std(axis=0)
        return np.where((deviation > 0) & (len(self.names) > 1), deviation, 1.0)

    @property
    def mean_absolute_error(self):
        """Mean absolute error, over all images and values, divided by `scale`."""
        return float(np.abs(self.errors / self.scale).mean())

    @property
    def mean_absolute_error_of_mean(self):
        """The `mean_absolute_error` of predictions that are always the mean."""
        return float(np.abs((self.values - self.values.mean(axis=0)) / self.scale).mean())

    @property
    def root_mean_squared_error(self):
        """Root of the mean squared error, over all images and values, divided by `scale`."""
        return float(np.sqrt(((self.errors / self.scale) ** 2).mean()))

    @property
    def r_squared(self):
        """Mean of `r_squared_of` over the values that are not constant, or 0 if all are."""
        found = np.array([self.r_squared_of(index) for index in range(len(self.names))])
        return float(found[~np.isnan(found)].mean()) if not np.isnan(found).all() else 0.0

    def r_squared_of(self, index):
        """Coefficient of determination of one value: 1 - (squared errors) / (squared differences from the mean).

        It is 1 for perfect predictions, and 0 if the mean is always predicted. For a constant value, it is NaN.
        """
        values = self.values[:, index]
        total = ((values - values.mean()) ** 2).sum()
        return float(1 - (self.errors[:, index] ** 2).sum() / total) if total > 0 else float("nan")

    def of_value(self, index):
        """The `Regression` of one value."""
        column = slice(index, index + 1)
        units = self.units and self.units[column]
        return Regression(self.values[:, column], self.predictions[:, column], self.names[column], units)

    def __str__(self):
        unit = " standard deviations" if len(self.names) > 1 else ""
        return (
            f"mean absolute error {self.mean_absolute_error:.4g}{unit}, R squared {self.r_squared:.4f} "
            f"({len(self.values):,} images)"
        )


def evaluate(model, dataset, splits, recipe):
    """Evaluates a model that returns values on one split, or on several splits together.

    Args:
        model: A model of this package.
        dataset: `training.data.dataset.Dataset` whose labels are values.
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `Regression`.
    """
    predictions = Predictions(model, dataset, splits, lambda sample: sample["values"], recipe)
    pictures = Pictures(NUM_EXAMPLES, predictions.total)
    deviation = dataset.scale[1] if "train" in dataset.splits else 1.0
    values, outputs = [], []
    for first, images, labels, found in predictions:
        values.append(labels.astype("float64"))
        outputs.append(found.astype("float64"))
        errors = (np.abs(outputs[-1] - values[-1]) / deviation).mean(axis=1).tolist()
        for row, error in enumerate(errors):
            pictures.add(first + row, error, images[row])
    examples, worst = (
        {index: image for index, (_, image) in shown.items()} for shown in (pictures.examples, pictures.worst)
    )
    arrays = np.concatenate(values), np.concatenate(outputs)
    return Regression(*arrays, tuple(dataset.class_names), dataset.units, examples, worst)
