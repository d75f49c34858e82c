"""Separate processes in which steps are measured."""

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
    """Raised if a batch does not fit into memory."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A measurement. `model` is a variant of ViT or the name of a function of `keras_vit`, at `size` x `size` pixels.
    `work` is `"forward"` or `"train"`. `memory_limit` is in bytes, or `None`."""

    model: str
    size: int
    work: str = "forward"
    precision: str = "float32"
    memory_limit: int | None = None


def is_out_of_memory(error):
    """Whether an error of Python, TensorFlow, JAX or torch reports that memory ran out."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"}) or any(
        text in str(error) for text in _OUT_OF_MEMORY
    )


def peak_memory(process="self"):
    """Peak memory of a process, given by its number, in bytes; `None` if the system does not report it."""
    # Not getrusage: there, a new process starts with the peak of its parent.
    status = pathlib.Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def elsewhere(function, *arguments):
    """Calls a function in a separate process. Raises RuntimeError if it fails."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}; its error is above.")


class Measured:
    """A process that makes the steps of a job. It is restarted after it ran out of memory.

    Args:
        job: `Job`
        open_steps: Function from the job to (function that makes steps from a batch size and a number of steps,
            description of the device). It is called in the process and takes `ready_seconds`.
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
        """Peak memory of the process since it was ready, in bytes; `None` if the system does not report it."""
        return peak_memory(self._process.pid)

    def seconds(self, batch_size, warmup, steps, again=False):
        """Seconds of some steps, after warm-up steps that are not counted. Raises `OutOfMemoryError`, or a RuntimeError
        with the traceback of any other error. With `again`, a batch that does not fit is tried again in a new process,
        which does not hold the graphs of earlier batch sizes."""
        is_new = self._process is None
        if is_new:
            self._start()
        kind, value = self._ask((batch_size, warmup, steps))
        if kind == "seconds":
            return value
        self._end()  # An exhausted process would still hold memory that the next batch needs.
        if kind != "memory":
            raise RuntimeError(value)
        if is_new or not again:
            raise OutOfMemoryError(value)
        return self.seconds(batch_size, warmup, steps)

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, self.job, self._open_steps))
        self._process.start()
        child_end.close()
        kind, value = self._answer()
        if kind != "ready":
            self._end()
            raise OutOfMemoryError(value) if kind == "memory" else RuntimeError(value)
        self.device, self.ready_seconds = value

    def _ask(self, request):
        with contextlib.suppress(OSError):  # If the process was killed meanwhile, _answer reports it.
            self._connection.send(request)
        return self._answer()

    def _answer(self):
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            # Killed by the system, or by itself after a failed allocation. With a limit, a library may also crash
            # because it did not check an allocation. Any other end is a fault of the program.
            limit_codes = () if self.job.memory_limit is None else (-signal.SIGSEGV,)
            is_memory = code in (-signal.SIGKILL, -signal.SIGABRT, *limit_codes)
            return ("memory" if is_memory else "error"), f"The process of {self.job} ended with {code}."

    def _end(self):
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None


def forget_peak_memory():
    """Resets the peak memory, so that the time before the first step is not included."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _serve(connection, job, open_steps):
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        if job.memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (job.memory_limit, most))
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
        return  # The parent closed the connection.
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # Sending the message takes memory, too.
        connection.send(("memory", str(error)) if is_out_of_memory(error) else ("error", traceback.format_exc()))
