"""Setup of all tests."""

import atexit
import functools
import gc
import os
import pathlib
import random
import sys
import typing
import zlib

import numpy as np
import pytest

from benchmarks import quick_xla

# TensorFlow's information would stand among the lines of progress.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# As in `python -m training`, so that processes that a test starts compute exactly the same.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# On JAX, most of the time is spent compiling. XLA optimises as little as possible, and its results are cached for other
# workers, new processes and later runs. The variables must be set before Keras is imported.
if os.environ.get("KERAS_BACKEND") == "jax":
    for name, value in quick_xla.variables(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax").items():
        os.environ.setdefault(name, value)

# TensorFlow checks many values against protocols. Python 3.11 lists the attributes of a protocol in each check.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)

MOST_GROWTH = 1_500_000_000
"""Bytes that a worker may grow by before it frees its compiled and traced functions, which takes a second."""


# Imports create hundreds of thousands of objects. The garbage collector would scan them again and again.
gc.disable()

_sessions = []


@atexit.register
def _end():
    """A regular exit of the interpreter takes a second. This function runs after all others that run at the exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _sessions:
        os._exit(_sessions[0].exitstatus)


def pytest_ignore_collect(collection_path, config):
    """If only tests with these marks run, files without such tests are not imported."""
    marks = [mark for mark in ("each_backend", "on_torch") if mark in config.option.markexpr]
    if not marks or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return None if any(mark in text for mark in marks) else True


def pytest_collection_finish():
    """Enables the garbage collector, and hides the imported objects from it."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # Most tests leave little garbage, so frequent scans would not pay.
    gc.enable()


def pytest_sessionfinish(session):
    """Hides all objects from the garbage collector, which pytest runs five times at the end."""
    _sessions.append(session)
    gc.freeze()


def pytest_configure(config):
    """pytest-randomly shuffles the tests, but does not seed them."""
    config.option.randomly_reset_seed = False


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """A fixture has the same weights whichever test requests it first. Different fixtures have different weights."""
    _seed(zlib.crc32(fixturedef.argname.encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    """Random weights and dropped paths are the same in every run and every order of the tests."""
    _seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """All variables of TensorFlow have one name, because it makes a kernel for each name, which takes 0.5 ms."""
    if "tensorflow" not in sys.modules:
        return (yield)
    import tensorflow as tf

    def create(create_next, **options):
        with tf.name_scope("variable/"):
            return create_next(**options | {"name": "variable"})

    with tf.variable_creator_scope(create):
        return (yield)


def _seed(seed):
    """Seeds NumPy and, through Python, Keras.

    `keras.utils.set_random_seed` would also set TensorFlow's seed and discard all that TensorFlow has compiled.
    """
    random.seed(seed)
    np.random.seed(seed)


@pytest.fixture(scope="session")
def memory_held():
    """[bytes in use after the last release]"""
    return [_memory()]


@pytest.fixture(autouse=True, scope="module")
def released(memory_held):
    """Frees compiled and traced functions after a test file if the process has grown by `MOST_GROWTH`."""
    yield
    if _memory() - memory_held[0] > MOST_GROWTH:
        import keras

        keras.utils.clear_session()
        if keras.backend.backend() == "jax":
            import jax

            jax.clear_caches()
        memory_held[0] = _memory()


def _memory():
    """Memory of this process in bytes, or 0 if the system does not report it."""
    try:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# Comparisons with other projects need these projects installed. `make test-peers` loads this plugin.
collect_ignore = [] if "tests.peers.first_imports" in sys.modules else ["peers"]
