"""Processes of their own in which steps are measured."""

import contextlib
import dataclasses
import multiprocessing
import pathlib
import resource
import signal
import time
import traceback

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "OOM when allocating", "out of memory", "Out of memory")


class OutOfMemoryError(Exception):
    """A batch does not fit."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is measured: a variant of ViT or the name of a function of `keras_vit`, at `size` x `size` pixels; `work` is
    `"forward"` or `"train"`; `memory_limit` in bytes, or `None`."""

    model: str
    size: int
    work: str = "forward"
    precision: str = "float32"
    memory_limit: int | None = None


def is_out_of_memory(error):
    """Whether an error of Python, TensorFlow, JAX or torch says that memory ran out."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"}) or any(
        text in str(error) for text in _OUT_OF_MEMORY
    )


def peak_memory(process="self"):
    """The most that a process, by its number, has had in memory, in bytes; `None` where the system does not tell."""
    # Not getrusage: a new process begins with the peak of the one that started it.
    status = pathlib.Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def elsewhere(function, *arguments):
    """Calls a function in a process of its own, whose memory is nobody else's. A RuntimeError if it fails."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}; its error is above.")


class Measured:
    """A process that makes steps of a job, and is started again after it ran out of memory.

    Args:
        job: `Job`
        open_steps: Function from the job to (function from a batch size and a number of steps that makes them; what
            they run on, in words), called in the process. How long that took is `ready_seconds`.
    """

    def __init__(self, job, open_steps):
        self.job, self.device, self.ready_seconds = job, None, None
        self._open_steps, self._process = open_steps, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()

    @property
    def peak_memory(self):
        """The most that the process has had in memory since it was ready, in bytes; `None` where the system does not
        tell."""
        return peak_memory(self._process.pid)

    def seconds(self, batch_size, warmup, steps):
        """Seconds of some steps, after others that are not counted. Raises `OutOfMemoryError`, or a RuntimeError with
        the traceback of any other error."""
        if self._process is None:
            self._start()
        kind, value = self._ask((batch_size, warmup, steps))
        if kind == "seconds":
            return value
        self._end()  # What an exhausted process still holds would be missing.
        if kind == "memory":
            raise OutOfMemoryError(value)
        raise RuntimeError(value)

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.job, self._open_steps))
        self._process.start()
        theirs.close()
        kind, value = self._answer()
        if kind != "ready":
            self._end()
            raise OutOfMemoryError(value) if kind == "memory" else RuntimeError(value)
        self.device, self.ready_seconds = value

    def _ask(self, request):
        with contextlib.suppress(OSError):  # It may have been killed meanwhile, which _answer tells.
            self._connection.send(request)
        return self._answer()

    def _answer(self):
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            # Killed by the system, or by itself where an allocation failed; with a limit also where a library did not
            # look whether one had. Any other end is a fault of the program.
            of_limit = () if self.job.memory_limit is None else (-signal.SIGSEGV,)
            is_memory = code in (-signal.SIGKILL, -signal.SIGABRT, *of_limit)
            return ("memory" if is_memory else "error"), f"The process of {self.job} ended with {code}."

    def _end(self):
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None


def forget_peak_memory():
    """Lets the peak begin anew: what it took to get ready is not looked for."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _serve(connection, job, open_steps):
    try:
        if job.memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (job.memory_limit, job.memory_limit))
        begun = time.perf_counter()
        make_steps, device = open_steps(job)
        ready = time.perf_counter() - begun
        forget_peak_memory()
        connection.send(("ready", (device, ready)))
        while True:
            batch_size, warmup, steps = connection.recv()
            make_steps(batch_size, warmup)
            begun = time.perf_counter()
            make_steps(batch_size, steps)
            connection.send(("seconds", time.perf_counter() - begun))
    except EOFError:
        return  # No more is asked for.
    except Exception as error:
        connection.send(("memory", str(error)) if is_out_of_memory(error) else ("error", traceback.format_exc()))
