"""Evaluation of instance and panoptic segmentation. Shapes: H W image, C classes, G true objects, P predicted objects.

The true objects of an image are a map `segments`, int (H, W), and `classes`, int (M,): pixels of value k belong to
object k, of class `classes[k - 1]`. Pixels of value 0 belong to no object. An object of class -1 is ignored, such as a
crowd. Its class is unknown, so it stands for objects of all classes. An object without pixels does not count.

The average precision is computed by pycocotools, the code of the COCO benchmark. faster-coco-eval 1.8 returns the same
numbers (to 1e-15) in a quarter of the time: 0.2 s instead of 0.8 s for 500 images of 96 x 96 with 5 predictions, 0.7 s
instead of 2.6 s for 100 images of 640 x 640 with 100 predictions. A model takes much longer for these images, and
pycocotools has wheels for more systems (older Linux, Macs with Intel processors, later versions of Python).
"""

import contextlib
import dataclasses
import io
import warnings
from typing import ClassVar

import numpy as np
from pycocotools import mask as run_lengths
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from training.evaluation.outputs import Pictures, Predictions

NUM_EXAMPLES = 8
IGNORED = -1
MIN_SCORE = 0.5
"""Predictions with lower scores count for the average precision only. They are not shown."""
MIN_OVERLAP = 0.5
"""A predicted object is a true one if their intersection over union is higher (arXiv 1801.00868, section 4)."""
_MOST_PREDICTIONS = 100  # Of a class in an image, those with the highest scores, as in COCO's rules.


class Matches:
    """Counts of true objects that are predicted, missed, or taken for another class, and of false predictions.

    `counts`, int64 (C + 1, C + 1), has a row for each true class and a column for each predicted class. The last row
    counts false predictions, the last column missed objects. `overlaps`, (C,), are the sums of the intersections over
    union of objects whose class is right.

    Args:
        num_classes: C
    """

    def __init__(self, num_classes):
        self.counts, self.overlaps = np.zeros((num_classes + 1,) * 2, "int64"), np.zeros(num_classes)

    def add(self, overlaps, is_excused, true, predicted):
        """Adds an image. Of the predictions with an overlap above `MIN_OVERLAP`, the first belongs to a true object.

        True objects do not overlap, so a prediction belongs to at most one of them.

        Args:
            overlaps: Intersections over union with the true objects that are not ignored, (G, P).
            is_excused: Whether most pixels of a prediction are void or ignored, bool (P,). Such a prediction does not
                count as false or as an object of another class.
            true: Classes of the true objects, (G,).
            predicted: Classes of the predictions, (P,).

        Returns:
            The quality of the image, from 0 to 1: the panoptic quality of all its objects, as if of one class.
        """
        hits = (overlaps > MIN_OVERLAP) & ((true[:, None] == predicted) | ~is_excused)
        rows, columns = np.nonzero(hits & (hits.cumsum(axis=1) == 1))
        missed, false = np.ones(len(true), bool), ~is_excused
        missed[rows] = false[columns] = False
        nothing, is_right = len(self.overlaps), true[rows] == predicted[columns]
        np.add.at(self.counts, (true[rows], predicted[columns]), 1)
        np.add.at(self.counts, (true[missed], nothing), 1)
        np.add.at(self.counts, (nothing, predicted[false]), 1)
        right = overlaps[rows, columns] * is_right
        np.add.at(self.overlaps, true[rows], right)
        halves = 2 * len(rows) + missed.sum() + false.sum()  # A wrong class is half a missed and half a false object.
        return float(2 * right.sum() / halves) if halves else 1.0

    @property
    def qualities(self):
        """Panoptic, segmentation and recognition quality of each class, (C, 3); NaN if it does not occur.

        The equations are those of Panoptic Segmentation (Kirillov et al., arXiv 1801.00868, section 4).
        """
        right = np.diag(self.counts)[:-1]
        occurring = (self.counts.sum(axis=0) + self.counts.sum(axis=1))[:-1] / 2
        segmentation = self.overlaps / np.maximum(right, 1)
        recognition = np.where(occurring > 0, right / np.maximum(occurring, 0.5), np.nan)
        return np.stack([segmentation * recognition, segmentation + 0 * recognition, recognition], axis=1)


