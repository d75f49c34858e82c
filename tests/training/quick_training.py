"""Runs `python -m training`, but ends a run at `weights.npz`. Evaluation, export and report would take longer.

python -m tests.training.quick_training train …
"""

import sys

import numpy as np


def _finish(recipe, dataset, run, weights, state):
    from training.runs.folder import add_result

    np.savez(run.folder / "weights.npz", *weights)
    add_result(run)


def main():
    """Runs one command; returns the exit status."""
    from training import __main__
    from training.engine import train

    train.finish = _finish
    return __main__.main()


if __name__ == "__main__":
    sys.exit(main())
