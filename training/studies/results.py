"""The results of studies: one row for each run. The file with the rows is kept, the folders of the runs need not be."""

import csv
import dataclasses
import hashlib
import json
import statistics
import typing

from training.errors import InputError
from training.evaluation.metrics import wilson_interval
from training.files import write_csv
from training.recipe.assignments import leaves
from training.recipe.config import to_dict
from training.reports.text import lay_out
from training.studies.figures import Panel, Value
from training.studies.verdicts import interval

_LABELLED = ("flops", "gmacs")  # On these x axes, points need labels, because x does not identify the model.


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one run.

    `score` is the test accuracy, or the mean IoU on test images, from 0 to 1. `validation` is the best such number on
    validation images, or NaN. `gmacs` is the number of multiply-accumulates for one image, in billions. `flops` is the
    number of FLOPs of the whole training. `seconds` is its time on `processor`, or 0 if other work disturbed it. `run`
    identifies the recipe. `measures` has the further columns of the study.
    """

    series: str
    point: str
    seed: int
    score: float
    validation: float
    parameters: int
    gmacs: float
    flops: float
    learning_rate: float
    train_images: int
    test_images: int
    seconds: float
    run: str
    date: str
    commit: str
    processor: str
    keras: str
    tensorflow: str
    measures: dict[str, float] = dataclasses.field(default_factory=dict)

    def value(self, column):
        """The number in a column, which may be one of `measures`."""
        return self.measures[column] if column in self.measures else getattr(self, column)


_TYPES = {name: hint for name, hint in typing.get_type_hints(Row).items() if name != "measures"}


def digest(recipe, initial=None):
    """Identifies a recipe by the values of its fields that are not the default values. Its name has no effect.

    Args:
        recipe: `training.recipe.config.Recipe`
        initial: Digest of the recipe that trained the initial weights, or `None`.
    """
    fields = to_dict(dataclasses.replace(recipe, name="run"), exclude_defaults=True)
    values = {name: initial if name == "model.weights" and initial else value for name, value in leaves(fields)}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def read_rows(path):
    """Reads the `Row`s of a file. Raises an InputError if the file is damaged."""
    if not path.is_file():
        return []
    rows = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file, strict=True)
            if missing := _TYPES.keys() - set(lines.fieldnames or ()):
                raise ValueError(f"the columns {', '.join(sorted(missing))} are missing")
            for line in lines:
                fields = {name: hint(line.pop(name)) for name, hint in _TYPES.items()}
                rows.append(Row(**fields, measures={name: float(value) for name, value in line.items()}))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is not a file with the results of a study: {error}. Move it away.") from None
    return rows


def write_rows(path, rows):
    """Writes `Row`s with the same measures."""
    measures = list(rows[0].measures)
    header = [*_TYPES, *measures]
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [[row.value(name) for name in header] for row in rows]
    write_csv(path, [header, *([f"{v:.6g}" if isinstance(v, float) else str(v) for v in line] for line in values)])


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of one point: its `Row`s, one for each seed."""

    rows: tuple[Row, ...]

    first = property(lambda self: self.rows[0])

    def mean(self, column="score"):
        return statistics.mean(row.value(column) for row in self.rows)

    def interval(self, column="score"):
        """The 95 % interval of the mean, or `None` for one seed."""
        return interval([row.value(column) for row in self.rows])


def summaries(rows):
    """The `Summary` of each point, in the order of the rows."""
    points = {}
    for row in rows:
        points.setdefault((row.series, row.point), []).append(row)
    return [Summary(tuple(rows)) for rows in points.values()]


def measured_panel(points, quantity, x_label, title, note="", unit=1, column="score", y_label="test accuracy (%)"):
    """Returns a `training.studies.figures.Panel` of the measured results.

    Args:
        points: `Summary`s.
        quantity: Column that is shown on the x axis.
        x_label: Label of the x axis, with its unit.
        title: Title of the panel.
        note: Text below the panel. It follows a sentence on the statistical uncertainty.
        unit: Unit of the x axis. The quantity is divided by it.
        column: Column that is shown on the y axis, in percent.
        y_label: Label of the y axis.
    """
    series = {}
    for point in points:
        x = point.first.value(quantity)
        x = x if isinstance(x, str) else x / unit
        label = point.first.point if quantity in _LABELLED else ""
        series.setdefault(point.first.series, []).append(percentage(point, x, column, label))
    return Panel(title, x_label, y_label, series, " ".join(filter(None, [_uncertainty(points, column), note])))


def percentage(point, x, column, label=""):
    """The `training.studies.figures.Value` in percent of a `Summary`'s column, with its 95 % interval."""
    value = Value(x, 100 * point.mean(column), label=label)
    if bounds := point.interval(column):
        value = dataclasses.replace(value, low=100 * bounds[0], high=100 * bounds[1])
    return value


def _uncertainty(points, column):
    """A sentence on the statistical uncertainty of the scores."""
    num_seeds, num_images = {len(point.rows) for point in points}, points[0].first.test_images
    if min(num_seeds) > 1:
        seeds = " or ".join(map(str, sorted(num_seeds)))
        return f"Mean over {seeds} seeds with its 95 % interval (t distribution); {num_images:,} test images."
    score = statistics.mean(point.mean(column) for point in points)
    low, high = wilson_interval(round(score * num_images), num_images)
    return (
        f"Measured on {num_images:,} test images. The 95 % interval of an accuracy of {score:.0%} is "
        f"{100 * low:.0f} to {100 * high:.0f} %."
    )


def table(rows):
    """Formats the results as text."""
    lines = [("series", "point", "parameters", "GMACs", "FLOPs", "images", "score", "95 % interval")]
    for summary in summaries(rows):
        first, bounds = summary.first, summary.interval()
        spread = f"{bounds[0]:.2%} to {bounds[1]:.2%}" if bounds else ""
        numbers = (f"{first.parameters:,}", f"{first.gmacs:.4g}", f"{first.flops:.3g}", f"{first.train_images:,}")
        lines.append((first.series, first.point, *numbers, f"{summary.mean():.2%}", spread))
    if not any(line[-1] for line in lines[1:]):  # With one seed, the last column is empty.
        return lay_out([line[:-1] for line in lines], texts=(0, 1))
    return lay_out(lines, texts=(0, 1))