class AveragePrecision:
    """Computes COCO's average precision. The objects of an image are kept as run-length codes of `encode`.

    Args:
        num_classes: C
    """

    SIZES = ("all", "small, to 32² pixels", "medium, to 96² pixels", "large")
    """Names of COCO's ranges of the areas of objects."""

    def __init__(self, num_classes):
        self._num_classes, self._num_images, self._true, self._predicted = num_classes, 0, [], []

    def add(self, codes, classes, found_codes, predicted, scores):
        """Adds an image.

        Args:
            codes, classes: Codes and classes of the G true objects. An ignored object is a crowd of all classes.
            found_codes, predicted, scores: Codes, classes and scores of the P predictions.
        """
        no_scores, labels = np.zeros(len(classes)), set(predicted.tolist())
        for objects, *arrays in (
            (self._true, codes, run_lengths.area(codes), classes, no_scores),
            (self._predicted, found_codes, run_lengths.area(found_codes), predicted, scores),
        ):
            for code, area, label, score in zip(*arrays, strict=True):
                known = {"image_id": self._num_images, "segmentation": code, "area": area, "score": float(score)}
                known["iscrowd"] = int(label == IGNORED)
                objects += [known | {"category_id": one} for one in (labels if known["iscrowd"] else [int(label)])]
        self._num_images += 1

    def precision(self):
        """The precision, (10, 101, C, 4): for minimal overlaps from 0.5 to 0.95, recalls from 0 to 1, classes, sizes.

        It is NaN for classes and sizes that do not occur.
        """
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress.
            evaluation = COCOeval(self._index(self._true), self._index(self._predicted), "segm")
            evaluation.params.maxDets = [_MOST_PREDICTIONS]
            evaluation.evaluate()
            evaluation.accumulate()
        precision = evaluation.eval["precision"][..., 0]
        return np.where(precision < 0, np.nan, precision)

    def _index(self, objects):
        index = COCO()
        index.dataset = {
            "images": [{"id": image, "height": 0, "width": 0} for image in range(self._num_images)],  # For polygons.
            "categories": [{"id": label} for label in range(self._num_classes)],
            "annotations": [known | {"id": number} for number, known in enumerate(objects, 1)],  # 0: not matched.
        }
        index.createIndex()
        return index


def encode(masks):
    """Run-length codes of masks, bool (N, H, W), as pycocotools uses them.

    pycocotools expects columns before rows. The codes are those of the transposed masks, because these need no copy.
    Areas and overlaps are the same.
    """
    return run_lengths.encode(np.ascontiguousarray(masks).view("uint8").transpose(2, 1, 0))


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """The results of one class: its number of objects, how many of them were missed, and its `scores`, (3,).

    `taken_for` is the class that is most often predicted for its objects by mistake, or "" if there is none.
    """

    name: str
    objects: int
    missed: int
    scores: np.ndarray
    taken_for: str


@dataclasses.dataclass(frozen=True)
class Objects:
    """A model's predictions of objects in the images of a split, at the model's input resolution.

    `class_scores`, (C, 3), are the `SCORES` of each class. `groups` is {group of objects or classes: its scores, (3,)};
    the first group contains all. Scores are NaN if nothing occurs.

    `examples` and `worst` are {index: (error, image (H, W, channels), true objects, predicted objects)}, as in
    `Pictures`. The error is 1 - the quality of `Matches.add`. The objects are a map (H, W) and their classes, as above.
    """

    class_scores: np.ndarray
    groups: dict[str, np.ndarray]
    matches: Matches
    class_names: tuple[str, ...]
    size: tuple[int, int]
    num_images: int
    examples: dict[int, tuple]
    worst: dict[int, tuple]

    TITLE: ClassVar[str]
    SCORES: ClassVar[dict[str, str]]
    """{name of a score: its meaning}; the first score is the main one."""

    @property
    def totals(self):
        """{score: its value for all classes}"""
        return dict(zip(self.SCORES, next(iter(self.groups.values())).tolist(), strict=True))

    @property
    def by_class(self):
        """A `ClassResult` of each class, in increasing order of the main score; classes without a score are last."""
        counts, names = self.matches.counts, self.class_names
        wrong = counts[:-1, :-1] * (1 - np.eye(len(names), dtype=int))
        return [
            ClassResult(
                *(names[label], int(counts[label].sum()), int(counts[label, -1]), self.class_scores[label]),
                names[wrong[label].argmax()] if wrong[label].any() else "",
            )
            for label in np.argsort(self.class_scores[:, 0], kind="stable").tolist()  # `argsort` puts NaN last.
        ]

    def __str__(self):
        scores = ", ".join(f"{name} {score:.2%}" for name, score in self.totals.items())
        return f"{scores} ({self.num_images:,} images)"


