"""Runs tests in processes that are forked from one that has imported TensorFlow and pytest, but not the library.

This program imports nothing from its own package, because tests import the packages of their own checkout. It reads
requests from its standard input, lines of JSON, and answers each with a line:

    {"tests": [ordered names], "timeout": seconds, "options": options of pytest, "log": file}
    {"ended": "exit", "signal" or "timeout", "code": code of pytest, "failed": the test, or null, "why": its last line,
     "passed": number of tests, "cpu": seconds of processor time}
"""

import json
import os
import pathlib
import select
import signal
import sys
import time

import pytest


def main(root):
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[0] = str(root)
    os.chdir(root)
    preload()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def preload():
    """Imports the slowest packages of most tests. None of them starts threads or selects devices before it is used."""
    import _pytest.assertion.rewrite
    import _pytest.doctest
    import jax
    import keras
    import tensorflow as tf

    tf.data, tf.saved_model, jax.jit, keras.layers, _pytest.doctest, _pytest.assertion  # noqa: B018


def answer(request):
    """Runs the tests of a request in a fork until the fork ends or times out. Processes that it started are killed."""
    ready, write = os.pipe()
    process = os.fork()
    if not process:
        os.close(ready)
        _run(request, write)
    os.close(write)
    events, ended = _events(ready, process, time.monotonic() + request["timeout"])
    os.close(ready)
    if ended == "timeout":
        _kill(process)
    _, status, usage = os.wait4(process, 0)
    _kill(process)  # The processes that the fork left running are in its group.
    code = os.waitstatus_to_exitcode(status)
    return {
        "ended": "signal" if ended == "exit" and code < 0 else ended,
        "code": code,
        "cpu": usage.ru_utime + usage.ru_stime,
        **_outcome(events, code, ended, pathlib.Path(request["log"])),
    }


def _kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _events(ready, process, deadline):
    """(lines that the child writes until it ends, how it ended)"""
    content, end = b"", os.pidfd_open(process)
    os.set_blocking(ready, False)
    try:
        while True:
            readable, _, _ = select.select([ready, end], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(ready, 65536) if ready in readable else b""
            content += part
            if not part:  # A process that it started may keep the pipe open.
                return _lines(content), "exit" if readable else "timeout"
    finally:
        os.close(end)


def _lines(content):
    return [json.loads(line) for line in content.decode().splitlines() if line.endswith("]")]


def _outcome(events, code, ended, log):
    """The test that failed, that ran when the process ended, or that was not collected."""
    failed = [event for event in events if event[0] == "failed"]
    begun = [test for kind, test, *_ in events if kind == "begun"]
    passed = sum(event[0] == "passed" for event in events)
    if failed:
        [_, test, why, *_] = failed[0]
    elif ended == "timeout" or code < 0:
        test, why = (begun or ["(collection)"])[-1], f"{ended} {code}"
    elif code not in (0, 5):
        lines = log.read_text(errors="replace").split("\n")
        test, why = (
            "(collection)",
            next((line for line in reversed(lines) if line.startswith(("E ", "ERROR"))), f"{code}"),
        )
    else:
        test = why = None
    return {"failed": test, "why": why, "passed": passed}


def _run(request, write):
    """Runs pytest in the child and ends the process."""
    os.setsid()
    os.set_inheritable(write, False)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["pytest"]
    code = 70
    try:
        files = dict.fromkeys(test.partition("::")[0] for test in request["tests"])
        options = ["-x", "-q", "-m", "", "-p", "no:xdist", *request["options"]]
        code = int(pytest.main([*options, *files], plugins=[Plugin(request["tests"], write)]))
    finally:
        os._exit(code)


class Plugin:
    """Keeps the requested tests, in their order, and writes their events into a pipe."""

    def __init__(self, tests, write):
        self._order = {test: index for index, test in enumerate(tests)}
        self._write = write

    def _write_event(self, *event):
        os.write(self._write, f"{json.dumps(event)}\n".encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """If a test is missing, the mutant may have changed its name, so all cases of its function are kept."""
        missing = self._order.keys() - {item.nodeid for item in items}
        functions = {test.partition("[")[0] for test in missing}
        kept = [i for i in items if i.nodeid in self._order or i.nodeid.partition("[")[0] in functions]
        items[:] = sorted(kept, key=lambda item: self._order.get(item.nodeid, len(self._order)))

    def pytest_collectreport(self, report):
        if report.failed:
            self._write_event("failed", report.nodeid or "(collection)", _last_line(report))

    def pytest_runtest_logstart(self, nodeid):
        self._write_event("begun", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._write_event("failed", report.nodeid, _last_line(report))
        elif report.when == "call":
            self._write_event("passed", report.nodeid)


def _last_line(report):
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")] or [
        str(report.longrepr)[-200:]
    ]
    return lines[0].removeprefix("E ").strip()[:200]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
