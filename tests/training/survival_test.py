"""An interrupted run resumes as if it had not been interrupted. (`make survival` kills runs at many moments.)"""

import csv
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import quick_xla
from tests.training.conftest import BRIEF
from tests.training.engine.distribution_test import pair
from training import recipes
from training.engine.train import train
from training.recipe.assignments import override

pytestmark = pytest.mark.slow
RECIPE = [*BRIEF, "fit.epochs=4", "model.config.dropout_rate=0.1", "optimizer.ema=0.9", "fit.checkpoint_every=2 steps"]
PROGRAM = [sys.executable, "-u", "-m", "tests.training.quick_training", "train"]


def run_program(folder, *arguments):
    return subprocess.run([*PROGRAM, *arguments, f"run={folder}"], capture_output=True, text=True, check=False)


class Program:
    """Starts the program as a user does. Its output is read while it runs."""

    def __init__(self, folder, *arguments, **environment):
        command, environment = [*PROGRAM, *arguments, f"run={folder}"], os.environ | environment
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.output = ""

    def wait_for_step(self, step):
        """Reads the output until a progress line reports this step or a later one."""
        for line in self.process.stdout:
            self.output += line
            found = re.match(r"step ([\d,]+)/", line)
            if found and int(found[1].replace(",", "")) >= step:
                return
        raise AssertionError(f"ended before step {step}: {self.output}")

    def end(self, timeout=120):
        """Reads the remaining output; returns the exit status."""
        self.output += self.process.communicate(timeout=timeout)[0]
        return self.process.returncode


@pytest.mark.combination(
    "a run is stopped, its last checkpoint is damaged, it is killed, and resumed",
    "equal to an undisturbed run, bit for bit",
)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_signal_saves_and_stops_and_the_run_goes_on(backend, tfds_directory, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("XLA_FLAGS", quick_xla.FLAGS)
    folder, stopped = tmp_path / "undisturbed", tmp_path / "stopped run"
    assignments = [*RECIPE, f"data.tfds_directory={tfds_directory}"]
    assert run_program(folder, "digits", *assignments).returncode == 0
    program = Program(stopped, "digits", *assignments)
    program.wait_for_step(40)
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 0
    assert "Traceback" not in program.output
    [step] = re.findall(r"Stopped after step (\d+), which is saved", program.output)
    assert f" -m training train run='{stopped}'" in program.output
    newest = stopped / "checkpoints" / f"step-{int(step):09d}.npz"
    newest.write_bytes(newest.read_bytes()[:-100])  # The file system also loses the end of the newest checkpoint.
    program = Program(stopped)
    program.wait_for_step(int(step) + 1)
    program.process.kill()
    program.end()
    assert f"{newest.name} is damaged" in program.output
    [again] = re.findall(r"Resuming from step (\d+)\.", program.output)
    assert 0 < int(step) - int(again) <= 2
    resumed = run_program(stopped)
    assert resumed.returncode == 0, resumed.stderr
    assert "Resuming from step" in resumed.stdout
    assert (stopped / "history.csv").read_bytes() == (folder / "history.csv").read_bytes()
    weights, others = (np.load(run / "weights.npz") for run in (folder, stopped))
    for name in weights:
        np.testing.assert_array_equal(weights[name], others[name])


def test_a_killed_worker_of_two_ends_the_other_and_both_go_on(tfds_directory, tmp_path):
    """If one worker is asked to stop, both stop together."""
    exact = ["model.config.dropout_rate=0", "optimizer.epsilon=0.001", "fit.batch_size=100"]
    assignments = [*BRIEF, *exact, "fit.epochs=4", f"data.tfds_directory={tfds_directory}"]
    train(override(recipes.load("digits"), assignments), folder=tmp_path / "one", on_finished=lambda *arguments: None)
    several = [*assignments, "distribution.kind=multi_worker"]

    def start():
        return [Program(tmp_path / "two", "digits", *several, **environment) for environment in pair("tensorflow")]

    workers = start()
    workers[0].wait_for_step(13)
    workers[1].process.kill()
    begun = time.monotonic()
    assert workers[0].end() != 0
    assert time.monotonic() - begun < 100
    workers[1].end()
    workers = start()
    workers[0].wait_for_step(26)
    workers[1].process.send_signal(signal.SIGTERM)
    assert [worker.end(300) for worker in workers] == [0, 0], workers[0].output
    assert re.search(r"Stopped after step \d+, which is saved", workers[0].output)
    workers = start()
    assert [worker.end(300) for worker in workers] == [0, 0], workers[0].output
    assert re.search(r"Resuming from step \d+", workers[0].output)
    histories = [
        [
            [float(value) for value in row.values()]
            for row in csv.DictReader((tmp_path / run / "history.csv").read_text().splitlines())
        ]
        for run in ("one", "two")
    ]
    # Devices change the order of summation, and the differences grow over four epochs.
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-4, atol=1e-4)
