"""Trains the four VT-ResNets on the digits with three seeds each and checks their mean test accuracies.

    python -m benchmarks.vt_digits [FOLDER]

Command: make vt-accuracy

The recipe is digits_vt_r18, with models of the published sizes of 18, 34, 50 and 101 layers. The command prints a table
in Markdown, and fails if the mean of a model is too low. The runs are kept in a folder (default: runs/vt-accuracy). The
same command resumes them.
"""

import json
import pathlib
import statistics
import sys

from benchmarks.accuracy import AT_LEAST, SEEDS
from training import recipes
from training.engine.train import train_once
from training.recipe.assignments import override
from training.studies.running import write_result

DEPTHS = (18, 34, 50, 101)


def train(depth, seed, folder):
    """Trains a model. Returns the `result` of the run, or `None` if it was stopped."""
    recipe = override(recipes.load("digits_vt_r18"), [f"model.function=VTResNet{depth}", f"seed={seed}"])
    run = folder / f"layers-{depth}" / f"seed-{seed}"
    if not train_once(recipe, folder, run, write_result):
        return None
    return json.loads((run / "recipe.json").read_text())["result"]


def table(results):
    """Lines of a Markdown table from {depth: results of all seeds}."""
    seeds = " | ".join(f"seed {seed}" for seed in SEEDS)
    lines = [f"| model | parameters | {seeds} | mean |", "|---|" + "--:|" * (len(SEEDS) + 2)]
    for depth, runs in results.items():
        accuracies = " | ".join(f"{result['test_accuracy']:.2%}" for result in runs)
        lines.append(f"| VT-ResNet-{depth} | {runs[0]['parameters']:,} | {accuracies} | {mean_accuracy(runs):.2%} |")
    return lines


def mean_accuracy(runs):
    """Mean accuracy over the results of all seeds, in [0, 1]."""
    return statistics.mean(result["test_accuracy"] for result in runs)


def main(folder="runs/vt-accuracy"):
    """Trains all models and prints the table. Returns the exit status of the process."""
    results = {depth: [] for depth in DEPTHS}
    for seed in SEEDS:
        for depth in DEPTHS:
            result = train(depth, seed, pathlib.Path(folder))
            if result is None:
                return 1
            results[depth].append(result)
    print("\n".join(table(results)))
    low = [f"VT-ResNet-{depth}" for depth, runs in results.items() if mean_accuracy(runs) < AT_LEAST]
    print(f"A mean of at least {AT_LEAST:.0%} is expected{'; too low: ' + ', '.join(low) if low else ''}.")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
