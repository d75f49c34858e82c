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
    mean of the differences of the same seeds, and `bounds` is its 95 % interval.
    """

    comparison: object
    word: str
    seeds: int
    difference: float | None = None
    bounds: tuple[float, float] | None = None


def decide(comparison, rows):
    """The `Verdict` on a comparison.

    Args:
        comparison: `training.studies.study.Comparison`
        rows: The `training.studies.results.Row`s of the study.
    """
    first, second = (_values(point, comparison.column, rows) for point in (comparison.first, comparison.second))
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    bounds = interval(differences)
    if bounds is None:
        return Verdict(comparison, "not run", len(differences))
    low, high = bounds
    word = "shows" if low > 0 else "reversed" if high < 0 else "undecided"
    if low >= -TIE and high <= TIE and (word == "undecided" or comparison.expected == "tie"):
        word = "tie"
    return Verdict(comparison, word, len(differences), statistics.mean(differences), bounds)


def _values(point, column, rows):
    """{seed: value} of a point."""
    series, label = point
    if label is None:
        validation = {}
        for row in rows:
            if row.series == series:
                validation.setdefault(row.point, []).append(row.validation)
        label = max(validation, key=lambda name: statistics.mean(validation[name]), default=None)
    return {row.seed: row.value(column) for row in rows if (row.series, row.point) == (series, label)}
