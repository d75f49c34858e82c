"""Steps of no model, for processes of their own: these import what is here, so it is little."""

import os
import resource
import signal
import time


def open_limited(job):
    """Steps whose process dies with 21 images, and that raise from 30 on."""

    def make_steps(batch_size, steps):
        if batch_size >= 30:
            raise MemoryError(f"{batch_size} images")
        if batch_size >= 21:
            os.kill(os.getpid(), signal.SIGKILL)

    return make_steps, "a stub"


def open_broken(job):
    """Steps that fail for another reason."""

    def make_steps(batch_size, steps):
        raise ValueError("no such layer")

    return make_steps, "a stub"


def open_crashing(job):
    """Steps that touch memory that is not theirs."""
    return (lambda batch_size, steps: os.kill(os.getpid(), signal.SIGSEGV)), "a stub"


def open_saying_the_limit(job):
    """Steps that allocate a byte an image; the device is the limit of the process's memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return (lambda batch_size, steps: bytearray(batch_size)), f"{soft}"


def open_quick(job):
    """Steps that take a millisecond an image."""
    return (lambda batch_size, steps: time.sleep(0.001 * batch_size * steps)), "a stub"


def open_slow(job):
    """Steps that take twice as long."""
    return (lambda batch_size, steps: time.sleep(0.002 * batch_size * steps)), "a stub"


def open_dying(job):
    """Steps whose process dies at the fourth turn."""
    turns = []

    def make_steps(batch_size, steps):
        turns.append(steps)
        if sum(map(bool, turns)) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    return make_steps, "a stub"


def write_job(job, path):
    """A file that says what the job is."""
    path.write_text(repr(job))


def write_half(job, path):
    """A file that is not finished."""
    path.write_text("half")
    raise OSError("no space")


def open_file(job, path):
    """Steps that say what is in a file."""
    return (lambda batch_size, steps: path.read_text()), "a stub"


def open_sized(job, point):
    """Steps that take a millisecond an image and block, and keep a megabyte for each image."""
    kept = []

    def make_steps(batch_size, steps):
        for _ in range(steps):
            time.sleep(0.001 * batch_size * point.num_layers)
            kept[:] = [bytes([1]) * (10**6 * batch_size)]

    return make_steps, "a stub"
