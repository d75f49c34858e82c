"""Decides from the results of several seeds whether a claim shows."""

import dataclasses
import statistics

TIE = 0.01
"""Two points are equal if the interval of their difference lies within this number: one percentage point."""


def interval(values):
    """The 95 % interval of the mean of some values, from Student's t distribution. `None` for fewer than two values.

    With `n` values of standard deviation `s`, the interval is `mean ± t s / sqrt(n)`. `t` is the quantile 0.975 of the
    distribution with `n - 1` degrees of freedom.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
    width = float(t.ppf(0.975, len(values) - 1)) * error
    return mean - width, mean + width


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a `training.studies.study.Comparison`.

    `word` is `"shows"` if the first point is better, `"reversed"` if it is worse, `"tie"` if both are equal, and
    `"undecided"` otherwise. It is `"not run"` if fewer than two seeds of both points were trained. `difference` is the
    mean of the differences of the same seeds, and `bounds` is its 95 % interval. `points` has the (series, label) of
    both points, also if the comparison leaves the label open.
    """

    comparison: object
    word: str
    seeds: int
    points: tuple[tuple[str, str | None], ...]
    difference: float | None = None
    bounds: tuple[float, float] | None = None


def decide(comparison, rows):
    """The `Verdict` on a comparison.

    Args:
        comparison: `training.studies.study.Comparison`
        rows: The `training.studies.results.Row`s of the study.
    """
    points = tuple(_with_label(point, rows) for point in (comparison.first, comparison.second))
    first, second = ({row.seed: row.value(comparison.column) for row in _rows_of(point, rows)} for point in points)
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    bounds = interval(differences)
    if bounds is None:
        return Verdict(comparison, "not run", len(differences), points)
    low, high = bounds
    word = "shows" if low > 0 else "reversed" if high < 0 else "undecided"
    if low >= -TIE and high <= TIE and (word == "undecided" or comparison.expected == "tie"):
        word = "tie"
    return Verdict(comparison, word, len(differences), points, statistics.mean(differences), bounds)


def _rows_of(point, rows):
    return [row for row in rows if (row.series, row.point) == point]


def _with_label(point, rows):
    """The point itself. If its label is `None`: the point of its series with the best mean on validation images."""
    series, label = point
    if label is not None:
        return point
    points = dict.fromkeys((row.series, row.point) for row in rows if row.series == series)
    return max(points, key=lambda each: statistics.mean(row.validation for row in _rows_of(each, rows)), default=point)
