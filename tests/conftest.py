"""What holds for every test."""

import gc
import os
import pathlib
import random
import sys
import zlib

import numpy as np
import pytest

from benchmarks import quick_xla

# On JAX most of the time goes into compiling what takes no time to run. XLA makes the least effort, and what it has
# compiled is kept for other workers, fresh processes and later runs. Set before Keras is imported.
if os.environ.get("KERAS_BACKEND") == "jax":
    for name, value in quick_xla.variables(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax").items():
        os.environ.setdefault(name, value)

MOST_GROWTH = 1_500_000_000
"""Bytes that a worker may grow by before it gives up what it has compiled and traced, which takes it a second."""


# Imports leave hundreds of thousands of objects. The garbage collector would look through them again and again.
gc.disable()


def pytest_ignore_collect(collection_path, config):
    """Files without a test of `each_backend` need not be imported where only those are run."""
    only_those = config.option.markexpr.startswith("each_backend") and collection_path.suffix == ".py"
    return True if only_those and "each_backend" not in collection_path.read_text() else None


def pytest_collection_finish():
    """From now on there is garbage; what is imported is hidden from the search for it."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # A search costs more than the memory of the little garbage that most tests leave.
    gc.enable()


def pytest_configure(config):
    """pytest-randomly draws the order of the tests, not their random numbers."""
    config.option.randomly_reset_seed = False


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """A fixture is the same whichever test asks for it first, and no two fixtures have the same weights."""
    _seed(zlib.crc32(fixturedef.argname.encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    """The same random weights and dropped paths in every run of the suite, in whatever order."""
    _seed(0)


def _seed(seed):
    """Seeds NumPy and, through Python, Keras.

    `keras.utils.set_random_seed` would set TensorFlow's seed as well, and make it forget all that it has compiled.
    """
    random.seed(seed)
    np.random.seed(seed)


@pytest.fixture(scope="session")
def memory_held():
    """[bytes that were held after the last release]"""
    return [_memory()]


@pytest.fixture(autouse=True, scope="module")
def released(memory_held):
    """Frees the memory of what the files of tests have compiled and traced, once there is much of it."""
    yield
    if _memory() - memory_held[0] > MOST_GROWTH:
        import keras

        keras.utils.clear_session()
        if keras.backend.backend() == "jax":
            import jax

            jax.clear_caches()
        memory_held[0] = _memory()


def _memory():
    """Bytes that this process holds; 0 where the system does not say."""
    try:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# The comparisons with other projects need those installed: `make test-peers` loads this plugin.
collect_ignore = [] if "tests.peers.first_imports" in sys.modules else ["peers"]
