"""Writes the report of a segmentation run: `report.html` and its figures."""

from html import escape

import numpy as np

from training.files import write_text
from training.reports import pages
from training.reports.figures import FEW_CLASSES, plot_confusion_matrix
from training.reports.overlays import class_legend, overlay_mask
from training.reports.parts import cost_numbers, curves, figure, number_list, origin, picture


def write_segmentation_report(run, recipe, state, segmentation, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        segmentation: `training.evaluation.segmentation.Segmentation` of the test images.
        model: The Keras model.
    """
    names = segmentation.class_names
    page = pages.page(
        "segmentation",
        **origin(run, recipe, "Semantic segmentation", f"{segmentation.mean_iou:.2%} mean IoU"),
        verdict=escape(judge(segmentation)),
        numbers=number_list([*_numbers(segmentation), *cost_numbers(model, state)]),
        legend=picture(np.asarray(class_legend(names)), "the colour of each class: " + ", ".join(names)),
        examples="\n".join(_triple(len(names), *example) for example in segmentation.examples),
        num_classes=len(names),
        open="open" if len(names) <= FEW_CLASSES else "",
        classes="\n".join(map(_class_row, segmentation.by_class)),
        curves=curves(run, recipe, state, ("mean_iou", "mean IoU (%)", 100)),
        confusion_matrix=_confusion_matrix(run, segmentation),
    )
    write_text(run.report, page)


def judge(segmentation):
    """Sentences that help to judge the mean IoU."""
    height, width = segmentation.size
    pixels = segmentation.confusion.sum(axis=1)
    commonest = int(pixels.argmax())
    share = pixels[commonest] / max(pixels.sum(), 1)
    occurring = max(int((pixels > 0).sum()), 1)
    return (
        f"On {segmentation.num_images:,} held-out test images, the mean IoU (intersection over union) is "
        f"{segmentation.mean_iou:.2%}, and {segmentation.pixel_accuracy:.2%} of the pixels are classified correctly. "
        f"The masks are compared at the model's input size of {height} x {width} pixels. Always predicting the most "
        f"common class, {segmentation.class_names[commonest]}, would reach a mean IoU of {share / occurring:.2%} and "
        f"a pixel accuracy of {share:.2%}."
    )


def _numbers(segmentation):
    pixels = segmentation.confusion.sum()
    return [
        ("Mean IoU", f"{segmentation.mean_iou:.2%}", "intersection over union, mean over the classes, test images"),
        ("Pixel accuracy", f"{segmentation.pixel_accuracy:.2%}", f"of {pixels:,} pixels that are not void"),
    ]


def _triple(num_classes, image, truth, prediction):
    masks = {"true mask": truth, "predicted mask": prediction}
    drawn = [picture(overlay_mask(image, mask, num_classes), name) for name, mask in masks.items()]
    return f"<li>{picture(image, 'test image')}{''.join(drawn)}"


def _class_row(score):
    iou = "does not occur" if score.iou is None else f"{score.iou:.1%}"
    bar = f'<span class=bar style="--part:{score.iou or 0:.3f}"></span>'
    return f"<tr><th scope=row>{escape(score.name)}<td>{score.pixels:,}<td>{iou}<td>{bar}<td>{escape(score.taken_for)}"


def _confusion_matrix(run, segmentation):
    """Writes the confusion matrix. Its cells show percentages of the true class, because pixel counts would not fit."""
    totals = np.maximum(segmentation.confusion.sum(axis=1, keepdims=True), 1)
    per_cent = np.rint(100 * segmentation.confusion / totals).astype(int)
    drawn = plot_confusion_matrix(per_cent, segmentation.class_names)
    return figure(run, "confusion_matrix", drawn, "percentages of each true class's pixels, by predicted class")
