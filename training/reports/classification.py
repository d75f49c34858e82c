"""The report of a run: a page of HTML that needs nothing beside it, and its figures. C classes."""

import collections
import datetime
import importlib.metadata
import os
import pathlib
import statistics
from html import escape

import keras
import numpy as np

import keras_vit
from training.errors import without_queries
from training.evaluation.metrics import wilson_interval
from training.files import write_text
from training.recipe.assignments import as_text, leaves, read_facts
from training.recipe.config import to_dict
from training.reports import pages
from training.reports.figures import (
    FEW_CLASSES,
    SMALL_IMAGE,
    data_uri,
    encode_picture,
    overlay,
    plot_calibration,
    plot_confidence,
    plot_confusion_matrix,
    plot_curve,
)

_DOTS_AN_INCH = 150
_MOST_CLASSES = 1000  # In a picture of a matrix.


def write_report(run, recipe, keeper, evaluation, neighbour, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.folder.Run` with its `recipe.json`.
        recipe: `training.recipe.config.Recipe`
        keeper: `training.engine.callbacks.Keeper`, of which the history, the throughput and the seconds are shown.
        evaluation: `training.evaluation.classification.Evaluation` on the test images.
        neighbour: Accuracy of a nearest-neighbour classifier on the same images, from 0 to 1, or `None`.
        model: The Keras model.
    """
    num_classes = len(evaluation.class_names)
    least_loss = _least_loss(recipe, num_classes)
    page = pages.page(
        "report",
        **origin(run, recipe, "Classification", f"{evaluation.accuracy:.2%} test accuracy"),
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in judge(evaluation, neighbour)),
        numbers=number_list([*_numbers(evaluation, neighbour), *cost_numbers(model, keeper)]),
        curves=curves(run, recipe, keeper, ("accuracy", "accuracy (% of the images)"), least_loss),
        least_loss=f"Label smoothing keeps this loss above {least_loss:.3f} nats." if least_loss else "",
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
    """The values of a page that say which run it is of, and how to repeat it."""
    facts = read_facts(run.recipe)
    started = datetime.datetime.fromisoformat(facts["started"])
    directory = recipe.data.directory and pathlib.PurePath(recipe.data.directory).name
    name = f"{recipe.name}: {directory}" if directory else recipe.name
    dataset = f"the {recipe.data.dataset} {directory}" if directory else recipe.data.dataset
    return {
        "kind": "Report of a training run",
        "heading": name,
        "title": f"{name}: {result}",
        "note": f"{task}, trained on {dataset}; begun on {started:%d %B %Y at %H:%M}",
        "origin": pages.part(
            "origin",
            recipe=_rows(leaves(to_dict(recipe))),
            command=escape(without_queries(facts["command"])),
            provenance=_rows(_provenance(facts)),
        ),
    }


def judge(evaluation, neighbour):
    """Sentences from which a reader can tell what the accuracy is worth."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    commonest = evaluation.labels.sum(axis=0).max() / total
    yield (
        f"{right:,} of {total:,} held-out test images are classified right, which is {evaluation.accuracy:.2%} "
        f"(95% Wilson interval: {low:.2%} to {high:.2%}). Always naming their commonest class would be right for "
        f"{commonest:.2%}."
    )
    if neighbour is None:
        return
    points = 100 * (evaluation.accuracy - neighbour)
    comparison = f"The model is {'better' if points > 0 else 'worse'} by {abs(points):.2f} percentage points"
    if abs(points) < 0.005:
        comparison = "The model is right equally often: on these images it shows nothing that comparing pixels does not"
    elif low <= neighbour <= high:
        comparison += f", which is within the interval: {total:,} images are too few to tell which of them is better"
    elif points < 0:
        comparison += ": here, comparing pixels works better"
    yield (
        f"A nearest-neighbour classifier, which learns nothing and gives an image the class of the known image with "
        f"the most similar pixels, is right for {neighbour:.2%} of the same images. {comparison}."
    )


def _numbers(evaluation, neighbour):
    """(label, value, note) of the single numbers on the test images."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    of_what = ", summed over a sigmoid for each class" if evaluation.has_sigmoids else ""
    numbers = [
        (
            "Test accuracy",
            f"{evaluation.accuracy:.2%}",
            f"{right:,} of {total:,} images; 95% interval {low:.1%} to {high:.1%}",
        )
    ]
    if neighbour is not None:
        numbers.append(("Nearest neighbour", f"{neighbour:.2%}", "accuracy of comparing raw pixels, same images"))
    if evaluation.top5_accuracy is not None:
        numbers.append(("Top-5 accuracy", f"{evaluation.top5_accuracy:.2%}", "the right class is among the first five"))
    return [
        *numbers,
        ("Cross-entropy", f"{evaluation.loss:z.4f}", f"nats{of_what}, on the test images, without smoothing"),
        (
            "Calibration error",
            f"{evaluation.calibration.expected_error:.2%}",
            f"expected; the mean confidence is {evaluation.mean_confidence:.2%}",
        ),
    ]


def cost_numbers(model, keeper):
    """(label, value, note) of what a model costs, and its training."""
    cost = keras_vit.profile(model)
    return [
        ("Training time", datetime.timedelta(seconds=round(keeper.seconds)), "hours:minutes:seconds"),
        ("Throughput", f"{statistics.median(keeper.throughput):,.0f}", _spread(keeper.throughput)),
        ("Parameters", f"{cost.parameters / 1e6:,.2f} M", f"{cost.parameters:,}"),
        ("Multiply-accumulates", f"{cost.macs / 1e6:,.2f} M", f"{cost.macs:,} for one image"),
    ]


def number_list(numbers):
    """A page's list of (label, value, note)."""
    return "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><dd class=note>{note}</dd></div>\n" for label, value, note in numbers
    )


def _spread(throughput):
    if len(throughput) == 1:
        return "images a second in training, with the compilation"
    spread = f"{min(throughput):,.0f} to {max(throughput):,.0f}"
    return f"images a second in training: the median of {len(throughput)} intervals, {spread}"


def curves(run, recipe, keeper, quality, least_loss=0.0):
    """The figures of what the history says.

    Args:
        run: `training.runs.folder.Run` to write them to.
        recipe: `training.recipe.config.Recipe`
        keeper: `training.engine.callbacks.Keeper`
        quality: (name in the history, label) of what is told beside the loss, from 0 to 1.
        least_loss: The loss that cannot be undercut, in nats, or 0.
    """
    history = {name: [row[name] for row in keeper.history] for name in keeper.history[0]}
    unit = "epoch" if recipe.fit.report_every == "1 epoch" else "step"
    panels = {
        "loss": ("loss", "loss (nats)", 1),
        quality[0]: (*quality, 100),
        "learning_rate": ("learning_rate", "learning rate", 1),
    }
    images = []
    for name, (key, label, scale) in panels.items():
        found = {"training": key, "validation": f"val_{key}"}
        drawn = {curve: scale * np.array(history[key], float) for curve, key in found.items() if key in history}
        least = least_loss if name == "loss" and least_loss else None
        ends = ", ".join(f"{curve} {values[-1]:.4g}" for curve, values in drawn.items())
        image = plot_curve(history[unit], drawn, unit, label, least)
        images.append(figure(run, name, image, f"{label} by {unit}; at the end: {ends}"))
    image = plot_curve(history[unit], {"training": keeper.throughput}, unit, "images a second")
    images.append(figure(run, "throughput", image, f"images a second in training, by {unit}"))
    return "\n".join(images)


def _mistakes(evaluation):
    if not evaluation.mistakes:
        return f"<p>No mistakes: all {len(evaluation.labels):,} images are right.</p>"
    right, total = _counts(evaluation)
    shown = len(evaluation.mistakes)
    which = "All" if shown == total - right else f"The {shown} most confident of {total - right:,}"
    items = "\n".join(
        f"<li>{picture(image, _caption(evaluation, index))}{_written_caption(evaluation, index)}"
        for index, image in evaluation.mistakes.items()
    )
    return f"<p>{which} mistakes: true → predicted class, and its probability.</p>\n<ul class=pictures>\n{items}\n</ul>"


def _attention(evaluation, model):
    if not any(isinstance(layer, keras_vit.layers.EncoderBlock) for layer in model.layers):
        return "<p>This model has no encoder blocks whose attention could be shown.</p>"
    if getattr(keras_vit.describe(model).config, "token_merging", 0):
        return "<p>This model merges tokens (token_merging), so there is no attention of each patch to be shown.</p>"
    maps = keras_vit.attention_rollout(model, np.stack(list(evaluation.examples.values())))
    items = "\n".join(
        f"<li>{picture(image, _caption(evaluation, index))}"
        f"{picture(overlay(image, attention), f'attention for the image beside it: {_caption(evaluation, index)}')}"
        f"{_written_caption(evaluation, index)}"
        for (index, image), attention in zip(evaluation.examples.items(), maps, strict=True)
    )
    return f'<ul class="pictures pairs">\n{items}\n</ul>'


def _calibration(run, calibration):
    error = calibration.expected_error
    diagram = f"accuracy by probability of the predicted class; expected calibration error {error:.2%}"
    histogram = "number of test images by probability of the predicted class"
    return "\n".join(
        [
            figure(run, "calibration", plot_calibration(calibration), diagram),
            figure(run, "confidence", plot_confidence(calibration), histogram),
        ]
    )


def _confusion_matrix(run, evaluation):
    if evaluation.has_several_labels or len(evaluation.class_names) > _MOST_CLASSES:
        return f"Shown for at most {_MOST_CLASSES:,} classes, of which one is right for an image."
    matrix = plot_confusion_matrix(evaluation.confusion, evaluation.class_names)
    return figure(run, "confusion_matrix", matrix, "counts of test images by true and predicted class")


def figure(run, name, drawn, alt):
    """Writes a matplotlib Figure to a run's folder, and returns it as an element of a page."""
    path = run.figures / f"{name}.png"
    drawn.savefig(path, dpi=_DOTS_AN_INCH)
    # At its width in CSS pixels (96 an inch) a figure's text is of the size that it was drawn with. Below six tenths of
    # that it cannot be read.
    width = 96 * drawn.get_figwidth()
    attributes = f'width={width:.0f} style="min-width:{0.6 * width:.0f}px"'
    return _embedded(path.read_bytes(), "image/png", alt, attributes)


def picture(image, alt):
    """An image (H, W, channels), pixels from 0 to 255, as an element of a page."""
    return _embedded(*encode_picture(image), alt, "class=small" if max(image.shape[:2]) < SMALL_IMAGE else "")


def _embedded(content, media_type, alt, attributes):
    return f'<img {attributes} src="{data_uri(content, media_type)}" alt="{escape(alt)}">'


def _caption(evaluation, index):
    names = evaluation.class_names
    true = " or ".join(names[label] for label in np.flatnonzero(evaluation.labels[index]))
    return true if evaluation.is_right[index] else f"{true} → {names[evaluation.predictions[index]]}"


def _written_caption(evaluation, index):
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


def _provenance(facts):
    """(name, text) of what else decides what a run's result is."""
    git = facts["git"] or {"commit": "not known: no clone of a git repository", "changed_files": []}
    yield "git commit", git["commit"]
    if git["changed_files"]:
        yield "files not as in the commit", ", ".join(line.split(maxsplit=1)[-1] for line in git["changed_files"])
    yield from facts["versions"].items()
    backend = keras.backend.backend()
    yield "Keras backend", f"{backend} {importlib.metadata.version(backend)}"
    yield "machine", facts["machine"]
    yield "CPU cores", str(os.cpu_count())
    accelerators = collections.Counter(_accelerators(backend))
    yield "accelerators", ", ".join(f"{count} x {name}" for name, count in accelerators.items()) or "none"


def _accelerators(backend):
    """Names of the devices that are not CPUs."""
    if backend == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    import tensorflow as tf

    devices = [device for device in tf.config.list_physical_devices() if device.device_type != "CPU"]
    details = map(tf.config.experimental.get_device_details, devices)
    return [found.get("device_name", device.device_type) for device, found in zip(devices, details, strict=True)]


def _rows(pairs):
    return "\n".join(f"<tr><th scope=row>{escape(name)}<td>{escape(as_text(value))}" for name, value in pairs)


def _counts(evaluation):
    return int(evaluation.is_right.sum()), len(evaluation.labels)


def _least_loss(recipe, num_classes):
    """The loss in nats of a model that predicts just the smoothed labels; 0 if they are not smoothed, or not alone.

    It is the entropy of the labels: of one distribution over the classes, or with sigmoids of one for each class.
    """
    smoothing = recipe.fit.label_smoothing
    if not smoothing or recipe.distillation.teacher is not None:
        return 0.0
    labels = smoothing / num_classes + (1 - smoothing) * np.eye(num_classes)[0]
    outcomes = np.stack([labels, 1 - labels]) if recipe.fit.loss == "sigmoid" else labels
    return float(-(outcomes * np.log(outcomes)).sum())
