"""Steps without a model. New processes import this module, so it imports little."""

import os
import signal
import time


def open_broken(job):
    """Steps that fail for a reason other than memory."""

    def make_steps(batch_size, steps):
        raise ValueError("no such layer")

    return make_steps, "a stub"


def open_quick(job):
    """Steps that take a millisecond per image."""
    return (lambda batch_size, steps: time.sleep(0.001 * batch_size * steps)), "a stub"


def open_slow(job):
    """Steps that take two milliseconds per image."""
    return (lambda batch_size, steps: time.sleep(0.002 * batch_size * steps)), "a stub"


def open_dying(job):
    """Steps that kill their process at the fourth turn."""
    turns = []

    def make_steps(batch_size, steps):
        turns.append(steps)
        if sum(map(bool, turns)) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    return make_steps, "a stub"


def open_full(job):
    """Steps that run out of memory for more than 9 images, and for a second batch size in the same process."""
    sizes = set()

    def make_steps(batch_size, steps):
        sizes.add(batch_size)
        if batch_size > 9 or len(sizes) > 1:
            raise MemoryError

    return make_steps, "a stub"


def write_job(job, path):
    """Writes a file that contains the job."""
    path.write_text(repr(job))


def write_half(job, path):
    """Writes a file and fails before it is complete."""
    path.write_text("half")
    raise OSError("no space")


def open_file(job, path):
    """Steps that return the content of a file, and the precision that it is opened in."""
    return (lambda batch_size, steps: f"{path.read_text()} opened in {job.precision}"), "a stub"
