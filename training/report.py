"""The report of a run: three figures, and a page of HTML that needs nothing beside it. C classes."""

import base64
import datetime
import json
import math
import pathlib
import string
from html import escape

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

import keras_vit
from training.assignments import as_text, leaves
from training.config import to_dict

NUM_MISTAKES = 15
_TEMPLATE = pathlib.Path(__file__).with_name("report_template.html")
_INK, _MUTED, _FAINT = "#1f2733", "#5f6b7a", "#d5dae1"
_COLORS = {"training": "#98a2b0", "validation": "#1d5fa6"}
_BLUES = LinearSegmentedColormap.from_list("blues", ["#f1f4f8", "#a9c8e6", "#1d5fa6", "#0b2f57"])
_FEW_CLASSES = 20  # So many can be read off at a glance: matrices show their counts, tables are open.
_SMALL_IMAGE = 64  # Pixels. Smoothing would blur what is below it.


def write_report(run, recipe, keeper, evaluation, neighbour, model):
    """Writes the figures of a run and its `report.html`.

    Args:
        run: `training.runs.Run` with its `recipe.json` and the result in it.
        recipe: `training.config.Recipe`
        keeper: `training.callbacks.Keeper` with the history.
        evaluation: `training.evaluate.Evaluation` on the test images.
        neighbour: Accuracy of a nearest-neighbour classifier on the same images, from 0 to 1, or `None`.
        model: The Keras model.
    """
    num_classes = len(evaluation.class_names)
    history = {name: [row[name] for row in keeper.history] for name in keeper.history[0]}
    least_loss = _least_loss(recipe.fit.label_smoothing, num_classes)
    figures = {
        "curves": plot_curves(history, least_loss),
        "confusion_matrix": plot_confusion_matrix(evaluation),
        "mistakes": plot_mistakes(evaluation),
    }
    for name, figure in figures.items():
        figure.savefig(run.figures / f"{name}.png", dpi=150)
    facts = json.loads(run.recipe.read_text())
    page = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=escape(recipe.name),
        dataset=escape(recipe.data.dataset),
        begun=f"{datetime.datetime.fromisoformat(facts['started']):%d %B %Y at %H:%M}",
        accuracy=f"{evaluation.accuracy:.2%}",
        verdict="".join(f"<p>{escape(sentence)}</p>\n" for sentence in judge(evaluation, neighbour)),
        numbers=_numbers(evaluation, neighbour, model, keeper.seconds),
        curves=_image(run, "curves", _curves_in_words(history)),
        least_loss=f"Label smoothing keeps this loss above {least_loss:.3f} nats." if least_loss else "",
        mistakes=_image(run, "mistakes", _mistakes_in_words(evaluation)),
        confusion_matrix=_image(run, "confusion_matrix", "Counts of test images by true and predicted class."),
        num_classes=num_classes,
        open="open" if num_classes <= _FEW_CLASSES else "",
        classes=_class_rows(evaluation),
        recipe=_rows(leaves(to_dict(recipe))),
        command=escape(facts["command"]),
        provenance=_rows(_provenance(facts)),
    )
    run.report.write_text(page, encoding="utf-8")


def wilson_interval(right, total, z=1.959964):
    """Wilson's score interval, (low, high), of an accuracy of `right` of `total` images; 95 % unless `z` is given."""
    accuracy, penalty = right / total, z * z / total
    centre = (accuracy + penalty / 2) / (1 + penalty)
    half = math.sqrt(penalty * accuracy * (1 - accuracy) + penalty * penalty / 4) / (1 + penalty)
    return max(0.0, centre - half), min(1.0, centre + half)


