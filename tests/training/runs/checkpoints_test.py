"""A checkpoint is complete or absent, whatever interrupts the writing."""

import errno
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from training.errors import InputError
from training.files import write_text
from training.runs.checkpoints import NUM_KEPT, Checkpoints, RunState


def checkpoint(step, best_step=None):
    rng = np.random.default_rng(step)
    weights = [rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=()).astype("float32")]
    arrays = {"weights": weights, "optimizer": [np.array(step, "int64"), np.array([1, 2], "uint32")]}
    return RunState({"input_shape": [8, 8, 1]}, step, [{"loss": 0.1 + step}], best_step=best_step), arrays


def newest(checkpoints):
    """The state and the arrays of the newest checkpoint."""
    step = max(checkpoints.steps())
    return checkpoints.read_state(step), checkpoints.read_arrays(step)


def assert_equal(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for group, arrays in one[1].items():
        for array, other_array in zip(arrays, other[1][group], strict=True):
            assert array.dtype == other_array.dtype
            np.testing.assert_array_equal(array, other_array)


def test_all_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert not checkpoints.steps()
    checkpoints.write(*checkpoint(3))
    checkpoints.write(*checkpoint(12))
    assert_equal(newest(checkpoints), checkpoint(12))
    assert_equal((checkpoints.read_state(3), checkpoints.read_arrays(3)), checkpoint(3))


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    bests = {1: 1, 2: 2, 3: 2, 4: 2, 5: 5, 6: 5, 7: 5, 8: 5}
    kept = {3: {2, 3}, 4: {2, 3, 4}, 5: {2, 4, 5}, 6: {5, 6}, 8: {5, 7, 8}}
    for step, best in bests.items():
        checkpoints.write(*checkpoint(step, best))
        assert len(list(tmp_path.iterdir())) <= NUM_KEPT + 2
        if step in kept:
            assert set(checkpoints.steps()) == kept[step]


@pytest.mark.parametrize("damage", ["truncated", "empty", "a bit", "text"])
def test_a_damaged_checkpoint_is_left_out(tmp_path, damage, capsys):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.write(*checkpoint(step))
    path = tmp_path / "step-000000002.npz"
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[content.index(checkpoint(2)[1]["weights"][0].tobytes()) + 7] ^= 1
    path.write_bytes({"truncated": content[:-40], "empty": b"", "a bit": content, "text": b"nothing"}[damage])
    checkpoints.clean()
    assert "step-000000002.npz is damaged" in capsys.readouterr().out
    assert_equal(newest(checkpoints), checkpoint(1))


def test_a_checkpoint_that_cannot_be_read_now_is_not_removed(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(*checkpoint(1))

    def fail(step):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(checkpoints, "read_arrays", fail)
    with pytest.raises(InputError, match=r"step-000000001\.npz cannot be read: Stale file handle"):
        checkpoints.clean()
    assert checkpoints.steps() == [1]


def test_a_full_disk_loses_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(*checkpoint(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(InputError, match=r"step 2 cannot be written to .*The last good one is from step 1\."):
            checkpoints.write(*checkpoint(2))
        with pytest.raises(InputError, match=r"history\.csv cannot be written: "):
            write_text(tmp_path / "history.csv", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.npz"]
    assert_equal(newest(checkpoints), checkpoint(1))


_WRITES = """
import itertools, os, pathlib, sys, types
sys.path.insert(0, sys.argv[1])
sys.modules["keras_vit"] = types.ModuleType("keras_vit")  # Without its imports, which take seconds.
sys.modules["keras_vit"].__path__ = [sys.argv[1] + "/keras_vit"]
from tests.training.runs.checkpoints_test import checkpoint
from training.runs.checkpoints import Checkpoints
for folder in sys.argv[2:]:
    process = os.fork()
    if process == 0:
        print(os.getpid(), flush=True)
        checkpoints = Checkpoints(pathlib.Path(folder))
        for step in itertools.count(1):
            checkpoints.write(*checkpoint(step, best_step=step - step % 5))
            print(step, flush=True)
    os.waitpid(process, 0)
    print("killed", flush=True)
"""


def test_kill_at_any_moment_leaves_what_was_complete(tmp_path):
    rng, folders = random.Random(0), [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", _WRITES, str(pathlib.Path(__file__).parents[3]), *map(str, folders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for folder in folders:
            writer, _ = int(process.stdout.readline()), process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02))
            os.kill(writer, signal.SIGKILL)
            written = [1, *map(int, iter(process.stdout.readline, "killed\n"))]
            checkpoints = Checkpoints(folder)
            checkpoints.clean()
            state, arrays = newest(checkpoints)
            assert state.step in (written[-1], written[-1] + 1)
            assert_equal((state, arrays), checkpoint(state.step, state.step - state.step % 5))
            assert not list(folder.glob("unfinished-*"))
