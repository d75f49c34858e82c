"""Runs programs in separate processes that share one import of TensorFlow and Keras, which takes five seconds.

    python -m tests.training.forked_programs FOLDER PROGRAMS

PROGRAMS is a JSON object {name: {"module": one with a function `main`, "arguments": [...], "environment": {...}}}.
The programs run at the same time. Their output goes to `FOLDER/<name>.log`. Their exit statuses are printed as
JSON. The parent process computes nothing, so each program starts in a fresh state.
"""

import gc
import importlib
import json
import os
import pathlib
import signal
import sys
import traceback

_SECONDS = 600


def main(folder, programs):
    gc.disable()  # Collection would search the imported objects again and again.
    programs = json.loads(programs)
    for program in programs.values():
        importlib.import_module(program["module"])
    processes = {name: _fork(program, pathlib.Path(folder, f"{name}.log")) for name, program in programs.items()}
    ends = {name: os.waitpid(process, 0)[1] for name, process in processes.items()}
    print(json.dumps({name: os.waitstatus_to_exitcode(status) for name, status in ends.items()}))


def _fork(program, log):
    """Starts a program; returns its process id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.alarm(_SECONDS)  # If one of several processes fails, the others would wait for it forever.
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(program["environment"])
        importlib.import_module(program["module"]).main(*program["arguments"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # A regular exit of the interpreter takes more than a second.


if __name__ == "__main__":
    main(*sys.argv[1:])
