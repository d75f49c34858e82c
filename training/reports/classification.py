"""Writes the report of a classification run: figures, and one HTML page that embeds them."""

from html import escape

import numpy as np

import keras_vit
from keras_vit.analysis.attention import BLOCKS, has_rollout
from keras_vit.analysis.inputs import merges_tokens
from training.evaluation.metrics import wilson_interval
from training.files import write_text
from training.reports import pages
from training.reports.figures import (
    FEW_CLASSES,
    overlay_attention,
    plot_calibration,
    plot_confidence,
    plot_confusion_matrix,
)
from training.reports.parts import cost_numbers, curves, figure, number_list, origin, picture

_MAX_CLASSES = 1000  # Confusion matrices with more classes are not drawn.


def write_report(run, recipe, state, evaluation, neighbour, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        evaluation: `training.evaluation.classification.Classification` on the test images.
        neighbour: Accuracy of a nearest-neighbour classifier on the test images, from 0 to 1. `None`: not reported.
        model: The Keras model.
    """
    num_classes = len(evaluation.class_names)
    least_loss = _least_loss(recipe, num_classes)
    page = pages.page(
        "report",
        **origin(run, recipe, "Classification", f"{evaluation.accuracy:.2%} test accuracy"),
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in judge(evaluation, neighbour)),
        numbers=number_list([*_numbers(evaluation, neighbour), *cost_numbers(model, state)]),
        curves=curves(run, recipe, state, ("accuracy", "accuracy (% of the images)", 100), least_loss=least_loss),
        mistakes=_mistakes(evaluation),
        attention=_attention(evaluation, model),
        calibration=_calibration(run, evaluation.calibration),
        confusion_matrix=_confusion_matrix(run, evaluation),
        num_classes=num_classes,
        open="open" if num_classes <= FEW_CLASSES else "",
        classes="\n".join(map(_class_row, evaluation.by_class)),
    )
    write_text(run.report, page)


def judge(evaluation, neighbour):
    """Yields sentences that put the accuracy into perspective."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    commonest = evaluation.labels.sum(axis=0).max() / total
    yield (
        f"{right:,} of {total:,} held-out test images are classified correctly, which is {evaluation.accuracy:.2%} "
        f"(95% Wilson interval: {low:.2%} to {high:.2%}). Always predicting the most common class would "
        f"reach {commonest:.2%}."
    )
    if neighbour is None:
        return
    points = 100 * (evaluation.accuracy - neighbour)
    comparison = f"The model is {'better' if points > 0 else 'worse'} by {abs(points):.2f} percentage points"
    if abs(points) < 0.005:
        comparison = "The model is equally accurate, so on these images it is no better than comparing pixels"
    elif low <= neighbour <= high:
        comparison += f". The interval contains both accuracies, so {total:,} images are too few to decide"
    elif points < 0:
        comparison += ", so comparing pixels works better on these images"
    yield (
        f"For comparison, a nearest-neighbour classifier predicts the class of the training or validation image with "
        f"the most similar pixels. It is right for {neighbour:.2%} of the same images. {comparison}."
    )


def _numbers(evaluation, neighbour):
    """(label, value, note) of each number that is measured on the test images."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    accuracy_note = f"{right:,} of {total:,} images; 95% interval {low:.1%} to {high:.1%}"
    numbers = [("Test accuracy", f"{evaluation.accuracy:.2%}", accuracy_note)]
    sum_note = ", summed over the sigmoids of all classes" if evaluation.has_sigmoids else ""
    if neighbour is not None:
        numbers.append(("Nearest neighbour", f"{neighbour:.2%}", "on the same images, by comparing raw pixels"))
    if evaluation.top5_accuracy is not None:
        numbers.append(("Top-5 accuracy", f"{evaluation.top5_accuracy:.2%}", "the right class is among the best five"))
    calibration_note = f"expected calibration error; the mean confidence is {evaluation.mean_confidence:.2%}"
    return [
        *numbers,
        ("Cross-entropy", f"{evaluation.loss:z.4f}", f"nats{sum_note}, on the test images, without label smoothing"),
        ("Calibration error", f"{evaluation.calibration.expected_error:.2%}", calibration_note),
    ]


def _mistakes(evaluation):
    if not evaluation.mistakes:
        return f"<p>No mistakes: all {len(evaluation.labels):,} images are classified correctly.</p>"
    right, total = _counts(evaluation)
    shown = len(evaluation.mistakes)
    which = "All" if shown == total - right else f"The {shown} most confident of {total - right:,}"
    items = "\n".join(
        f"<li>{picture(image, _caption(evaluation, index))}{_caption_element(evaluation, index)}"
        for index, image in evaluation.mistakes.items()
    )
    return f"<p>{which} mistakes: true → predicted class, and its probability.</p>\n<ul class=pictures>\n{items}\n</ul>"


def _attention(evaluation, model):
    if not any(isinstance(layer, BLOCKS) for layer in model.layers):
        return "<p>This model has no encoder blocks, so there is no attention to show.</p>"
    if merges_tokens(model):
        return "<p>This model merges tokens (token_merging), so the attention of each patch cannot be shown.</p>"
    if not has_rollout(model):
        return "<p>Attention rollout is not defined for this model's pooling, so there is no attention to show.</p>"
    maps = keras_vit.attention_rollout(model, np.stack(list(evaluation.examples.values())))
    items = "\n".join(
        f"<li>{picture(image, caption := _caption(evaluation, index))}"
        f"{picture(overlay_attention(image, attention), f'attention for the image beside it: {caption}')}"
        f"{_caption_element(evaluation, index)}"
        for (index, image), attention in zip(evaluation.examples.items(), maps, strict=True)
    )
    return f'<ul class="pictures pairs">\n{items}\n</ul>'


def _calibration(run, calibration):
    error = calibration.expected_error
    diagram = f"accuracy by probability of the predicted class; expected calibration error {error:.2%}"
    histogram = "number of test images by probability of the predicted class"
    figures = [
        figure(run, "calibration", plot_calibration(calibration), diagram),
        figure(run, "confidence", plot_confidence(calibration), histogram),
    ]
    return "\n".join(figures)


def _confusion_matrix(run, evaluation):
    if evaluation.has_several_labels or len(evaluation.class_names) > _MAX_CLASSES:
        return f"Shown only for at most {_MAX_CLASSES:,} classes and one label per image."
    matrix = plot_confusion_matrix(evaluation.confusion, evaluation.class_names)
    return figure(run, "confusion_matrix", matrix, "counts of test images by true and predicted class")


def _caption(evaluation, index):
    names = evaluation.class_names
    true = " or ".join(names[label] for label in np.flatnonzero(evaluation.labels[index]))
    return true if evaluation.is_right[index] else f"{true} → {names[evaluation.predictions[index]]}"


def _caption_element(evaluation, index):
    caption, probability = escape(_caption(evaluation, index)), f"{evaluation.confidence[index]:.1%}"
    return f"<span>{caption} <span class=note>{probability}</span></span>"


def _class_row(score):
    accuracy = "no images" if score.accuracy is None else f"{score.accuracy:.1%}"
    times = "once" if score.times == 1 else f"{score.times:,} times"
    mistaken = f"{score.taken_for} ({times})" if score.times else ""
    bar = f'<span class=bar style="--part:{score.accuracy or 0:.3f}"></span>'
    return (
        f"<tr><th scope=row>{escape(score.name)}<td>{score.images:,}<td>{score.right:,}<td>{accuracy}<td>{bar}"
        f"<td>{escape(mistaken)}"
    )


def _counts(evaluation):
    return int(evaluation.is_right.sum()), len(evaluation.labels)


def _least_loss(recipe, num_classes):
    """The lowest possible loss in nats. It is 0 if there is no label smoothing, or if the model is distilled.

    Otherwise, it is the entropy of the smoothed labels. With sigmoids, it is the sum of the entropies of all classes.
    """
    smoothing = recipe.fit.label_smoothing
    if not smoothing or recipe.distillation.teacher is not None:
        return 0.0
    labels = smoothing / num_classes + (1 - smoothing) * np.eye(num_classes)[0]
    outcomes = np.stack([labels, 1 - labels]) if recipe.fit.loss == "sigmoid" else labels
    return float(-(outcomes * np.log(outcomes)).sum())
