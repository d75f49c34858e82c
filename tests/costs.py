"""Measures the processor time of each test and of its parts. `make test-costs` runs the suite with this plugin.

`pytest -p tests.costs` writes one line per test into the folder `TEST_COSTS`. `python -m tests.costs FOLDER` prints the
totals.
"""

import collections
import contextlib
import functools
import inspect
import json
import os
import pathlib
import sys
import time

import pytest

from benchmarks import records

_TICKS = os.sysconf("SC_CLK_TCK")


def _fields(process):
    """Fields 3 and up of /proc/<process>/stat, after the program name, which may contain spaces and parentheses."""
    return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _children(process):
    children = []
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The process has just ended.
            children += (thread / "children").read_text().split()
    return children


def _descendants_seconds(process):
    """Processor time of running descendants, and of their children that have ended."""
    seconds = 0.0
    for child in _children(process):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The process has just ended.
            seconds += sum(map(int, _fields(child)[11:15])) / _TICKS + _descendants_seconds(child)
    return seconds


def child_seconds():
    """Processor time of all child processes, running or ended."""
    times = os.times()
    return times.children_user + times.children_system + _descendants_seconds(os.getpid())


class Clock:
    """Processor time by part. Time counts for the innermost open part."""

    def __init__(self):
        self.seconds = collections.Counter()
        self._open = []
        self._since = time.process_time()

    def _settle(self):
        now = time.process_time()
        self.seconds[self._open[-1] if self._open else "other"] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def part(self, name):
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def timed(self, name, function):
        @functools.wraps(function)
        def wrapper(*arguments, **keywords):
            with self.part(name):
                return function(*arguments, **keywords)

        return wrapper

    def take(self):
        """{part: seconds} since the previous call."""
        self._settle()
        taken, self.seconds = dict(self.seconds), collections.Counter()
        return taken


def _replace(clock, name, owner, *attributes):
    for attribute in attributes:
        setattr(owner, attribute, clock.timed(name, getattr(owner, attribute)))


def _instrument(clock):
    """Times expensive functions of Keras, of TensorFlow and of the tests."""
    import keras
    import tensorflow as tf

    import keras_vit
    from tests import test_case

    factories = [name for name in keras_vit.models.FACTORIES if inspect.isfunction(getattr(keras_vit, name))]
    for name in factories:
        timed = clock.timed("building models", getattr(keras_vit, name))
        # Also where it is defined: otherwise it could not be pickled.
        for module in (keras_vit, keras_vit.models, sys.modules[timed.__module__]):
            setattr(module, name, timed)
    _replace(clock, "gradients", test_case, "output_and_gradients")
    _replace(clock, "fit, evaluate, predict", keras.Model, "fit", "evaluate", "predict", "train_on_batch")
    _replace(clock, "exports", keras.Model, "export")
    _replace(clock, "exports", tf.saved_model, "save", "load")
    _replace(clock, "files", keras.Model, "save", "save_weights", "load_weights")
    _replace(clock, "clearing", keras.utils, "clear_session")
    if keras.backend.backend() == "jax":
        from jax._src import compiler

        _replace(clock, "XLA compilation", compiler, "backend_compile_and_load", "compile_or_get_cached")


class Recorder:
    def __init__(self, folder, backend):
        self.file = (pathlib.Path(folder) / f"{backend}-{os.getpid()}.jsonl").open("a")
        self.clock, self.backend = Clock(), backend
        self.children = child_seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self):
        with self.clock.part("imports and collection"):
            yield
        self._write("(collection)", 0.0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        wall = time.monotonic()
        self.clock.take()
        result = yield
        self._write(item.nodeid, time.monotonic() - wall)
        return result

    def _write(self, test, wall):
        parts = self.clock.take()
        children = child_seconds()
        parts["fresh processes"] = children - self.children
        self.children = children
        line = {"test": test, "backend": self.backend, "cpu": sum(parts.values()), "wall": wall}
        rounded = {name: round(seconds, 4) for name, seconds in parts.items() if seconds > 5e-5}
        self.file.write(json.dumps(line | {"parts": rounded}) + "\n")
        self.file.flush()


def pytest_configure(config):
    folder = os.environ.get("TEST_COSTS")
    is_worker = hasattr(config, "workerinput")
    if not folder or (config.getoption("numprocesses", None) and not is_worker):
        return  # No folder is given, or the workers write the costs.
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    recorder = Recorder(folder, backend)
    config.pluginmanager.register(recorder, "costs")
    with recorder.clock.part("imports and collection"):
        _instrument(recorder.clock)


def read(folder):
    """The recorded tests, one dictionary each."""
    return [record for path in sorted(pathlib.Path(folder).glob("*.jsonl")) for record in records.read(path)]


def _total(tests, name=None):
    return sum(record["parts"].get(name, 0.0) if name else record["cpu"] for record in tests)


def _group(tests, key):
    groups = collections.defaultdict(list)
    for record in tests:
        groups[key(record)].append(record)
    return sorted(groups.items(), key=lambda item: -_total(item[1]))


def main(folder, *prefixes):
    """Prints seconds by part, seconds by file and the longest tests of each backend."""
    asked = [record for record in read(folder) if not prefixes or record["test"].startswith(prefixes)]
    for backend, tests in _group(asked, lambda record: record["backend"]):
        print(f"\n{backend}: {len(tests)} tests, {_total(tests):.0f} s")
        parts = {name for record in tests for name in record["parts"]}
        for name in sorted(parts, key=lambda name: -_total(tests, name)):
            print(f"{_total(tests, name):8.1f}  {name}")
        print("\n by file")
        for file, group in _group(tests, lambda record: record["test"].split("::")[0])[:60]:
            print(f"{_total(group):8.1f} {len(group):5}  {file}")
        print("\n by test")
        for record in sorted(tests, key=lambda record: -record["cpu"])[:60]:
            largest = max(record["parts"], key=record["parts"].get, default="")
            print(f"{record['cpu']:8.1f}  {record['test']}  ({largest})")


if __name__ == "__main__":
    main(*sys.argv[1:])
