"""Studies train variants of a recipe and compare their accuracies, as in a figure of a paper.

Each point of a study is trained once per seed, as an ordinary run in the study's folder. Finished runs are skipped.
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Callable

import keras_vit
from training import recipes
from training.engine.train import save_model, train_once
from training.errors import InputError
from training.evaluation.metrics import wilson_interval
from training.planning.plan_report import training_flops
from training.recipe.assignments import override, read_facts
from training.reports.tables import lay_out, write_csv
from training.runs.folder import Run, add_result, is_finished
from training.studies.figures import Panel, Value
from training.tasks import require_classification

# Changes to the digits recipe. Without augmentation, a few epochs are enough for most of the final accuracy.
UNCHANGED_DIGITS = (
    "augment.translation=0",
    "augment.rotation=0",
    "augment.scale=0",
    "augment.fill=reflect",
    "fit.report_every=100%",
)
_DPI = 200
_LABELLED = ("flops", "gmacs")  # On these x axes, points need labels, because x does not identify the model.


@dataclasses.dataclass(frozen=True)
class Point:
    """A model of a study: its series, its label in the series, and its changes `section.field=value` to the recipe."""

    series: str
    label: str
    changes: tuple[str, ...]

    @property
    def folder(self):
        """The name of the point's folder."""
        return re.sub(r"[^\w.-]+", "_", f"{self.series}-{self.label}").strip("_")


@dataclasses.dataclass(frozen=True)
class Study:
    """Defines what a study varies, and how it is shown.

    Args:
        title: The question that the study answers.
        paper: Figure or table of the paper that the study reproduces.
        digits_changes: Changes to the digits recipe that reduce the study to a few minutes on two CPU cores.
        points: Function that takes a recipe and returns its `Point`s, or raises an InputError for an unsuitable recipe.
        figure: Function that takes the `Summary`s and the study's folder, and returns a matplotlib Figure.
    """

    title: str
    paper: str
    digits_changes: tuple[str, ...]
    points: Callable
    figure: Callable


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one run. `accuracy` is the test accuracy, from 0 to 1. `gmacs` is the number of
    multiply-accumulates for one image, in billions. `flops` is the number of FLOPs of the whole training. `run`
    is the run's folder, relative to the study's folder."""

    series: str
    point: str
    seed: int
    accuracy: float
    parameters: int
    gmacs: float
    flops: float
    learning_rate: float
    train_images: int
    test_images: int
    seconds: float
    run: str


_COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of one point: mean, lowest and highest accuracy over its seeds, and the `Row` of the first run."""

    accuracy: float
    lowest: float
    highest: float
    first: Row


def run_study(name, study, assignments, folder, seeds=1, recipe_name=None):
    """Trains the unfinished runs of a study, and writes its results.csv and its figure.

    Args:
        name: Name of the study and of its figure.
        study: `Study`
        assignments: Changes to the recipe, `section.field=value`.
        folder: Folder of the study.
        seeds: Number of runs of each point.
        recipe_name: Name of the recipe. `None`: the digits recipe with `study.digits_changes`.

    Returns:
        The `Row`s, or `None` if the study was stopped.

    Raises:
        InputError: If there is no such recipe, the recipe of a point is invalid, or a run in the folder has another
            recipe.
    """
    folder = pathlib.Path(folder)
    recipe = override(recipes.load(recipe_name or "digits"), () if recipe_name else study.digits_changes)
    recipe = override(recipe, assignments)
    require_classification(recipe, "study")
    planned = [
        (point, _point_recipe(recipe, point, seed), Run(folder / point.folder / f"seed-{seed}"))
        for seed in range(recipe.seed, recipe.seed + seeds)
        for point in study.points(recipe)
    ]
    for _, changed, run in planned:  # Checks all runs before the first one is trained.
        is_finished(changed, folder, run.folder)
    rows = []
    for number, (point, changed, run) in enumerate(planned, start=1):
        print(f"\n{name} {number}/{len(planned)}: {point.series}, {point.label}, seed {changed.seed}", flush=True)
        if not train_once(changed, folder, run.folder, leave):
            return None
        rows.append(_row(run, point, changed, folder))
        write_csv(folder / "results.csv", [_COLUMNS, *map(dataclasses.astuple, rows)])
    figure = study.figure(summaries(rows), folder)
    figure.savefig(folder / f"{name}.png", dpi=_DPI)
    return rows


