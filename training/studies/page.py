"""The page of a study: its claim, its verdicts, its figure and its table, in Markdown."""

import collections
import math

from training.recipe.assignments import as_text, leaves
from training.recipe.config import to_dict
from training.studies.results import summaries
from training.studies.verdicts import TIE, decide
from training.tasks import TASKS


def write_page(experiment, command):
    """Writes the page of a `training.studies.running.Experiment` beside its results. Returns its path.

    Args:
        experiment: `Experiment`
        command: The command that repeats the study.
    """
    study, rows = experiment.study, experiment.rows(experiment.jobs())
    points, metric = summaries(rows), TASKS[experiment.recipe.task](experiment.recipe).metric.title
    parts = [f"# {study.title}", f"{study.paper}. {study.claim}".strip(), study.method]
    if verdicts := [decide(comparison, rows) for comparison in study.comparisons(experiment.recipe)]:
        parts += ["## Verdicts", _verdict_table(verdicts), _RULE]
    parts += [
        f"![The measured values]({experiment.name}.png)",
        "## Results",
        _MEANS,
        _result_table(points, study.measures if study.shown is None else study.shown, metric),
    ]
    candidates = [
        (series, f"{row.learning_rate:g}", f"{100 * row.validation:.2f}")
        for series, jobs in experiment.candidate_jobs().items()
        for row in experiment.rows(jobs)
    ]
    if candidates:
        header = ("series", "learning rate", "best validation result (%)")
        parts += ["## Learning rates", _RATES, _table(header, candidates)]
    parts += ["## How it was run", f"```\n{command}\n```", _provenance(experiment, rows)]
    if missing := collections.Counter(str(job.point) for job in experiment.missing()):
        runs = (f"{point} ({count} run{'s' if count > 1 else ''})" for point, count in missing.items())
        parts.append(f"Not run: {'; '.join(runs)}.")
    fields = leaves(to_dict(experiment.recipe, exclude_defaults=True))
    recipe = "\n".join(f"{name}={as_text(value)}" for name, value in fields)
    parts.append(f"The recipe, without the changes of the points:\n\n```\n{recipe}\n```")
    path = experiment.path.with_suffix(".md")
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return path


_RULE = (
    f"A difference is the mean over paired seeds, in percentage points, with its 95 % interval (Student's t). The "
    f"claim *shows* if the interval lies above 0. It is a *tie* if the interval lies within ±{100 * TIE:g} point. "
    f"Otherwise it is *undecided*. The claims, the rule and the points were fixed before the first run."
)
_MEANS = "Means over the seeds. The number after ± is half of the 95 % interval."
_RATES = (
    "Each series was first trained with several learning rates and one seed. The learning rate of the best "
    "validation result is used for all its points."
)


def _table(header, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * 1 + "--:|" * (len(header) - 1), *lines[1:]])


def _verdict_table(verdicts):
    rows = []
    for verdict in verdicts:
        difference = bounds = ""
        if verdict.bounds is not None:
            difference = f"{100 * verdict.difference:+.2f}"
            bounds = f"{100 * verdict.bounds[0]:+.2f} to {100 * verdict.bounds[1]:+.2f}"
        word = "**the opposite shows**" if verdict.word == "reversed" else verdict.word
        comparison = verdict.comparison
        pairs = zip((comparison.first, comparison.second), verdict.points, strict=True)
        chosen = [f"{series}: {label}" for (_, given), (series, label) in pairs if given is None and label is not None]
        claim = comparison.claim + (f" ({', '.join(chosen)})" if chosen else "")
        rows.append((claim, difference, bounds, str(verdict.seeds), word))
    return _table(("claim", "difference", "95 % interval", "seeds", "verdict"), rows)


def _percent(summary, column):
    if math.isnan(summary.mean(column)):
        return ""
    bounds = summary.interval(column)
    width = f" ± {100 * (bounds[1] - bounds[0]) / 2:.2f}" if bounds else ""
    return f"{100 * summary.mean(column):.2f}{width}"


def _result_table(points, measures, metric):
    rows = []
    for point in points:
        first = point.first
        numbers = [f"{first.parameters:,}", f"{1e3 * first.gmacs:,.1f}", f"{first.train_images:,}"]
        numbers += [f"{first.learning_rate:g}", str(len(point.rows))]
        scores = [_percent(point, column) for column in ("score", *measures)]
        rows.append((f"{first.series}, {first.point}", *numbers, *scores))
    header = ("point", "parameters", "MMACs", "training images", "learning rate", "seeds", f"test {metric} (%)")
    return _table((*header, *(f"{name} (%)" for name in measures)), rows)


def _provenance(experiment, rows):
    def listed(name):
        return ", ".join(sorted({getattr(row, name) for row in rows}))

    seconds = [row.seconds for row in rows]
    hours = f", {sum(seconds) / 3600:.1f} hours of training in all" if all(seconds) else ""
    return (
        f"{len(rows)} runs{hours}. Processors: {listed('processor')}. Commits: "
        f"{listed('commit')}. Keras {listed('keras')}, TensorFlow {listed('tensorflow')}. Every run is a row of "
        f"[{experiment.path.name}]({experiment.path.name})."
    )
