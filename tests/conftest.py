"""What holds for every test."""

import os
import sys

import pytest

# On JAX much of the time is XLA compiling one small operation after the other. Set before Keras is imported.
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(autouse=True)
def seeded():
    """The same random weights and dropped paths in every run of the suite, in whatever order."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def released():
    """What a file of tests has compiled and traced: kept until the end, it fills the memory."""
    yield
    import keras

    keras.utils.clear_session()
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()


# The comparisons with other projects need those installed: `make test-peers` loads this plugin.
collect_ignore = [] if "tests.peers.first_imports" in sys.modules else ["peers"]