def judge(evaluation, neighbour):
    """Sentences from which a reader can tell what the accuracy is worth."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    commonest = np.bincount(evaluation.labels).max() / total
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


def confident_mistakes(evaluation, limit):
    """Indices of the images that are classified wrongly with the highest probability, highest first."""
    wrong = np.flatnonzero(evaluation.predictions != evaluation.labels)
    return wrong[np.argsort(-_confidence(evaluation)[wrong], kind="stable")][:limit]


def plot_curves(history, least_loss=0.0):
    """Loss and accuracy by epoch, from Keras's `History.history`; a line at the loss that cannot be undercut."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    loss, accuracy = figure.subplots(1, 2, gridspec_kw={"wspace": 0.08})
    for axes, name, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
        for curve, key in (("training", name), ("validation", f"val_{name}")):
            if key in history:
                values = scale * np.asarray(history[key], float)
                marker = "o" if len(values) <= 10 else None
                axes.plot(np.arange(1, len(values) + 1), values, color=_COLORS[curve], lw=2, marker=marker, label=curve)
        _style(axes)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.grid(axis="y", color=_FAINT, lw=0.6)
    loss.set_ylabel("cross-entropy loss (nats)")
    accuracy.set_ylabel("accuracy (% of the images)")
    if least_loss:
        loss.axhline(least_loss, color=_MUTED, lw=1, ls=(0, (4, 3)), label="least possible", zorder=1)
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False, labelcolor=_INK)
    return figure


