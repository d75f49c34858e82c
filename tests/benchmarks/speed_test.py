"""The search for the fastest and the largest batch, processes that run out of memory, and stored results."""

import dataclasses
import signal

import keras
import pytest

import keras_vit
from benchmarks import speed
from benchmarks.speed import largest_batch, measure, peak
from benchmarks.workers import Job, Measured, OutOfMemoryError, is_out_of_memory
from tests.benchmarks.stub_steps import open_broken, open_crashing, open_limited, open_saying_the_limit

pytestmark = pytest.mark.slow

JOB = Job("Ti/16", 32)


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


def test_processes_that_run_out_of_memory_are_started_again():
    row = measure(JOB, max_batch=64, open_steps=open_limited)
    assert row["largest_batch"] == 20
    assert row["batch_size"] in (1, 2, 4, 8, 16)
    assert row["images_per_second"] > 0
    assert (row["model"], row["size"], row["device"]) == ("Ti/16", 32, "a stub")


def test_other_errors_are_told():
    with pytest.raises(RuntimeError, match="no such layer"):
        measure(JOB, open_steps=open_broken)


@pytest.mark.parametrize("work", ["forward", "train"])
def test_steps_of_a_real_model(work, monkeypatch, keras_calls):
    tiny = keras_vit.ViTConfig(patch_size=5, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)
    monkeypatch.setitem(keras_vit.VARIANTS, "tiny", tiny)
    make_steps, device = speed.open_keras_steps(Job("tiny", 12, work))  # 12 pixels are not a multiple of 5.
    make_steps(2, 3)
    make_steps(4, 1)
    name = {"forward": "predict_on_batch", "train": "train_on_batch"}[work]
    calls = [(method, images.shape) for method, images, _ in keras_calls]
    assert calls == [(name, (2, 12, 12, 3))] * 3 + [(name, (4, 12, 12, 3))]
    assert device.startswith(f"{keras.backend.backend()}: ")


def test_a_memory_limit_is_set_in_the_process():
    limit = 10**9
    with Measured(dataclasses.replace(JOB, memory_limit=limit), open_saying_the_limit) as process:
        process.seconds(1, 0, 1)
        assert process.device == f"{limit}"
        with pytest.raises(OutOfMemoryError):
            process.seconds(2 * limit, 0, 1)
        process.seconds(1, 0, 1)  # The steps run in another process.


def test_a_crash_is_a_lack_of_memory_only_at_a_limit_of_it():
    with pytest.raises(RuntimeError, match=f"ended with -{signal.SIGSEGV:d}"):
        measure(JOB, open_steps=open_crashing)
    row = measure(dataclasses.replace(JOB, memory_limit=10**10), open_steps=open_crashing)
    assert (row["largest_batch"], row["images_per_second"]) == (0, None)
