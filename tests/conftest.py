"""What holds for every test."""

import gc
import os
import pathlib
import random
import sys

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


@pytest.fixture(autouse=True)
def seeded():
    """The same random weights and dropped paths in every run of the suite, in whatever order.

    Keras draws all its seeds from Python's generator. `keras.utils.set_random_seed` would set TensorFlow's as well, and
    make it forget all that it has compiled.
    """
    random.seed(0)
    np.random.seed(0)


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
