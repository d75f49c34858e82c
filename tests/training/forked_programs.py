"""Runs programs in separate processes that share one import of TensorFlow, which takes three seconds.

    python -m tests.training.forked_programs FOLDER PROGRAMS

PROGRAMS is a JSON object {backend: {name: {"module": one with a function `main`, "arguments": [...],
"environment": {...}}}}. All programs run at the same time. The output of each goes to `FOLDER/<backend> <name>.log`.
The parent processes compute nothing, so each program starts in a fresh state.
"""

import faulthandler
import functools
import gc
import importlib
import json
import os
import pathlib
import sys
import traceback

_SECONDS = 600


def main(folder, programs):
    """Returns the exit status: 0 if all programs have succeeded."""
    gc.disable()  # Collection would search the imported objects again and again. Keras collects even so.
    sys.modules["sklearn"] = None  # Keras would import it, although it is not needed.
    sys.modules["keras"] = None  # TensorFlow would import Keras, which could then not change its backend.
    import tensorflow  # noqa: F401

    del sys.modules["keras"]
    import matplotlib  # noqa: F401
    import tensorflow_datasets  # noqa: F401

    groups = json.loads(programs).items()
    return _fork_all({name: functools.partial(_run_all, folder, name, group) for name, group in groups}, folder)


def _run_all(folder, backend, programs):
    """Runs the programs of a backend."""
    os.environ["KERAS_BACKEND"] = backend
    for program in programs.values():
        importlib.import_module(program["module"])
    gc.freeze()
    return _fork_all({f"{backend} {name}": functools.partial(_run, each) for name, each in programs.items()}, folder)


def _run(program):
    # If one of several processes fails, the others would wait for it forever.
    faulthandler.dump_traceback_later(_SECONDS, exit=True)
    os.environ.update(program["environment"])
    importlib.import_module(program["module"]).main(*program["arguments"])
    return 0


def _fork_all(functions, folder):
    """Calls functions in processes. Returns 0 if all of them return 0."""
    processes = [_fork(function, pathlib.Path(folder, f"{name}.log")) for name, function in functions.items()]
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    return int(any(statuses))


def _fork(function, log):
    """Calls a function in a new process, which exits with the returned status. Returns the process id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = function()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # A regular exit of the interpreter takes more than a second.


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
