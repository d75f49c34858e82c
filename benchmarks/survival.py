"""Kills a run at random moments until it is finished, and compares its results with those of an undisturbed run.

    python -m benchmarks.survival

A small model with dropout and a moving average is trained on the digits, with a checkpoint after every other step. The
process is killed (SIGKILL) 20 times, at random moments of the whole run: start, steps, validations, checkpoints, export
and report. Each start resumes from the last good checkpoint. The history of the losses and the final weights must be
the same, bit for bit.
"""

import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

NUM_KILLS = 20
RECIPE = [
    *("digits", "fit.epochs=150", "fit.batch_size=200", "fit.checkpoint_every=2 steps", "optimizer.ema=0.9"),
    *("model.config.num_layers=1", "model.config.hidden_dim=16", "model.config.dropout_rate=0.1", "augment.mixup=0.2"),
    *("model.config.drop_path_rate=0.1", "model.input_shape=16,16,1"),
]


def main():
    """Prints each kill and the final differences. Returns the exit status of the process."""
    rng = random.Random(0)
    differences, kills = [], 0
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = pathlib.Path(folder, "undisturbed")
        begun = time.monotonic()
        subprocess.run(command(undisturbed), check=True, stdout=subprocess.DEVNULL, env=environment())
        seconds = time.monotonic() - begun
        for number in itertools.count():
            killed = pathlib.Path(folder, str(number))
            kills += kill_until_finished(killed, rng, seconds, NUM_KILLS - kills)
            differences += [name for name, read in COMPARED.items() if read(undisturbed) != read(killed)]
            if kills == NUM_KILLS:
                break
    names = ", ".join(differences) or "none"
    print(f"{kills} kills of {number + 1} runs. Differences from an undisturbed run: {names}.")
    return 1 if differences else 0


def kill_until_finished(folder, rng, seconds, most):
    """Starts a run repeatedly and kills it, at most `most` times, until it is finished. Returns the number of kills."""
    for number in range(most):
        process = subprocess.Popen(
            command(folder), stdout=subprocess.PIPE, text=True, env=environment(), stderr=subprocess.DEVNULL
        )
        try:
            output, _ = process.communicate(timeout=rng.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        if process.returncode == 0:
            return number
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"The run ended with status {process.returncode}: {output}")
        lines = [line for line in output.splitlines() if line]
        print(f"killed after: {lines[-1] if lines else 'nothing printed yet'}", flush=True)
        if is_finished(folder):  # It was only reporting.
            return number + 1
    if not is_finished(folder):
        subprocess.run(command(folder), check=True, stdout=subprocess.DEVNULL, env=environment())
    return most


def is_finished(folder):
    recipe = folder / "recipe.json"
    return recipe.is_file() and "result" in json.loads(recipe.read_text())


def command(folder):
    return [sys.executable, "-m", "training", "train", *RECIPE, f"run={folder}"]


def environment():
    return os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}


def _weights(folder):
    import keras

    import keras_vit  # noqa: F401  Registers the layers.

    return [array.tobytes() for array in keras.models.load_model(folder / "model.keras").get_weights()]


COMPARED = {
    "history.csv": lambda folder: (folder / "history.csv").read_bytes(),
    "the weights": _weights,
    "test accuracy": lambda folder: json.loads((folder / "recipe.json").read_text())["result"]["test_accuracy"],
}


if __name__ == "__main__":
    sys.exit(main())
