"""Writes the results of CIFAR-10 into docs/cifar10.md, and draws their figure."""

import statistics

from benchmarks.cifar10.options import OPTIONS
from benchmarks.records import FIGURES, markdown_table, newest, put_between
from keras_vit.analysis.plots import ACCENT, FAINT, INK, MUTED, panels

NAMES = {
    "stem": "keras_vit, convolutional stem",
    "patches": "keras_vit, linear patch embedding",
    "keras_hub": "KerasHub's ViT of the same size",
    "timm": "timm's ViT of the same size",
    "tutorial": "ViT of Keras's example",
}
"""Names of trainings in tables and the figure."""
_COLOURS = {"stem": ACCENT, "patches": "#6ea1d4", "keras_hub": INK, "timm": MUTED, "tutorial": "#a8b0bb"}
_KEYS = {"hour": ("name", "seed"), "option": ("name",), "contender": ("name", "learning_rate", "minutes")}


def write(rows):
    """Writes the tables of all results into the page, and draws the figure.

    Args:
        rows: Lines of the results. Of equal measurements, the newest counts.
    """
    hours, options, contenders = (
        newest([row for row in rows if row["kind"] == kind], keys) for kind, keys in _KEYS.items()
    )
    if hours:
        put_between("bench-cifar10 hour", hour_table(hours))
    if options:
        put_between("bench-cifar10 options", option_table(options))
    if contenders:
        put_between("bench-cifar10 contenders", contender_table(contenders))
    if hours and contenders:
        plot(hours, contenders).savefig(FIGURES / "cifar10.png", dpi=200)


def hour_table(rows):
    """Markdown: a row for each training of the recipe, with all its seeds."""
    cells = []
    for name in dict.fromkeys(row["name"] for row in rows):
        runs = [row for row in rows if row["name"] == name]
        accuracies = [row["test_accuracy"] for row in runs]
        minutes = [row["seconds"] / 60 for row in runs]
        seeds = ", ".join(f"{accuracy:.2%}" for accuracy in accuracies)
        spread = f"{min(minutes):.0f} to {max(minutes):.0f}"
        parameters = f"{runs[0]['parameters']:,}"
        cells.append((NAMES[name], parameters, spread, f"{statistics.mean(accuracies):.2%}", seeds))
    return _with_origin(rows, ("model", "parameters", "minutes", "test accuracy, mean", "seeds 0, 1, 2"), cells)


def option_table(rows):
    """Markdown: a row for each option. The differences are those from the option "recipe"."""
    accuracies = {row["name"]: row["curve"][-1][1] for row in rows}
    cells = []
    for row in sorted(rows, key=lambda row: list(OPTIONS).index(row["name"])):
        accuracy = accuracies[row["name"]]
        facts = (f"{row['parameters']:,}", f"{row['images_per_second']:.0f}", f"{row['steps']:,}")
        cells.append((row["name"], *facts, f"{accuracy:.1%}", f"{100 * (accuracy - accuracies['recipe']):+.1f}"))
    columns = ("option", "parameters", "images a second", "steps", "validation accuracy", "difference")
    return _with_origin(rows, columns, cells)


def contender_table(rows):
    """Markdown: a row for each contender, with the accuracy for each learning rate and after an hour."""
    hour = max(row["minutes"] for row in rows)
    cells = []
    for name in dict.fromkeys(row["name"] for row in rows):
        runs = [row for row in rows if row["name"] == name]
        searched = [f"{row['learning_rate']:g}: {row['curve'][-1][1]:.1%}" for row in runs if row["minutes"] < hour]
        [longest] = [row for row in runs if row["minutes"] == hour]
        facts = (f"{longest['learning_rate']:g}", f"{longest['steps']:,}", f"{longest['curve'][-1][1]:.1%}")
        cells.append((NAMES[name], ", ".join(searched), *facts))
    columns = ("model", "learning rates, after 15 minutes", "chosen", "steps in an hour", "validation accuracy")
    return _with_origin(rows, columns, cells)


def _with_origin(rows, columns, cells):
    newest_row = rows[-1]
    versions = ", ".join(f"{name} {newest_row['versions'][name]}" for name in ("keras", "tensorflow"))
    origin = f"{newest_row['device']}; {versions}; {newest_row['time'][:10]}:"
    return f"{origin}\n\n{markdown_table(columns, cells, columns[1:])}\n"


def plot(hours, contenders):
    """A matplotlib figure of the validation accuracy over the minutes of training."""
    figure, [[ax]] = panels((6.4, 3.6))
    for row in hours:
        minutes = [row["seconds"] / 60 * step / row["steps"] for step, _ in row["curve"]]
        _draw(ax, row["name"], minutes, [accuracy for _, accuracy in row["curve"]], row["seed"] == 0)
    longest = max(row["minutes"] for row in contenders)
    for row in contenders:
        if row["minutes"] == longest:
            _draw(ax, row["name"], *zip(*row["curve"], strict=True), True)
    ax.set(xlabel="minutes of training on two CPU cores", ylabel="validation accuracy, %", xlim=(0, longest * 1.02))
    ax.grid(axis="y", color=FAINT)
    return figure


def _draw(ax, name, minutes, accuracies, is_labelled):
    percent = [100 * accuracy for accuracy in accuracies]
    ax.plot(minutes, percent, color=_COLOURS[name], linewidth=1.6)
    if is_labelled:
        label = f"{NAMES[name]} {percent[-1]:.0f} %"
        ax.annotate(label, (minutes[-1], percent[-1]), (4, 0), textcoords="offset points", va="center", fontsize=7)
