"""Studies: the same recipe with one thing after another changed, as in the figures of a paper.

Every point of a study is an ordinary run inside its folder, for each of some seeds. What is finished is not done again.
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Callable

import keras_vit
from training import recipes
from training.engine.train import save_and_evaluate, train_once
from training.errors import InputError
from training.evaluation.metrics import wilson_interval
from training.planning.plan_report import training_flops
from training.recipe.assignments import override, read_facts
from training.reports.tables import lay_out, write_csv
from training.runs.folder import Run, add_result, is_finished
from training.studies.figures import Panel, Value
from training.tasks import require_classification

# Changes of the digits recipe: without its augmentation a model learns most of what it will in a few epochs.
UNCHANGED_DIGITS = (
    "augment.translation=0",
    "augment.rotation=0",
    "augment.scale=0",
    "augment.fill=reflect",
    "fit.report_every=100%",
)
_DOTS_AN_INCH = 200
_LABELLED = ("flops", "gmacs")  # Along these it cannot be seen which point is which.


@dataclasses.dataclass(frozen=True)
class Point:
    """A model of a study: the series it belongs to, its label there, and its changes `section.field=value`."""

    series: str
    label: str
    changes: tuple[str, ...]

    @property
    def folder(self):
        """The name of its folder."""
        return re.sub(r"[^\w.-]+", "_", f"{self.series}-{self.label}").strip("_")


@dataclasses.dataclass(frozen=True)
class Study:
    """What is varied, and how it is shown.

    Args:
        title: What the study asks.
        paper: The figure or table that it follows.
        small: Changes of the digits recipe, with which all of it takes some minutes on two CPU cores.
        points: Function from the recipe to the `Point`s; raises an InputError if it cannot be varied so.
        figure: Function from the `Summary`s and the folder to a matplotlib Figure.
    """

    title: str
    paper: str
    small: tuple[str, ...]
    points: Callable
    figure: Callable


@dataclasses.dataclass(frozen=True)
class Row:
    """What came out of one run. Accuracy from 0 to 1 on the test images; GMACs for one image; FLOPs of the training;
    `run` is its folder inside the study's."""

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
    """What came out of one point, over its seeds: the mean accuracy with the lowest and the highest, and its first
    run."""

    accuracy: float
    lowest: float
    highest: float
    first: Row


def run_study(name, study, assignments, folder, seeds=1, recipe_name=None):
    """Runs what is not finished of a study, and writes its results.csv and its figure.

    Args:
        name: Of the study, and of its figure.
        study: `Study`
        assignments: Changes of the recipe, `section.field=value`.
        folder: Of the study.
        seeds: How often each point is trained.
        recipe_name: Of the recipe; `None`: the digits, small.

    Returns:
        The `Row`s, or `None` if it was stopped.

    Raises:
        InputError: If there is no such recipe, a point of it is no possible recipe, or the folder has a run
            of another recipe.
    """
    folder = pathlib.Path(folder)
    recipe = override(recipes.load(recipe_name or "digits"), () if recipe_name else study.small)
    recipe = override(recipe, assignments)
    require_classification(recipe, "study")
    planned = [
        (point, _point_recipe(recipe, point, seed), Run(folder / point.folder / f"seed-{seed}"))
        for seed in range(recipe.seed, recipe.seed + seeds)
        for point in study.points(recipe)
    ]
    for _, changed, run in planned:  # All are checked before the first is trained.
        is_finished(changed, folder, run.folder)
    rows = []
    for number, (point, changed, run) in enumerate(planned, start=1):
        print(f"\n{name} {number}/{len(planned)}: {point.series}, {point.label}, seed {changed.seed}", flush=True)
        if not train_once(changed, folder, run.folder, leave):
            return None
        rows.append(_row(run, point, changed, folder))
        write_csv(folder / "results.csv", [_COLUMNS, *map(dataclasses.astuple, rows)])
    figure = study.figure(summaries(rows), folder)
    figure.savefig(folder / f"{name}.png", dpi=_DOTS_AN_INCH)
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
    """Writes the model and the result of a run of a study, in place of `training.engine.train.finish`.

    There is no export and no report: these take longer than such a run.

    Returns:
        The `training.evaluation.classification.Evaluation` on the test images.
    """
    model, evaluation = save_and_evaluate(task, dataset, run, weights)
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
    """A `Summary` of each point, in the order of the rows."""
    points = {}
    for row in rows:
        points.setdefault((row.series, row.point), []).append(row)
    return [
        Summary(
            accuracy=statistics.mean(row.accuracy for row in of_point),
            lowest=min(row.accuracy for row in of_point),
            highest=max(row.accuracy for row in of_point),
            first=of_point[0],
        )
        for of_point in points.values()
    ]


def measured_panel(points, quantity, x_label, title, note="", unit=1):
    """What was measured, as a `training.studies.figures.Panel`.

    Args:
        points: `Summary`s.
        quantity: The field of a `Row` that stands along the bottom.
        x_label: What it is, with its unit.
        title: Above the panel.
        note: Below it, behind a sentence on what a difference is worth.
        unit: How much of the quantity is 1 along the bottom.
    """
    series = {}
    for point in points:
        x = getattr(point.first, quantity)
        x = x if isinstance(x, str) else x / unit
        label = point.first.point if quantity in _LABELLED else ""
        value = Value(x, 100 * point.accuracy, 100 * point.lowest, 100 * point.highest, label)
        series.setdefault(point.first.series, []).append(value)
    return Panel(title, x_label, "test accuracy (%)", series, " ".join(filter(None, [_worth(points), note])))


def _worth(points):
    """A sentence from which a reader can tell what a difference between two points is worth."""
    num_images, accuracy = points[0].first.test_images, statistics.mean(point.accuracy for point in points)
    low, high = wilson_interval(round(accuracy * num_images), num_images)
    return (
        f"On {num_images:,} test images; the 95 % interval of one accuracy of {accuracy:.0%} is {100 * low:.0f} to "
        f"{100 * high:.0f} %."
    )


def table(rows):
    """The results as text."""
    lines = [("series", "point", "parameters", "GMACs", "FLOPs", "images", "accuracy", "lowest to highest")]
    for summary in summaries(rows):
        first = summary.first
        spread = f"{summary.lowest:.2%} to {summary.highest:.2%}" if summary.lowest != summary.highest else ""
        lines.append(
            (
                first.series,
                first.point,
                f"{first.parameters:,}",
                f"{first.gmacs:.4g}",
                f"{first.flops:.3g}",
                f"{first.train_images:,}",
                f"{summary.accuracy:.2%}",
                spread,
            )
        )
    if not any(line[-1] for line in lines[1:]):  # Of one seed.
        lines = [line[:-1] for line in lines]
    return lay_out(lines, texts=(0, 1))
