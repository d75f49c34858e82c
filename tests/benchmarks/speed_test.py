"""The search for the fastest and the largest batch."""

import pytest

from benchmarks.speed import largest_batch, measure, peak
from benchmarks.workers import Job, OutOfMemoryError, is_out_of_memory
from tests.benchmarks.stub_steps import open_full


@pytest.mark.parametrize("limit", [100, 128])
@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7, 8, 100, 127, 128])
def test_the_largest_batch_is_found(largest, limit):
    tried = []

    def step(batch_size):
        tried.append(batch_size)
        if batch_size > largest:
            raise OutOfMemoryError

    assert largest_batch(step, limit) == min(largest, limit)
    assert len(tried) <= 2 * 8
    assert max(tried) <= limit


@pytest.mark.parametrize(
    ("rates", "expected", "tried"),
    [
        ({1: 10, 2: 15, 4: 14, 8: 20, 16: 19, 32: 18, 64: 99}, (20, 8), 6),  # It ends after two sizes without gain.
        ({1: 10, 2: 30, 4: OutOfMemoryError}, (30, 2), 3),
        ({1: OutOfMemoryError, 2: 5}, None, 1),
    ],
)
def test_the_peak_over_batch_sizes(rates, expected, tried):
    seen = []

    def rate(batch_size):
        seen.append(batch_size)
        if rates[batch_size] is OutOfMemoryError:
            raise OutOfMemoryError
        return rates[batch_size]

    assert peak(rate, rates) == expected
    assert len(seen) == tried


@pytest.mark.slow
def test_earlier_batches_do_not_use_up_the_memory():
    row = measure(Job("S/16", 64), 16, open_full)
    assert (row["largest_batch"], row["largest_tried"]) == (9, 16)


class ResourceExhaustedError(Exception):
    """An error with the name of TensorFlow's class."""


class XlaRuntimeError(RuntimeError):
    """An error with the name of JAX's class for all kinds of errors."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ResourceExhaustedError("failed to allocate memory"), True),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes."), True),
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (XlaRuntimeError("INVALID_ARGUMENT: shapes"), False),
        (ValueError("batch"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error, expected):
    assert is_out_of_memory(error) == expected
