"""Writes the report of a classification run: figures, and one HTML page that embeds them."""

import collections
import datetime
import os
import pathlib
import statistics
import sys
from html import escape

import keras
import numpy as np

import keras_vit
from keras_vit.analysis.attention import BLOCKS, has_rollout
from keras_vit.analysis.inputs import merges_tokens
from training.errors import without_queries
from training.evaluation.metrics import wilson_interval
from training.files import write_text
from training.recipe.assignments import as_text, leaves, read_run_info
from training.recipe.config import to_dict
from training.reports import pages
from training.reports.figures import (
    FEW_CLASSES,
    SMALL_IMAGE,
    data_uri,
    encode_picture,
    overlay_attention,
    plot_calibration,
    plot_confidence,
    plot_confusion_matrix,
    plot_curve,
)

_DPI = 150
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


def origin(run, recipe, task, result):
    """The template values that identify a run and describe how to repeat it."""
    info = read_run_info(run.recipe)
    started = datetime.datetime.fromisoformat(info["started"])
    directory = recipe.data.directory and pathlib.PurePath(recipe.data.directory).name
    name = f"{recipe.name}: {directory}" if directory else recipe.name
    dataset = f"the {recipe.data.dataset} {directory}" if directory else recipe.data.dataset
    return {
        "kind": "Report of a training run",
        "heading": name,
        "title": f"{name}: {result}",
        "note": f"{task}, trained on {dataset}; started on {started:%d %B %Y at %H:%M}",
        "origin": pages.part(
            "origin",
            recipe=_rows(leaves(to_dict(recipe))),
            command=escape(without_queries(info["command"])),
            provenance=_rows(_provenance(info)),
        ),
    }


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


def cost_numbers(model, state):
    """(label, value, note) of each cost of a model and its training."""
    cost = keras_vit.profile(model)
    return [
        ("Training time", datetime.timedelta(seconds=round(state.seconds)), "hours:minutes:seconds"),
        ("Throughput", f"{statistics.median(state.throughput):,.0f}", _throughput_note(state.throughput)),
        ("Parameters", f"{cost.parameters / 1e6:,.2f} M", f"{cost.parameters:,}"),
        ("Multiply-accumulates", f"{cost.macs / 1e6:,.2f} M", f"{cost.macs:,} for one image"),
    ]


def number_list(numbers):
    """The HTML of a list of (label, value, note)."""
    return "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><dd class=note>{note}</dd></div>\n" for label, value, note in numbers
    )


def _throughput_note(throughput):
    if len(throughput) == 1:
        return "images per second in training, including compilation"
    spread = f"{min(throughput):,.0f} to {max(throughput):,.0f}"
    return f"images per second in training: the median of {len(throughput)} intervals, {spread}"


def curves(run, recipe, state, quality, unit_of_loss="nats", least_loss=0.0):
    """Writes the learning curves, and returns their section of the page as HTML.

    Args:
        run: `training.runs.folder.Run` that the figures are written to.
        recipe: `training.recipe.config.Recipe`
        state: `training.runs.checkpoints.RunState`
        quality: (name in the history, label, factor of its values) of the metric that is shown beside the loss.
        unit_of_loss: Unit of the loss, or what it measures.
        least_loss: Lowest possible loss, drawn as a line. 0: no line.
    """
    history = {name: [row[name] for row in state.history] for name in state.history[0]}
    unit = "epoch" if recipe.fit.report_every == "1 epoch" else "step"
    panels = {
        "loss": ("loss", f"loss ({unit_of_loss})", 1),
        quality[0]: quality,
        "learning_rate": ("learning_rate", "learning rate", 1),
    }
    images = []
    for name, (key, label, scale) in panels.items():
        columns = {"training": key, "validation": f"val_{key}"}
        drawn = {curve: scale * np.array(history[key], float) for curve, key in columns.items() if key in history}
        least = least_loss if name == "loss" and least_loss else None
        ends = ", ".join(f"{curve} {values[-1]:.4g}" for curve, values in drawn.items())
        image = plot_curve(history[unit], drawn, unit, label, least)
        images.append(figure(run, name, image, f"{label} by {unit}; at the end: {ends}"))
    image = plot_curve(history[unit], {"training": state.throughput}, unit, "images per second")
    images.append(figure(run, "throughput", image, f"images per second in training, by {unit}"))
    note = f"With label smoothing, the loss cannot be lower than {least_loss:.3f} nats." if least_loss else ""
    return pages.part("curves", curves="\n".join(images), note=note)


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


def figure(run, name, drawn, alt):
    """Writes a matplotlib Figure to a run's folder, and returns its `<img>` element."""
    path = run.figures / f"{name}.png"
    drawn.savefig(path, dpi=_DPI)
    # At this width in CSS pixels (96 per inch), the figure has its original size. If it is narrower than 60 % of this
    # width, its text is too small to read.
    width = 96 * drawn.get_figwidth()
    attributes = f'width={width:.0f} style="min-width:{0.6 * width:.0f}px"'
    return _img_element(alt, attributes, path.read_bytes(), "image/png")


def picture(image, alt):
    """The `<img>` element of an image (H, W, channels) with pixels from 0 to 255."""
    return _img_element(alt, "class=small" if max(image.shape[:2]) < SMALL_IMAGE else "", *encode_picture(image))


def _img_element(alt, attributes, content, media_type):
    return f'<img {attributes} src="{data_uri(content, media_type)}" alt="{escape(alt)}">'


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


def _provenance(info):
    """Yields (name, text) pairs that describe the code, the package versions and the machine of a run."""
    git = info["git"] or {"commit": "unknown: not run from a git repository", "changed_files": []}
    yield "git commit", git["commit"]
    if git["changed_files"]:
        yield "files changed since the commit", ", ".join(line.split(maxsplit=1)[-1] for line in git["changed_files"])
    yield from info["versions"].items()
    backend = keras.backend.backend()
    yield "Keras backend", f"{backend} {sys.modules[backend].__version__}"
    yield "machine", info["machine"]
    yield "CPU cores", str(os.cpu_count())
    accelerators = collections.Counter(_accelerators(backend))
    yield "accelerators", ", ".join(f"{count} x {name}" for name, count in accelerators.items()) or "none"


def _accelerators(backend):
    if backend == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import tensorflow as tf

    devices = [device for device in tf.config.list_physical_devices() if device.device_type != "CPU"]
    details = map(tf.config.experimental.get_device_details, devices)
    return [detail.get("device_name", device.device_type) for device, detail in zip(devices, details, strict=True)]


def _rows(pairs):
    return "\n".join(f"<tr><th scope=row>{escape(name)}<td>{escape(as_text(value))}" for name, value in pairs)


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
