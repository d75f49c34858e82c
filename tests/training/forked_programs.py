"""Runs programs in processes of their own that share one import of TensorFlow and Keras: it takes five seconds.

    python -m tests.training.forked_programs FOLDER PROGRAMS

PROGRAMS is a JSON object {name: {"module": one with a function `main`, "arguments": [...], "environment": {...}}}. They
run at the same time. What each prints goes to `FOLDER/<name>.log`, and its exit status to standard output, as JSON.
The process that they are forked from computes nothing, so that each begins as if it had been started afresh.
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
    gc.disable()  # It would look through what imports leave again and again.
    programs = json.loads(programs)
    for program in programs.values():
        importlib.import_module(program["module"])
    processes = {name: _fork(program, pathlib.Path(folder, f"{name}.log")) for name, program in programs.items()}
    ends = {name: os.waitpid(process, 0)[1] for name, process in processes.items()}
    print(json.dumps({name: os.waitstatus_to_exitcode(status) for name, status in ends.items()}))


def _fork(program, log):
    """Starts a program; returns the number of its process."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.alarm(_SECONDS)  # Of several processes one waits for the others.
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
        os._exit(status)  # Taking the interpreter down takes more than a second.


if __name__ == "__main__":
    main(*sys.argv[1:])
