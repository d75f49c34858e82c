"""Checkpoints: the complete state of a run, in files that are written atomically.

A checkpoint is an uncompressed `.npz` file with a checksum of each array. It contains the weights, the states of all
random generators, the optimizer's step and moving averages, and the metrics of the current epoch. Its `facts` are the
history and the step of the best checkpoint. The position in the data is not stored, because it follows from the step.
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


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` optimizer steps. `state` is {group: arrays}; `facts` has JSON types."""

    step: int
    state: dict[str, list[np.ndarray]]
    facts: dict


class Checkpoints:
    """The checkpoints of a run: the newest two and the best.

    Args:
        folder: `pathlib.Path` of an existing folder. Only one process may write to it.
    """

    def __init__(self, folder):
        self.folder = folder

    def write(self, checkpoint):
        """Writes a checkpoint, then deletes all checkpoints except the newest two and the best (`facts["best_step"]`).

        Raises:
            InputError: If the checkpoint cannot be written. Earlier checkpoints are kept.
        """
        arrays = {f"{group}/{i}": array for group, part in checkpoint.state.items() for i, array in enumerate(part)}
        facts = np.frombuffer(json.dumps(checkpoint.facts).encode(), np.uint8)
        try:
            with replace_file_atomically(self._path(checkpoint.step)) as unfinished:
                np.savez(unfinished, facts=facts, **arrays)
        except OSError as error:
            last = max(self.steps(), default=None)
            earlier = "There is no earlier one." if last is None else f"The last good one is from step {last}."
            problem = f"The checkpoint of step {checkpoint.step} cannot be written to {self.folder}: {error.strerror}."
            raise InputError(f"{problem} {earlier}") from None
        self._remove_unneeded(checkpoint)

    def read(self, step):
        """The checkpoint of a step.

        Raises:
            One of `_DAMAGE`: If the checkpoint is missing or damaged. `clean` removes damaged checkpoints.
        """
        state = {}
        with open(self._path(step), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            for name in arrays.files:
                group, _, index = name.partition("/")
                if index:
                    state.setdefault(group, {})[int(index)] = arrays[name]
        return Checkpoint(step, {group: [part[i] for i in range(len(part))] for group, part in state.items()}, facts)

    def newest(self):
        """The newest checkpoint, or `None`."""
        step = max(self.steps(), default=None)
        return None if step is None else self.read(step)

    def newest_facts(self):
        """The facts of the newest checkpoint, or an empty dictionary if there is none."""
        steps = self.steps()
        return self._facts(max(steps)) if steps else {}

    def clean(self):
        """Removes unfinished files, and damaged checkpoints among the newest and the best."""
        remove_abandoned(self.folder)
        for step in sorted(self.steps(), reverse=True):
            newest = self._read_or_remove(step)
            if newest is not None:
                best = newest.facts.get("best_step")
                if best in self.steps() and best != step:
                    self._read_or_remove(best)
                return

    def _read_or_remove(self, step):
        try:
            return self.read(step)
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # The error may be temporary.
                raise InputError(f"{self._path(step)} cannot be read: {error.strerror}.") from None
            print(f"{self._path(step)} is damaged and was removed: {error}")
            self._path(step).unlink()
            return None

    def _remove_unneeded(self, newest):
        steps = sorted(self.steps())
        kept = set(steps[-NUM_KEPT:]) | {newest.facts.get("best_step")}
        # If the newest checkpoint is damaged, the run resumes from the one before it, which may name another best step.
        kept |= {self._best_step(step) for step in steps[-NUM_KEPT:-1]}
        for step in set(steps) - kept:
            self._path(step).unlink(missing_ok=True)

    def _best_step(self, step):
        with contextlib.suppress(*_DAMAGE):
            return self._facts(step).get("best_step")

    def _facts(self, step):
        with open(self._path(step), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return json.loads(arrays["facts"].tobytes())

    def steps(self):
        """The steps of all checkpoints, unsorted."""
        return [int(path.stem.removeprefix(_PREFIX)) for path in self.folder.glob(f"{_PREFIX}*.npz")]

    def _path(self, step):
        return self.folder / f"{_PREFIX}{step:09d}.npz"
