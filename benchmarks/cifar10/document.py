"""Writes the results of CIFAR-10 into docs/cifar10.md, and draws their figure."""

import statistics

from benchmarks.cifar10.options import BASELINE, OPTIONS
from benchmarks.cifar10.results import (
    HOUR,
    MINUTES,
    by_name,
    final_accuracy,
    of_an_hour,
    of_kind,
    steps_per_hour,
)
from benchmarks.records import FIGURES, markdown_table, put_between
from keras_vit.analysis.plots import ACCENT, FAINT, INK, MUTED, panels

NAMES = {
    "stem": "keras_vit, convolutional stem",
    "patches": "keras_vit, linear patch embedding",
    "keras_hub": "KerasHub's ViT, same blocks",
    "timm": "timm's ViT, same blocks",
    "tutorial": "ViT of Keras's example",
}
"""Names of trainings in tables and the figure."""
_COLOURS = {"stem": ACCENT, "patches": "#6ea1d4", "keras_hub": INK, "timm": MUTED, "tutorial": "#a8b0bb"}
_LABEL_HEIGHT = 2.2  # In units of the accuracy.


def write(rows):
    """Writes the tables of all results into the page, and draws the figure.

    Args:
        rows: Lines of the results. Of equal measurements, the newest counts.
    """
    hours, options, contenders = (of_kind(rows, kind) for kind in ("hour", "option", "contender"))
    others = of_an_hour(contenders)
    if hours:
        put_between("bench-cifar10 hour", hour_table(hours))
    if options:
        put_between("bench-cifar10 options", option_table(options))
    if hours and others:
        put_between("bench-cifar10 contenders", contender_table(hours, contenders))
        speeds = steps_per_hour(rows, {row["name"] for row in (*hours, *others)})
        plot(hours, others, speeds).savefig(FIGURES / "cifar10.png", dpi=200)


def hour_table(rows):
    """Markdown: a row for each embedding in the recipe, with all seeds. Minutes are those of the slowest training."""
    cells = []
    seeds = sorted({row["seed"] for row in rows})
    for name, runs in by_name(rows).items():
        accuracies = [row["test_accuracy"] for row in runs]
        minutes = max(row["seconds"] for row in runs) / 60
        by_seed = {row["seed"]: f"{row['test_accuracy']:.2%}" for row in runs}
        facts = (f"{runs[0]['parameters']:,}", f"{minutes:.0f}", f"{statistics.mean(accuracies):.2%}")
        cells.append((NAMES[name], *facts, *(by_seed.get(seed, "") for seed in seeds)))
    columns = ("model", "parameters", "minutes", "test accuracy, mean", *(f"seed {seed}" for seed in seeds))
    return _with_origin(rows, columns, cells)


def option_table(rows):
    """Markdown: a row for each option. The differences are those from the baseline."""
    accuracies = {row["name"]: row["curve"][-1][1] for row in rows}
    cells = []
    for row in sorted(rows, key=lambda row: list(OPTIONS).index(row["name"])):
        accuracy = accuracies[row["name"]]
        facts = (f"{row['parameters']:,}", f"{row['steps']:,}", f"{accuracy:.1%}")
        cells.append((row["name"], *facts, f"{100 * (accuracy - accuracies[BASELINE]):+.1f}"))
    columns = ("option", "parameters", "steps", "validation accuracy", "difference")
    return _with_origin(rows, columns, cells)


def contender_table(hours, contenders):
    """Markdown: the validation accuracy of our models and of each contender, whose learning rates are listed."""
    cells = []
    for name, runs in by_name(hours).items():
        cells.append((NAMES[name], "", "", f"{runs[0]['steps']:,}", f"{final_accuracy(runs):.1%}"))
    for row in sorted(of_an_hour(contenders), key=lambda row: list(NAMES).index(row["name"])):
        tried = [each for each in contenders if each["name"] == row["name"] and each["minutes"] == MINUTES]
        accuracies = {each["learning_rate"]: final_accuracy([each]) for each in tried}
        rates = ", ".join(f"{rate:g}: {accuracy:.1%}" for rate, accuracy in sorted(accuracies.items()))
        facts = (f"{row['learning_rate']:g}", f"{row['steps']:,}", f"{final_accuracy([row]):.1%}")
        cells.append((NAMES[row["name"]], rates, *facts))
    columns = ("model", f"learning rates, after {MINUTES} minutes", "chosen", "steps", "validation accuracy")
    return _with_origin(contenders, columns, cells, packages=None)


def _with_origin(rows, columns, cells, packages=("keras", "tensorflow")):
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    in_words = ", ".join(f"{name} {versions[name]}" for name in packages or sorted(versions))
    devices = " and ".join(dict.fromkeys(row["device"] for row in rows))
    dates = sorted(row["time"][:10] for row in rows)
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    origin = f"{devices}; {in_words}; {period}:"
    return f"{origin}\n\n{markdown_table(columns, cells, columns[1:])}\n"


def plot(hours, contenders, speeds):
    """A matplotlib figure of the validation accuracy over the minutes of training.

    Args:
        hours: Rows of our recipe.
        contenders: The training of an hour of each contender.
        speeds: As from `steps_per_hour`.
    """
    figure, [[ax]] = panels((6.4, 3.6))
    ends = []
    for name, runs in by_name([*hours, *contenders]).items():
        for row in runs:
            steps, accuracies = zip(*row["curve"], strict=True)
            minutes = [HOUR * step / speeds[name] for step in steps]
            ax.plot(minutes, [100 * accuracy for accuracy in accuracies], color=_COLOURS[name], linewidth=1.6)
        ends.append((100 * final_accuracy(runs), minutes[-1], NAMES[name]))
    height = 100
    for percent, end, name in sorted(ends, reverse=True):
        height = min(percent, height - _LABEL_HEIGHT)
        label = f"{name}: {percent:.0f} %"
        ax.annotate(label, (end, height), (4, 0), textcoords="offset points", va="center", fontsize=7)
    ax.set(xlabel="minutes of training on two CPU cores", ylabel="validation accuracy, %", xlim=(0, 1.02 * HOUR))
    ax.grid(axis="y", color=FAINT)
    return figure
