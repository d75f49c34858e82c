"""Checkpoints: the complete state of a run, in files that are written atomically.

A checkpoint is an uncompressed `.npz` file with a checksum of each array. It contains the `RunState`, the weights,
the states of all random generators, the optimizer's step and moving averages, and the metrics of the current interval.
The position in the data is not stored, because it follows from the step.
"""

import contextlib
import dataclasses
import errno
import json
import zipfile

import numpy as np

from keras_vit.atomic_files import remove_abandoned, replace_file_atomically
from training.errors import InputError

NUM_KEPT = 2
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
_PREFIX = "step-"


@dataclasses.dataclass
class RunState:
    """The state of a run, except for the values of its variables. All fields have JSON types.

    Args:
        model: `training.engine.models.description` of the model.
        step: Number of completed optimizer steps.
        history: Rows {column: number}.
        throughput: Images per second in the interval of each row.
        seconds: Seconds of training.
        best_step: Step of the row with the highest metric, or `None`.
        pending_row: Training metrics of the last step, if its row is not complete because a validation has not ended.
            Otherwise empty.
    """

    model: dict
    step: int = 0
    history: list[dict] = dataclasses.field(default_factory=list)
    throughput: list[float] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    best_step: int | None = None
    pending_row: dict = dataclasses.field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run: the newest two and the best.

    Args:
        folder: `pathlib.Path` of an existing folder. Only one process may write to it.
    """

    def __init__(self, folder):
        self.folder = folder

    def write(self, state, arrays):
        """Writes a checkpoint, then deletes all checkpoints except the newest two and the best (`state.best_step`).

        Args:
            state: `RunState`
            arrays: {group: arrays}

        Raises:
            InputError: If the checkpoint cannot be written. Earlier checkpoints are kept.
        """
        arrays = {f"{group}/{i}": array for group, members in arrays.items() for i, array in enumerate(members)}
        encoded = np.frombuffer(json.dumps(dataclasses.asdict(state)).encode(), np.uint8)
        try:
            with replace_file_atomically(self._path(state.step)) as unfinished:
                np.savez(unfinished, state=encoded, **arrays)
        except OSError as error:
            last = max(self.steps(), default=None)
            earlier = "There is no earlier one." if last is None else f"The last good one is from step {last}."
            problem = f"The checkpoint of step {state.step} cannot be written to {self.folder}: {error.strerror}."
            raise InputError(f"{problem} {earlier}") from None
        steps = sorted(self.steps())
        needed = {*steps[-NUM_KEPT:], state.best_step}
        # If the newest checkpoint is damaged, the run resumes from the one before it, which may name another best step.
        for step in steps[-NUM_KEPT:-1]:
            with contextlib.suppress(*_DAMAGE):
                needed.add(self.read_state(step).best_step)
        for step in set(steps) - needed:
            self._path(step).unlink(missing_ok=True)

    def read_state(self, step):
        """The `RunState` of a checkpoint. Raises one of `_DAMAGE` if the checkpoint is missing or damaged."""
        with open(self._path(step), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return RunState(**json.loads(arrays["state"].tobytes()))

    def read_arrays(self, step):
        """The arrays of a checkpoint, {group: arrays}. Raises the same errors as `read_state`."""
        groups = {}
        with open(self._path(step), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:  # In the order of writing.
                if name != "state":
                    groups.setdefault(name.partition("/")[0], []).append(arrays[name])
        return groups

    def clean(self):
        """Removes unfinished files, and damaged checkpoints among the newest and the best."""
        remove_abandoned(self.folder)
        for step in sorted(self.steps(), reverse=True):
            if self._is_intact(step):
                best = self.read_state(step).best_step
                if best in self.steps() and best != step:
                    self._is_intact(best)
                return

    def _is_intact(self, step):
        """Reads a checkpoint, and removes it if it is damaged."""
        try:
            self.read_state(step)
            self.read_arrays(step)
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # The error may be temporary.
                raise InputError(f"{self._path(step)} cannot be read: {error.strerror}.") from None
            print(f"{self._path(step)} is damaged and was removed: {error}")
            self._path(step).unlink()
            return False
        return True

    def steps(self):
        """The steps of all checkpoints, unsorted."""
        return [int(path.stem.removeprefix(_PREFIX)) for path in self.folder.glob(f"{_PREFIX}*.npz")]

    def _path(self, step):
        return self.folder / f"{_PREFIX}{step:09d}.npz"
