"""Evaluation of semantic segmentation. Shapes: H W image, C classes."""

import dataclasses
import functools

import keras
import numpy as np
from keras import ops

from training.data.masks import VOID
from training.evaluation.outputs import Predictions

NUM_EXAMPLES = 8


@dataclasses.dataclass(frozen=True)
class ClassIoU:
    """The results of one class. If the class does not occur, `iou` is `None`.

    `pixels` is the number of pixels of this class. `taken_for` is the class that is most often predicted
    for these pixels by mistake, or "" if there is none.
    """

    name: str
    pixels: int
    iou: float | None
    taken_for: str


@dataclasses.dataclass(frozen=True)
class Segmentation:
    """A model's predictions for the images of a split, at the model's input resolution, without void pixels.

    `confusion`, int64 (C, C), counts the pixels of each pair (true class, predicted class). `examples` are tuples
    (image (H, W, channels), true mask (H, W), predicted mask (H, W)) of images that are evenly spaced in the split.
    """

    confusion: np.ndarray
    class_names: tuple[str, ...]
    num_images: int
    size: tuple[int, int]
    examples: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...] = ()

    @functools.cached_property
    def ious(self):
        """Intersection over union of each class, (C,); NaN if the class does not occur."""
        right = np.diag(self.confusion).astype(float)
        union = self.confusion.sum(axis=0) + self.confusion.sum(axis=1) - right
        return np.where(union > 0, right / np.maximum(union, 1), np.nan)

    @property
    def mean_iou(self):
        """Mean IoU of the classes that occur."""
        return float(np.nanmean(self.ious)) if np.isfinite(self.ious).any() else 0.0

    @property
    def pixel_accuracy(self):
        """Fraction of the pixels whose predicted class is right."""
        return float(np.trace(self.confusion) / max(self.confusion.sum(), 1))

    @property
    def by_class(self):
        """A `ClassIoU` of each class, in increasing order of IoU; classes that do not occur are last."""
        wrong = self.confusion * (1 - np.eye(len(self.confusion), dtype=int))
        return [
            ClassIoU(
                self.class_names[label],
                int(self.confusion[label].sum()),
                None if np.isnan(self.ious[label]) else float(self.ious[label]),
                self.class_names[wrong[label].argmax()] if wrong[label].any() else "",
            )
            for label in np.argsort(self.ious, kind="stable").tolist()  # `argsort` puts NaN last.
        ]

    def __str__(self):
        return f"mean IoU {self.mean_iou:.2%}, pixel accuracy {self.pixel_accuracy:.2%} ({self.num_images} images)"


def evaluate(model, dataset, splits, recipe):
    """Evaluates a model on one or several splits. Images and masks are resized to the model's input size.

    Args:
        model: A segmentation model of this package.
        dataset: `training.data.dataset.Dataset` of images with masks.
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`

    Returns:
        A `Segmentation`.
    """
    # The argmax is computed on the device, because masks are copied faster than the probabilities of all classes.
    classes = keras.Model(model.inputs, ops.cast(ops.argmax(model.outputs[0], axis=-1), "uint8"))
    predictions = Predictions(
        model, dataset, splits, lambda sample: sample["mask"][..., 0], recipe, NUM_EXAMPLES, outputs=classes
    )
    num_classes = len(dataset.class_names)
    confusion = np.zeros((num_classes, num_classes), "int64")
    for _, _, truths, found in predictions:
        is_known = truths != VOID
        pairs = truths[is_known].astype("int64") * num_classes + found[is_known]
        confusion += np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
    size, examples = tuple(model.input_shape[1:3]), tuple(predictions.examples.values())
    return Segmentation(confusion, tuple(dataset.class_names), predictions.count, size, examples)
