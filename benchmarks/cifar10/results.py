"""Selects and summarises the results of the benchmark of CIFAR-10: the lines of benchmarks/results/cifar10.jsonl."""

import statistics

from benchmarks.records import newest

HOUR, MINUTES = 60, 15
"""Minutes of a training, and of a shorter one: an option, or a contender with each learning rate."""
ROUNDS = 2
"""How often the speed of each model is measured."""
_KEYS = {
    "hour": ("name", "seed"),
    "option": ("name",),
    "speed": ("name", "round"),
    "contender": ("name", "learning_rate", "minutes"),
}


def of_kind(rows, kind):
    """The rows of a kind. Of equal measurements, the newest counts."""
    return newest([row for row in rows if row["kind"] == kind], _KEYS[kind])


def by_name(rows):
    """{name: rows with this name}"""
    return {name: [row for row in rows if row["name"] == name] for name in dict.fromkeys(row["name"] for row in rows)}


def of_an_hour(contenders):
    """The newest training of an hour of each contender."""
    return newest([row for row in contenders if row["minutes"] == HOUR], ("name",))


def final_accuracy(rows):
    """The validation accuracy after the last step, as the mean of several trainings."""
    return statistics.mean(row["curve"][-1][1] for row in rows)


def steps_per_hour(rows, names):
    """{name: number of training steps in an hour, without evaluations}. It is the mean of all rounds.

    Raises:
        ValueError: The results lack a round for one of `names`.
    """
    speeds = by_name(of_kind(rows, "speed"))
    if missing := sorted(name for name in names if len(speeds.get(name, ())) < ROUNDS):
        raise ValueError(
            f"The results do not have {ROUNDS} measurements of the speed of {', '.join(missing)}. Measure it first: "
            'make bench-cifar10 ARGS="speed"'
        )
    return {name: statistics.mean(row["steps_per_hour"] for row in speeds[name]) for name in names}