def plot_confusion_matrix(evaluation):
    """Which classes are taken for which: a row is a true class, its colours the part of its images in each column."""
    counts = evaluation.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(0.52 * len(counts), 3.0), 10.0)
    figure = Figure(figsize=(side + 2.4, side + 1.6), layout="constrained")
    axes = figure.add_subplot()
    # The root makes a confusion of a few per cent of a class visible.
    matrix = axes.imshow(shares, cmap=_BLUES, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    bar = figure.colorbar(matrix, ax=axes, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1], aspect=40, shrink=0.8)
    bar.ax.set_yticklabels(["0", "1", "5", "20", "50", "100"])
    bar.set_label("% of the true class (root scale)", color=_MUTED)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=_MUTED)
    _style(axes)
    _name_classes(axes, evaluation.class_names, side)
    if len(counts) <= _FEW_CLASSES:
        axes.set_xticks(np.arange(len(counts) - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(counts) - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", lw=1.5)
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.3 else _INK
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", color=color, size=10)
    return figure


def plot_mistakes(evaluation, limit=NUM_MISTAKES, columns=5):
    """A grid of the mistakes with the highest probability; each says true → predicted class, and the probability."""
    indices = confident_mistakes(evaluation, limit)
    right, total = _counts(evaluation)
    if not len(indices):
        figure = Figure(figsize=(9, 1.6))
        message = f"No mistakes: all {total:,} images are right"
        figure.text(0.5, 0.5, message, color=_INK, size=15, ha="center", va="center")
        return figure
    titles = [_title(evaluation, index) for index in indices]
    rows = -(-len(indices) // columns)
    height, width = evaluation.images.shape[1:3]
    row_inches = 1.72 * height / width + 0.21 * (max(title.count("\n") for title in titles) + 1) + 0.12
    figure = Figure(figsize=(9, rows * row_inches + 0.35), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05, hspace=0.02)
    which = "All" if len(indices) == total - right else f"The {len(indices)} most confident of {total - right:,}"
    heading = f"{which} mistakes: true → predicted class, and its probability"
    figure.suptitle(heading, color=_INK, size=11, x=0.008, ha="left")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, index, title in zip(grid, indices, titles, strict=False):
        _show(axes, evaluation.images[index])
        axes.set_title(title, color=_INK, size=10, parse_math=False)
    return figure


def _title(evaluation, index):
    true = _shortened(evaluation.class_names[evaluation.labels[index]])
    predicted = _shortened(evaluation.class_names[evaluation.predictions[index]])
    separator = " → " if len(true + predicted) < 18 else "\n→ "
    return f"{true}{separator}{predicted}\n{_confidence(evaluation)[index]:.1%}"


def _show(axes, image):
    interpolation = "nearest" if max(image.shape[:2]) < _SMALL_IMAGE else "antialiased"
    pixels = np.clip(np.rint(image), 0, 255).astype("uint8")
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation=interpolation)


def _style(axes):
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, colors=_MUTED)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.set_axisbelow(True)


def _name_classes(axes, class_names, side):
    step = -(-len(class_names) // 100)  # A hundred names fit along the side.
    positions = range(0, len(class_names), step)
    names = [_shortened(class_names[position]) for position in positions]
    size = min(10.0, 72 * side / len(positions) * 0.8)
    upright = len(names) <= _FEW_CLASSES and max(map(len, names)) <= 5
    axes.set_xticks(positions, names, size=size, rotation=0 if upright else 90, parse_math=False)
    axes.set_yticks(positions, names, size=size, parse_math=False)
    some = f" (1 in {step} is named)" if step > 1 else ""
    axes.set_xlabel(f"predicted class{some}")
    axes.set_ylabel(f"true class{some}")


def _numbers(evaluation, neighbour, model, seconds):
    """The page's list of single numbers."""
    right, total = _counts(evaluation)
    low, high = wilson_interval(right, total)
    interval = f"{right:,} of {total:,} images; 95% interval {low:.1%} to {high:.1%}"
    cost = keras_vit.profile(model)
    duration = datetime.timedelta(seconds=round(seconds))
    numbers = [
        ("Test accuracy", f"{evaluation.accuracy:.2%}", interval),
        ("Cross-entropy", f"{evaluation.loss:z.4f}", "nats, on the test images, without smoothing"),
        ("Training time", duration, "hours:minutes:seconds"),
        ("Parameters", f"{cost.parameters / 1e6:,.2f} M", f"{cost.parameters:,}"),
        ("Multiply-accumulates", f"{cost.macs / 1e6:,.2f} M", f"{cost.macs:,} for one image"),
    ]
    if neighbour is not None:
        numbers.insert(1, ("Nearest neighbour", f"{neighbour:.2%}", "accuracy of comparing raw pixels, same images"))
    return "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><dd class=note>{note}</dd></div>\n" for label, value, note in numbers
    )


def _image(run, name, alt):
    png = (run.figures / f"{name}.png").read_bytes()
    # At its width in CSS pixels (96 an inch) a figure's text is of the size that it was drawn with.
    width = round(int.from_bytes(png[16:20], "big") * 96 / 150)
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img src="{source}" width="{width}" alt="{escape(alt)}">'


def _curves_in_words(history):
    ends = [f"{key.replace('val_', 'validation ')} {history[key][-1]:.1%}" for key in history if "accuracy" in key]
    return f"Loss and accuracy by epoch. After the last one: {', '.join(ends)}."


def _mistakes_in_words(evaluation):
    titles = [_title(evaluation, index).replace("\n", " ") for index in confident_mistakes(evaluation, NUM_MISTAKES)]
    return f"Test images, each with its true → predicted class: {'; '.join(titles) or 'none'}."


def _class_rows(evaluation):
    """A row a class, those that are recognised worst first."""
    counts = evaluation.confusion
    totals, rights = counts.sum(axis=1), counts.diagonal()
    accuracies = rights / np.maximum(totals, 1)
    rows = []
    for label in np.argsort(np.where(totals, accuracies, 2), kind="stable"):
        others = np.where(np.arange(len(counts)) == label, 0, counts[label])
        mistaken = f"{evaluation.class_names[others.argmax()]} ({_times(others.max())})" if others.any() else ""
        accuracy = f"{accuracies[label]:.1%}" if totals[label] else "no images"
        bar = f'<span class=bar style="--part:{accuracies[label]:.3f}"></span>'
        rows.append(
            f"<tr><th scope=row>{escape(evaluation.class_names[label])}<td>{totals[label]:,}<td>{rights[label]:,}"
            f"<td>{accuracy}<td>{bar}<td>{escape(mistaken)}"
        )
    return "\n".join(rows)


def _provenance(facts):
    """(name, text) of what else decides what a run's result is."""
    git = facts["git"] or {"commit": "not known: no clone of a git repository", "changed_files": []}
    yield "git commit", git["commit"]
    if git["changed_files"]:
        yield "files not as in the commit", ", ".join(line.split(maxsplit=1)[-1] for line in git["changed_files"])
    yield from facts["versions"].items()
    yield "machine", facts["machine"]


def _rows(pairs):
    return "\n".join(f"<tr><th scope=row>{escape(name)}<td>{escape(as_text(value))}" for name, value in pairs)


def _counts(evaluation):
    return int((evaluation.predictions == evaluation.labels).sum()), len(evaluation.labels)


def _confidence(evaluation):
    return evaluation.probabilities.max(axis=1).astype(float)


def _least_loss(label_smoothing, num_classes):
    """The entropy of smoothed labels in nats, which is the cross-entropy of a model that predicts just them."""
    labels = label_smoothing / num_classes + (1 - label_smoothing) * np.eye(num_classes)[0]
    return float(-(labels * np.log(np.maximum(labels, 1e-30))).sum())


def _shortened(name, length=18):
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _times(count):
    return "once" if count == 1 else f"{count:,} times"
