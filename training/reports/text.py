"""Evaluations as lines of text."""

import numpy as np

from training.evaluation.depth import ERRORS
from training.evaluation.metrics import wilson_interval

_NUM_WORST_CLASSES = 20


def classification_text(evaluation):
    """Formats an evaluation as lines of text, with the least accurate classes."""
    total = len(evaluation.labels)
    lines = [_accuracy_line("top-1 accuracy", evaluation.accuracy, total)]
    if evaluation.top5_accuracy is not None:
        lines.append(_accuracy_line("top-5 accuracy", evaluation.top5_accuracy, total))
    sum_note = ", summed over the sigmoids of all classes" if evaluation.has_sigmoids else ""
    lines.append(f"cross-entropy      {evaluation.loss:z.4f} nats{sum_note}")
    lines.append(
        f"calibration error  {evaluation.calibration.expected_error:.2%} ("
        f"ECE, {len(evaluation.calibration.counts)} bins; mean confidence {evaluation.mean_confidence:.2%})"
    )
    if evaluation.has_several_labels:
        lines.append("An image can have several right classes, as in ReaL (arXiv 2006.07159); any of them counts.")
    if evaluation.num_unlabelled:
        lines.append(f"{evaluation.num_unlabelled:,} images without a right class are left out.")
    return "\n".join([*lines, "", _classes(evaluation.by_class)])


def _accuracy_line(name, accuracy, total):
    right = round(accuracy * total)
    low, high = wilson_interval(right, total)
    return f"{name}     {accuracy:.2%} ({right:,} of {total:,} images; 95% Wilson interval {low:.2%} to {high:.2%})"


def _classes(scores):
    shown = scores[:_NUM_WORST_CLASSES]
    which = "Classes" if len(shown) == len(scores) else f"The {len(shown)} worst of {len(scores):,} classes"
    rows = [("class", "images", "right", "accuracy", "most often mistaken for")]
    for score in shown:
        accuracy = "none" if score.accuracy is None else f"{score.accuracy:.1%}"
        taken_for = f"{score.taken_for} ({score.times:,})" if score.times else ""
        rows.append((score.name, f"{score.images:,}", f"{score.right:,}", accuracy, taken_for))
    return f"{which}, worst first:\n{lay_out(rows, texts=(0, 4))}"


def segmentation_text(segmentation):
    """Formats a `Segmentation` as lines of text, with the intersection over union of each class."""
    height, width = segmentation.size
    images, pixels = segmentation.num_images, segmentation.confusion.sum()
    rows = [("class", "pixels", "IoU", "most often mistaken for")]
    for score in segmentation.by_class:
        iou = "none" if score.iou is None else f"{score.iou:.1%}"
        rows.append((score.name, f"{score.pixels:,}", iou, score.taken_for))
    return (
        f"mean IoU        {segmentation.mean_iou:.2%} ({images:,} images at {height} x {width} pixels, the model's "
        f"input size)\n"
        f"pixel accuracy  {segmentation.pixel_accuracy:.2%} of {pixels:,} pixels that are not void\n\n"
        f"Classes, worst first:\n{lay_out(rows, texts=(0, 3))}"
    )


def masks_text(evaluation):
    """Formats `Instances` or `Panoptic` as lines of text, with the scores of each group and of the worst classes."""
    height, width = evaluation.size
    header, *classes = class_rows(evaluation)
    shown = classes[:_NUM_WORST_CLASSES]
    return (
        f"{evaluation.num_images:,} images at {height} x {width} pixels, the model's input size\n\n"
        f"{lay_out(group_rows(evaluation))}\n\n"
        f"The {len(shown)} worst of {len(classes):,} classes:\n{lay_out([header, *shown], texts=(0, 6))}"
    )


def group_rows(evaluation):
    """The scores of the groups of `Instances` or `Panoptic`: tuples of strings, the first with the column names."""
    return [("", *evaluation.SCORES), *((name, *map(_share, scores)) for name, scores in evaluation.groups.items())]


def class_rows(evaluation):
    """The scores of the classes of `Instances` or `Panoptic`, as in `group_rows`."""
    yield "class", "objects", "missed", *evaluation.SCORES, "most often mistaken for"
    for score in evaluation.by_class:
        counts = f"{score.objects:,}", f"{score.missed:,}"
        yield score.name, *counts, *map(_share, score.scores), score.taken_for


def _share(value):
    return "none" if np.isnan(value) else f"{value:.1%}"


def depth_text(evaluation):
    """Formats a `Depth` as lines of text, with the errors as predicted and after alignment."""
    height, width = evaluation.size
    images = f"{evaluation.num_images:,} images at {height} x {width} pixels, the model's input size"
    return f"{images}\n\n{lay_out([*depth_rows(evaluation)])}"


def depth_rows(evaluation):
    """The table of a `Depth`: tuples of strings, the column names, the comparisons, and the best constant."""
    depth, error = evaluation.constant
    yield "depth", *ERRORS
    for name, errors in evaluation.means.items():
        shares = (f"{errors[delta]:.2%}" for delta in ERRORS[3:])
        yield name, f"{errors['AbsRel']:.2%}", evaluation.with_unit(errors["RMSE"]), f"{errors['log10']:.4f}", *shares
    yield f"best constant, {evaluation.with_unit(depth)}", f"{error:.2%}", *[""] * 5


def multilabel_text(evaluation):
    """Formats a `MultiLabel` as lines of text, with the results of each label."""
    shown = evaluation.by_label[:_NUM_WORST_CLASSES]
    rows = [("label", "images", "average precision", "precision", "recall")]
    for score in shown:
        numbers = (score.average_precision, score.precision, score.recall)
        rows.append((score.name, f"{score.images:,}", *("none" if x is None else f"{x:.1%}" for x in numbers)))
    return (
        f"mean average precision  {evaluation.mean_average_precision:.2%} ({len(evaluation.labels):,} images)\n"
        f"F1                      {evaluation.f1:.2%} of all pairs of an image and a label, at a probability of 0.5\n"
        f"all labels right        {evaluation.exact:.2%} of the images\n\n"
        f"The {len(shown)} worst of {len(evaluation.names)} labels:\n{lay_out(rows)}"
    )


def regression_text(evaluation):
    """Formats a `Regression` as lines of text, with the results of each value."""
    rows = [("value", "mean absolute error", "root mean squared error", "R squared")]
    for index, name in enumerate(evaluation.names):
        one = evaluation.of_value(index)
        numbers = (f"{one.mean_absolute_error:.4g}", f"{one.root_mean_squared_error:.4g}", f"{one.r_squared_of(0):.4f}")
        rows.append((with_unit(name, evaluation.units, index), *numbers))
    return f"{len(evaluation.values):,} images\n\n{lay_out(rows)}"


def retrieval_text(evaluation):
    """Formats a `Retrieval` as lines of text."""
    rows = [("recall", *(f"at {most}" for most in evaluation.of_texts))]
    for name, recalls in (("text of an image", evaluation.of_texts), ("image of a text", evaluation.of_images)):
        rows.append((name, *(f"{recall:.2%}" for recall in recalls.values())))
    return f"{evaluation.num_images:,} images, {evaluation.num_texts:,} texts\n\n{lay_out(rows)}"


def with_unit(name, units, index):
    """The name of a value with its unit, if there is one."""
    return f"{name} ({units[index]})" if units else name


def lay_out(rows, texts=(0,)):
    """Formats rows of strings as text, one line for each row.

    Args:
        rows: Tuples of equal length. The first tuple contains the column names.
        texts: Indices of the left-aligned columns. Other columns are right-aligned, as is usual for numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if number in texts else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