def _point_recipe(recipe, point, seed):
    changes = [*point.changes, f"seed={seed}"]
    if any(change.startswith("data.train_images=") for change in changes):
        changes.append(f"data.train_images_seed={seed}")
    try:
        return override(recipe, changes)
    except InputError as error:
        raise InputError(f"{point.series}, {point.label}: {error}") from None


def leave(task, dataset, run, weights, keeper):
    """Writes the model and the result of a run of a study. It is used instead of `training.engine.train.finish`.

    It writes no export and no report, because they would take longer than the run.

    Returns:
        The `training.evaluation.classification.Evaluation` on the test images.
    """
    model = save_model(task, run, keeper.kept, weights)
    evaluation = task.evaluate(model, dataset, "test")
    cost = keras_vit.profile(model)
    images = round(keeper.intervals.total * keeper.intervals.images)
    add_result(
        run,
        test_accuracy=evaluation.accuracy,
        test_loss=evaluation.loss,
        test_images=len(evaluation.labels),
        seconds_of_training=round(keeper.seconds, 1),
        parameters=cost.parameters,
        macs=cost.macs,
        images_seen=images,
        flops=training_flops(cost.macs, images),
    )
    return evaluation


def _row(run, point, recipe, folder):
    facts = read_facts(run.recipe)
    result = facts["result"]
    return Row(
        series=point.series,
        point=point.label,
        seed=recipe.seed,
        accuracy=result["test_accuracy"],
        parameters=result["parameters"],
        gmacs=result["macs"] / 1e9,
        flops=result["flops"],
        learning_rate=recipe.optimizer.learning_rate,
        train_images=facts["num_images"]["train"],
        test_images=result["test_images"],
        seconds=result["seconds_of_training"],
        run=str(run.folder.relative_to(folder)),
    )


def summaries(rows):
    """The `Summary` of each point, in the order of the rows."""
    points = {}
    for row in rows:
        points.setdefault((row.series, row.point), []).append(row)
    return [
        Summary(
            accuracy=statistics.mean(row.accuracy for row in point_rows),
            lowest=min(row.accuracy for row in point_rows),
            highest=max(row.accuracy for row in point_rows),
            first=point_rows[0],
        )
        for point_rows in points.values()
    ]


def measured_panel(points, quantity, x_label, title, note="", unit=1):
    """Returns a `training.studies.figures.Panel` of the measured results.

    Args:
        points: `Summary`s.
        quantity: Field of `Row` that is shown on the x axis.
        x_label: Label of the x axis, with its unit.
        title: Title of the panel.
        note: Text below the panel. It follows a sentence on the statistical uncertainty.
        unit: Unit of the x axis. The quantity is divided by it.
    """
    series = {}
    for point in points:
        x = getattr(point.first, quantity)
        x = x if isinstance(x, str) else x / unit
        label = point.first.point if quantity in _LABELLED else ""
        value = Value(x, 100 * point.accuracy, 100 * point.lowest, 100 * point.highest, label)
        series.setdefault(point.first.series, []).append(value)
    return Panel(title, x_label, "test accuracy (%)", series, " ".join(filter(None, [_uncertainty(points), note])))


def _uncertainty(points):
    """A sentence on the statistical uncertainty of the mean accuracy of all points."""
    num_images, accuracy = points[0].first.test_images, statistics.mean(point.accuracy for point in points)
    low, high = wilson_interval(round(accuracy * num_images), num_images)
    return (
        f"Measured on {num_images:,} test images. The 95 % interval of an accuracy of {accuracy:.0%} is "
        f"{100 * low:.0f} to {100 * high:.0f} %."
    )


def table(rows):
    """Formats the results as text."""
    lines = [("series", "point", "parameters", "GMACs", "FLOPs", "images", "accuracy", "lowest to highest")]
    for summary in summaries(rows):
        first = summary.first
        spread = f"{summary.lowest:.2%} to {summary.highest:.2%}" if summary.lowest != summary.highest else ""
        numbers = (f"{first.parameters:,}", f"{first.gmacs:.4g}", f"{first.flops:.3g}", f"{first.train_images:,}")
        lines.append((first.series, first.point, *numbers, f"{summary.accuracy:.2%}", spread))
    if not any(line[-1] for line in lines[1:]):  # With one seed, the last column is empty.
        return lay_out([line[:-1] for line in lines], texts=(0, 1))
    return lay_out(lines, texts=(0, 1))
