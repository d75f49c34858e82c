"""A plugin of pytest that reports to the recorder in sitecustomize.py which test runs, and what tests share.

Tests share fixtures of modules and of sessions, and files that the first of them writes while it holds a file lock.

Use it with `-p mutation_contexts` and this folder on PYTHONPATH.
"""

import functools
import json
import threading

import filelock
import pytest
import sitecustomize


def _recorder():
    return sitecustomize.recorder


def _name(fixture, parameter):
    return f"fixture {fixture.baseid}::{fixture.argname}[{parameter}]"


class Contexts:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        _recorder().enter(item.nodeid)
        self.outcome = "passed"
        try:
            return (yield)
        finally:
            _recorder().write(f"test {json.dumps(self.outcome)}")
            _recorder().leave()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function":
            return (yield)
        _recorder().enter(_name(fixturedef, request.param_index))
        try:
            return (yield)
        finally:
            _recorder().leave()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item):
        """Fixtures are recorded at teardown, because a test may request more of them while it runs."""
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        for fixture in getattr(getattr(item, "_request", None), "_fixture_defs", {}).values():
            if fixture.scope != "function":
                _recorder().uses(_name(fixture, indices.get(fixture.argname, 0)))

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed":
            self.outcome = report.outcome


def _record_conversions():
    """Records functions that AutoGraph converts, such as those of `tf.data`. Their copies have no recorder calls."""
    from tensorflow.python.autograph.impl import api

    convert = api._convert_actual

    def convert_and_record(entity, program):
        sitecustomize.execute_all(entity)
        return convert(entity, program)

    api._convert_actual = convert_and_record


def _record_locks():
    """Gives code under a file lock its own context. All tests that take the lock use this context."""
    lock, held = filelock.BaseFileLock, []
    acquire, release = lock.acquire, lock.release

    @functools.wraps(acquire)
    def acquire_and_record(self, *arguments, **keywords):
        acquired = acquire(self, *arguments, **keywords)
        if self.lock_counter == 1 and threading.current_thread() is threading.main_thread():
            held.append(self)
            _recorder().uses(f"lock {self.lock_file}")
            _recorder().enter(f"lock {self.lock_file}")
        return acquired

    @functools.wraps(release)
    def release_and_record(self, *arguments, **keywords):
        release(self, *arguments, **keywords)
        if held and held[-1] is self and not self.is_locked:
            held.pop()
            _recorder().leave()

    lock.acquire, lock.release = acquire_and_record, release_and_record


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # This process runs tests.
        config.pluginmanager.register(Contexts(), "contexts")
        _record_conversions()
        _record_locks()
