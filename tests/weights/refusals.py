"""Helpers that assert that a file is refused: with a message, and without much time or memory."""

import time
import tracemalloc

import pytest

from keras_vit.weights.containers.files import open_arrays


def refused(path, match=None):
    with pytest.raises(ValueError, match=match) as error:
        dict(open_arrays(path))
    assert str(path) in str(error.value)


def refuses_at_once(path, match):
    start = time.process_time()
    tracemalloc.start()
    refused(path, match)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert time.process_time() - start < 1