@dataclasses.dataclass(frozen=True)
class Instances(Objects):
    """Predicted instances. `matches` counts the predictions with a score of at least `MIN_SCORE`.

    `curves` is {score: mean precision of the classes that occur at recalls from 0 to 1, (101,)}.
    """

    curves: dict[str, np.ndarray]

    TITLE = "Instance segmentation"
    SCORES: ClassVar = {
        "AP": "average precision: mean over the classes and minimal overlaps of 50, 55, … 95 %",
        "AP50": "average precision at a minimal overlap of 50 %",
        "AP75": "average precision at a minimal overlap of 75 %",
    }


@dataclasses.dataclass(frozen=True)
class Panoptic(Objects):
    """Predicted segments of things and stuff. `mean_iou` is that of the classes of pixels, as in semantic segmentation.

    It is the mean over the classes that occur. Pixels without a prediction count as wrong, void ones do not count.
    """

    mean_iou: float

    TITLE = "Panoptic segmentation"
    SCORES: ClassVar = {
        "PQ": "panoptic quality: SQ times RQ, mean over the classes",
        "SQ": "segmentation quality: mean overlap of the segments that are found",
        "RQ": "recognition quality: F1 score of the segments",
    }


def _mean(scores):
    """Mean over the first axis of the scores that are not NaN; NaN if all are."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return np.nanmean(scores, axis=0)


def evaluate_instances(model, dataset, splits, recipe, read_label, instances):
    """Evaluates instance segmentation on one or several splits, at the model's input size.

    Args:
        model: A model whose outputs are {"masks": (B, h, w, Q), "objects": (B, Q, C + 1)}.
        dataset: `training.data.dataset.Dataset`
        splits: Name of the split, or a list of names.
        recipe: `training.recipe.config.Recipe`
        read_label: TensorFlow function of a decoded sample that returns {"segments": (H, W), "classes": (M,)}.
        instances: Function of the masks (h, w, Q) and objects (Q, C + 1) of an image. It returns masks, bool
            (P, H, W), classes (P,) and scores (P,), from 0 to 1. Low scores count for the average precision, too.

    Returns:
        An `Instances`.
    """
    size, num_classes = tuple(model.input_shape[1:3]), len(dataset.class_names)
    average, matches = AveragePrecision(num_classes), Matches(num_classes)

    def add(segments, classes, outputs):
        answer = zip(instances(outputs["masks"], outputs["objects"]), (bool, int, float), strict=True)
        found, predicted, scores = (np.asarray(array, kind) for array, kind in answer)
        present = np.flatnonzero(np.bincount(segments.ravel(), minlength=len(classes) + 1)[1:])
        true, codes, found_codes = classes[present], encode(segments == present[:, None, None] + 1), encode(found)
        average.add(codes, true, found_codes, predicted, scores)
        shown = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores >= MIN_SCORE)]
        overlaps, is_excused = _overlaps(codes, true, [found_codes[index] for index in shown])
        error = 1 - matches.add(overlaps, is_excused, true[true != IGNORED], predicted[shown])
        painted = np.zeros(size, "int64")
        for number in range(len(shown), 0, -1):  # The highest score is painted last.
            painted[found[shown[number - 1]]] = number
        return error, (painted, predicted[shown])

    count, examples, worst = _add_images(model, dataset, splits, recipe, read_label, add)
    precision = average.precision()
    by_overlap = np.stack([precision.mean(axis=0), precision[0], precision[5]])  # (3, 101, C, 4)
    by_size = by_overlap.mean(axis=1).transpose(1, 0, 2)
    groups = dict(zip(AveragePrecision.SIZES, _mean(by_size).T, strict=True))
    curves = dict(zip(Instances.SCORES, _mean(by_overlap[..., 0].transpose(2, 0, 1)), strict=True))
    names = tuple(dataset.class_names)
    return Instances(by_size[..., 0], groups, matches, names, size, count, examples, worst, curves)


def _overlaps(codes, classes, found_codes):
    """The overlaps of objects that are not ignored, and which predictions are excused, as for `Matches.add`."""
    is_crowd = classes == IGNORED
    overlaps = run_lengths.iou(found_codes, codes, is_crowd.astype(int).tolist())
    overlaps = np.reshape(overlaps, (len(found_codes), len(codes)))
    # For a crowd, pycocotools returns the share of the prediction that lies in it.
    return overlaps.T[~is_crowd], overlaps[:, is_crowd].sum(axis=1) > MIN_OVERLAP


def evaluate_panoptic(model, dataset, splits, recipe, read_label, panoptic, is_thing):
    """Evaluates panoptic segmentation on one or several splits, at the model's input size.

    Pixels of value 0 in the true `segments` are void (arXiv 1801.00868, section 4).

    Args:
        model, dataset, splits, recipe, read_label: As in `evaluate_instances`.
        panoptic: Function of the masks (h, w, Q) and objects (Q, C + 1) of an image. It returns a map of small numbers,
            int (H, W), and pairs (number, class). Nothing is predicted for pixels with other numbers.
        is_thing: Whether each class is one of things, bool (C,).

    Returns:
        A `Panoptic`.
    """
    num_classes = len(dataset.class_names)
    matches, pixels = Matches(num_classes), np.zeros((num_classes, num_classes + 1), "int64")

    def add(segments, classes, outputs):
        found, pairs = panoptic(outputs["masks"], outputs["objects"])
        values, class_of = np.arange(found.min(), found.max() + 1), dict(pairs)
        predicted = np.array([class_of.get(value, num_classes) for value in values.tolist()])
        pixel_pairs = segments.astype("int64") * len(values) + (found - values[0])
        counts = np.bincount(pixel_pairs.ravel(), minlength=(len(classes) + 1) * len(values)).reshape(-1, len(values))
        is_real = (classes != IGNORED) & counts[1:].any(axis=1)
        is_found = (predicted < num_classes) & counts.any(axis=0)
        np.add.at(pixels, (classes[is_real][:, None], predicted), counts[1:][is_real])
        overlaps, is_excused = _segment_overlaps(counts, is_real)
        error = 1 - matches.add(overlaps[:, is_found], is_excused[is_found], classes[is_real], predicted[is_found])
        return error, ((is_found * np.arange(1, len(values) + 1))[found - values[0]], predicted)

    count, examples, worst = _add_images(model, dataset, splits, recipe, read_label, add)
    scores, is_thing, right = matches.qualities, np.asarray(is_thing, bool), np.diag(pixels)
    groups = {"all": _mean(scores), "things": _mean(scores[is_thing]), "stuff": _mean(scores[~is_thing])}
    union = pixels.sum(axis=1) + pixels.sum(axis=0)[:-1] - right
    mean_iou = float((right / np.maximum(union, 1)).sum() / max((union > 0).sum(), 1))
    names, size = tuple(dataset.class_names), tuple(model.input_shape[1:3])
    return Panoptic(scores, groups, matches, names, size, count, examples, worst, mean_iou)


def _segment_overlaps(counts, is_real):
    """As `_overlaps`, from the numbers of pixels of true segments in predicted ones, (M + 1, P).

    The first row counts void pixels. The others are segments, which are present and not ignored if `is_real`, (M,).
    """
    void, ignored, counts = counts[0], counts[1:][~is_real].sum(axis=0), counts[1:][is_real]
    areas = void + ignored + counts.sum(axis=0)
    overlaps = counts / (areas + counts.sum(axis=1, keepdims=True) - counts - void)
    return overlaps, void + ignored > MIN_OVERLAP * areas


def _add_images(model, dataset, splits, recipe, read_label, add):
    """Calls `add` for each image. Returns the number of images, the examples and the worst images."""
    predictions = Predictions(model, dataset, splits, read_label, recipe)
    pictures = Pictures(NUM_EXAMPLES, predictions.total)
    for first, images, labels, outputs in predictions:
        for row, image in enumerate(images):
            segments, classes = labels["segments"][row], labels["classes"][row]
            error, found = add(segments, classes, {name: array[row] for name, array in outputs.items()})
            pictures.add(first + row, error, image, (segments, classes), found)
    return predictions.count, pictures.examples, pictures.worst
