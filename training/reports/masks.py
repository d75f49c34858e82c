"""Writes the report of a run of instance or panoptic segmentation: `report.html` and its figures."""

from html import escape

import numpy as np

from training.evaluation.masks import MIN_SCORE, Instances
from training.files import write_text
from training.reports import pages
from training.reports.figures import FEW_CLASSES, plot_confusion_matrix, plot_precision
from training.reports.overlays import legend, object_colors, overlay_objects
from training.reports.parts import cost_numbers, curves, figure, number_list, origin, picture, table
from training.reports.text import class_rows, group_rows


def write_masks_report(run, recipe, state, evaluation, model, quality):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `Instances` or `Panoptic` of `training.evaluation.masks`, of the test images.
        model: The Keras model.
        quality: (name in the history, label, factor of its values) of the metric that is shown beside the loss.
    """
    names = evaluation.class_names
    page = pages.page(
        "masks",
        **origin(run, recipe, evaluation.TITLE, str(evaluation)),
        verdict=escape(judge(evaluation)),
        numbers=number_list([*_numbers(evaluation), *cost_numbers(model, state)]),
        legend=_legend(evaluation),
        examples="\n".join(_triple(evaluation, *item) for item in evaluation.examples.items()),
        worst="\n".join(_triple(evaluation, *item) for item in evaluation.worst.items()),
        groups=table(group_rows(evaluation)),
        precision=_precision(run, evaluation) if isinstance(evaluation, Instances) else "",
        num_classes=len(names),
        open="open" if len(names) <= FEW_CLASSES else "",
        classes=table(class_rows(evaluation)),
        curves=curves(run, recipe, state, quality, "sum of all parts"),
        confusion_matrix=_confusion_matrix(run, evaluation),
    )
    write_text(run.report, page)


def judge(evaluation):
    """Sentences that help to judge the scores."""
    counts, (height, width) = evaluation.matches.counts, evaluation.size
    right, objects = np.trace(counts), counts[:-1].sum()
    least = f" with a score of at least {MIN_SCORE:g}" if isinstance(evaluation, Instances) else ""
    return (
        f"The {evaluation.num_images:,} held-out test images contain {objects:,} objects. The predictions{least} find "
        f"{right:,} of them ({right / max(objects, 1):.1%}), take {counts[:-1, :-1].sum() - right:,} for another "
        f"class, and miss {counts[:, -1].sum():,}. {counts[-1].sum():,} predictions are false: no object overlaps them "
        f"by more than half. All masks are compared at the model's input size of {height} x {width} pixels."
    )


def _numbers(evaluation):
    yield from ((name, f"{evaluation.totals[name]:.2%}", note) for name, note in evaluation.SCORES.items())
    if not isinstance(evaluation, Instances):
        yield "Mean IoU", f"{evaluation.mean_iou:.2%}", "of the classes of pixels, as in semantic segmentation"


def _legend(evaluation):
    shown = [*evaluation.examples.values(), *evaluation.worst.values()]
    pairs = [pair for _, _, *pairs in shown for pair in pairs]
    labels = np.unique(np.concatenate([np.append(-1, classes)[np.unique(segments)] for segments, classes in pairs]))
    labels, names = labels[labels >= 0].astype(int).tolist(), evaluation.class_names
    drawn = legend([names[label] for label in labels], object_colors(labels, len(names)))
    return picture(np.asarray(drawn), "the colours of the classes in the pictures")


def _triple(evaluation, index, shown):
    error, image, *objects = shown
    drawn = "".join(
        picture(overlay_objects(image, segments, classes, len(evaluation.class_names)), name)
        for name, (segments, classes) in zip(("true objects", "predicted objects"), objects, strict=True)
    )
    note = f"<span class=note>image {index}, quality {1 - error:.0%}</span>"
    return f"<li>{picture(image, f'test image {index}')}{drawn}{note}"


def _precision(run, evaluation):
    drawn = figure(run, "precision", plot_precision(evaluation.curves), "precision by recall, mean over the classes")
    return f"<div class=plot>{drawn}</div>\n<p class=note>The area under a curve is the score.</p>"


def _confusion_matrix(run, evaluation):
    drawn = plot_confusion_matrix(evaluation.matches.counts, [*evaluation.class_names, "no object"])
    return figure(run, "confusion_matrix", drawn, "numbers of objects by true and predicted class")
