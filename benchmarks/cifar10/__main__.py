"""Measures what a Vision Transformer learns from CIFAR-10 on two CPU cores.

    make bench-cifar10 ARGS="options"                  each option of a small model, in 15 minutes
    make bench-cifar10 ARGS="hour --seeds 0 1 2"       the recipe cifar10_hour, with its stem and with patches
    make bench-cifar10 ARGS="speed"                    the steps of all models in an hour, measured in turn
    make bench-cifar10 ARGS="contenders"               other projects' models: four learning rates, then an hour
    make bench-cifar10 ARGS="--document"               writes the tables and the figure of all results

CIFAR-10 must be prepared for TFDS (docs/recipes.md). Each result is a line of JSON that is added to
benchmarks/results/cifar10.jsonl. Use a machine with nothing else to do.

For `hour` and `contenders`, an hour is a number of steps: those that `speed` counted on one machine. The accuracies
therefore do not depend on the machine. Two trainings side by side, each on one core (`taskset -c 0`), take less time
than one after the other on two cores.

The last tenth of the training images are the validation images. Everything is chosen by their accuracy. The test images
are looked at once at the end of each training of the command `hour`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.cifar10 import document
from benchmarks.cifar10.contenders import CONTENDERS
from benchmarks.cifar10.options import BASELINE_CHANGES, OPTIONS
from benchmarks.cifar10.ours import MODEL, probe_steps_per_hour, trained, write_splits
from benchmarks.cifar10.results import HOUR, MINUTES, ROUNDS, final_accuracy, of_kind, steps_per_hour
from benchmarks.provenance import processor, provenance
from benchmarks.records import add_options, append, read

RECIPE = "cifar10_hour"
EMBEDDINGS = {
    "stem": (),
    "patches": (
        *("model.config.stem=none", "model.config.patch_size=4", "model.config.num_layers=7"),
        *("model.config.patch_dropout_rate=0.5", "augment.mixup=0", "fit.steps=6600"),
    ),
}
"""How the recipe embeds images, as changes to it. Without a stem, patches are smaller, and a step takes longer."""
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
"""Learning rates that are tried for each contender."""
EVALUATIONS = 12
"""Number of evaluations of a contender in a training."""
PROBE_STEPS = 60
"""Number of steps of a contender for the measurement of its speed."""
PYTHON = ".venv-peers/bin/python"


def measure_options(options):
    """Yields the results of each option: its validation accuracy after some minutes."""
    always = "seed=0", "fit.report_every=50%"
    for name in options.options:
        option = OPTIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            changes = [*BASELINE_CHANGES, *option.changes, *always]
            minutes = MINUTES / 2 if option.first else MINUTES
            if option.first:
                first = (*changes, *option.first)
                trained(RECIPE, (*first, _steps(first, minutes)), folder=folder)
                weights = f"model.weights={folder}/{MODEL}"
                changes += ["model.config=none", "model.attention_initialization=random", weights]
            changes.append(_steps(changes, minutes))
            facts = {"kind": "option", "name": name, "changes": option.changes, "first": option.first}
            yield facts | trained(RECIPE, changes)


def _steps(changes, minutes):
    """The assignment of the number of steps that take some minutes."""
    return f"fit.steps={round(probe_steps_per_hour(RECIPE, changes) * minutes / HOUR)}"


def measure_hour(options):
    """Yields the results of the recipe for each seed: test accuracy and validation accuracy."""
    for seed in options.seeds:
        for name in options.embeddings:
            changes = (*EMBEDDINGS[name], f"seed={seed}")
            facts = {"kind": "hour", "name": name, "seed": seed, "changes": changes}
            yield facts | trained(RECIPE, changes, evaluate=True)


def measure_speed(options):
    """Yields the number of steps in an hour of each model on all cores, without evaluations, for each round."""
    with tempfile.TemporaryDirectory() as folder:
        images = _write_images(folder)
        for turn in range(ROUNDS):
            for name in (*options.embeddings, *options.contenders):
                yield {"kind": "speed", "name": name, "round": turn, "steps_per_hour": _steps_per_hour(name, images)}


def _steps_per_hour(name, images):
    if name in EMBEDDINGS:
        return probe_steps_per_hour(RECIPE, EMBEDDINGS[name])
    _, first, last = _contender(name, LEARNING_RATES[0], PROBE_STEPS, 2, images)
    return round(3600 * (last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def measure_contenders(options):
    """Yields the results of each contender for four learning rates, and for the best of them in an hour.

    Of two learning rates with the same accuracy, the larger one is the best. Trainings that are already in the file of
    results, with as many steps, are not repeated.
    """
    rows = read(options.results)
    speeds = steps_per_hour(rows, options.contenders)
    known = {(row["name"], row["learning_rate"], row["steps"]): row for row in of_kind(rows, "contender")}
    with tempfile.TemporaryDirectory() as folder:
        images = _write_images(folder)

        def measure(name, learning_rate, minutes):
            """Returns the row of a training. Yields it first if it is new."""
            steps = round(speeds[name] * minutes / HOUR)
            if row := known.get((name, learning_rate, steps)):
                return row
            versions, *evaluations = _contender(name, learning_rate, steps, EVALUATIONS, images)
            facts = {"name": name, "learning_rate": learning_rate, "minutes": minutes, "steps": steps}
            curve = [(row["step"], row["accuracy"]) for row in evaluations]
            row = {"kind": "contender", **facts, "versions": versions, "curve": curve}
            yield row
            return row

        for name in options.contenders:
            tried = []
            for rate in LEARNING_RATES:
                tried.append((yield from measure(name, rate, MINUTES)))
            best = max(tried, key=lambda row: (final_accuracy([row]), row["learning_rate"]))
            yield from measure(name, best["learning_rate"], HOUR)


def _write_images(folder):
    images = pathlib.Path(folder) / "images.npz"
    write_splits(RECIPE, images)
    return images


def _contender(*arguments):
    """The lines of JSON that `contenders.py` prints."""
    command = [PYTHON, "-m", "benchmarks.cifar10.contenders", *map(str, arguments)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


COMMANDS = {
    "options": measure_options,
    "hour": measure_hour,
    "speed": measure_speed,
    "contenders": measure_contenders,
}
SELECTIONS = {
    "options": (OPTIONS, ("options",)),
    "contenders": (CONTENDERS, ("speed", "contenders")),
    "embeddings": (EMBEDDINGS, ("hour", "speed")),
    "seeds": ([0], ("hour",)),
}
"""What an option selects by default, and the commands that it is for."""


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS, nargs="?")
    for name, (values, commands) in SELECTIONS.items():
        kind = {"type": _seed} if name == "seeds" else {"choices": values}
        text = f"for {' and '.join(commands)}; by default {', '.join(map(repr, values))}"
        parser.add_argument(f"--{name}", nargs="+", metavar=name.removesuffix("s").upper(), help=text, **kind)
    add_options(parser, "bench-cifar10 hour", "cifar10")
    options = parser.parse_args(arguments)
    if not (options.command or options.document):
        parser.error(f"Give a command ({', '.join(COMMANDS)}) or --document.")
    for name, (values, commands) in SELECTIONS.items():
        if getattr(options, name) is None:
            setattr(options, name, values)
        elif options.command not in commands:
            parser.error(f"--{name} is only for {' and '.join(commands)}.")
    if options.command:
        state = provenance() | {"device": processor()}  # Read first: the code may change meanwhile.
        for row in COMMANDS[options.command](options):
            append([state | row], options.results)
            print(json.dumps(row), flush=True)
    if options.document:
        document.write(read(options.results))
    return 0


def _seed(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is 0 or a positive integer, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
