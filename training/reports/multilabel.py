"""Writes the report of a multi-label run: `report.html` and its figures."""

from html import escape

import numpy as np

from training.evaluation.multilabel import THRESHOLD
from training.files import write_text
from training.reports import pages
from training.reports.figures import FEW_CLASSES
from training.reports.parts import cost_numbers, curves, number_list, origin, picture


def write_multilabel_report(run, recipe, state, evaluation, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `training.evaluation.multilabel.MultiLabel` of the test images.
        model: The Keras model.
    """
    score = evaluation.mean_average_precision
    page = pages.page(
        "multilabel",
        **origin(run, recipe, "Multi-label classification", f"{score:.2%} mean average precision"),
        verdict=escape(judge(evaluation)),
        numbers=number_list([*_numbers(evaluation), *cost_numbers(model, state)]),
        num_labels=len(evaluation.names),
        open="open" if len(evaluation.names) <= FEW_CLASSES else "",
        labels="\n".join(map(_label_row, evaluation.by_label)),
        examples="\n".join(_pictures(evaluation)),
        curves=curves(run, recipe, state, ("mean_average_precision", "mean average precision (%)", 100)),
    )
    write_text(run.report, page)


def judge(evaluation):
    """Sentences that help to judge the mean average precision."""
    share = evaluation.labels.mean(axis=0)
    return (
        f"On {len(evaluation.labels):,} held-out test images, the mean average precision is "
        f"{evaluation.mean_average_precision:.2%}. Random scores would reach about {share[share > 0].mean():.2%}, the "
        f"mean share of images with a label. At a probability of {THRESHOLD:g}, the F1 score is {evaluation.f1:.2%}, "
        f"and all labels of {evaluation.exact:.2%} of the images are right."
    )


def _numbers(evaluation):
    return [
        ("Mean average precision", f"{evaluation.mean_average_precision:.2%}", "mean over the labels, test images"),
        ("F1 score", f"{evaluation.f1:.2%}", f"of all pairs of an image and a label, at {THRESHOLD:g}"),
        ("All labels right", f"{evaluation.exact:.2%}", "of the test images"),
        ("Loss", f"{evaluation.loss:.4f}", "binary cross-entropy in nats, summed over the labels"),
    ]


def _label_row(score):
    average, precision, recall = (
        "none" if value is None else f"{value:.1%}"
        for value in (score.average_precision, score.precision, score.recall)
    )
    bar = f'<span class=bar style="--part:{score.average_precision or 0:.3f}"></span>'
    numbers = f"<td>{score.images:,}<td>{average}<td>{bar}<td>{precision}<td>{recall}"
    return f"<tr><th scope=row>{escape(score.name)}{numbers}"


def _pictures(evaluation):
    for index, image in evaluation.examples.items():
        truths, predicted = evaluation.labels[index], evaluation.predictions[index]
        marks = [
            ("" if truth and found else "\N{MINUS SIGN}" if truth else "+") + name
            for name, truth, found in zip(evaluation.names, truths, predicted, strict=True)
            if truth or found
        ]
        caption = ", ".join(marks) or "no label"
        note = "" if np.array_equal(truths, predicted) else " class=note"
        yield f"<li>{picture(image, caption)}<span{note}>{escape(caption)}</span>"
