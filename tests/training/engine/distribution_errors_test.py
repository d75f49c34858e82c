"""Invalid distributions are errors. `distribution_test.py` trains on several devices."""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.engine import distribution
from training.errors import InputError
from training.recipe.config import validate

IS_JAX = keras.backend.backend() == "jax"
JAX_PROCESSES = [f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")]
pytestmark = pytest.mark.each_backend


def recipe(config=None, batch_size=12, precision="float32", **distribution):
    small = {"patch_size": 4, "hidden_dim": 24, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
    return validate(
        {
            "name": "refused",
            "model": {"config": small | (config or {}), "input_shape": (8, 12, 3)},
            "data": {"dataset": "digits"},
            "fit": {"batch_size": batch_size, "epochs": 1, "precision": precision, "accumulation_steps": 3},
            "distribution": distribution,
        }
    )


def workers(count, kind="worker", index=0, job="worker"):
    addresses = [f"127.0.0.1:{10_000 + i}" for i in range(count)]
    return {"TF_CONFIG": json.dumps({"cluster": {job: addresses}, "task": {"type": kind, "index": index}})}


PROCESSES = dict(zip(JAX_PROCESSES, ["127.0.0.1:10000", "2", "0"], strict=True))
REFUSED = [
    ({"kind": "none"}, workers(2), "TF_CONFIG is set, but distribution.kind=none"),
    ({"kind": "none"}, PROCESSES, "JOB_ADDRESSES is set, but distribution.kind=none"),
]
REFUSED_ON_TENSORFLOW = [
    ({"kind": "data_parallel"}, {}, "needs the backend jax. Received: tensorflow, which supports none, mirrored"),
    ({"kind": "model_parallel"}, {}, "KERAS_BACKEND"),
    ({"kind": "mirrored"}, {}, "more than one device, but there is only one.*distribution.devices=2"),
    ({"kind": "mirrored", "devices": 3}, {}, "at most 1 on this machine. Received: 3"),
    ({"kind": "mirrored"}, workers(2), "TF_CONFIG is set, but distribution.kind=mirrored"),
    ({"kind": "multi_worker"}, {}, "needs the environment variable TF_CONFIG.*Received: None"),
    ({"kind": "multi_worker"}, {"TF_CONFIG": "{"}, "Received: '{'"),
    ({"kind": "multi_worker"}, {"TF_CONFIG": "[" * 9999}, r"Received: '\[\["),
    ({"kind": "multi_worker"}, workers(1), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, index=2), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, kind="evaluator"), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, job="ps"), "two workers or more"),
    ({"kind": "multi_worker", "devices": 2}, workers(2), "at most 1 on this machine. Received: 2"),
    ({"kind": "tpu"}, {}, "finds no TPU"),
    ({"kind": "tpu", "devices": 8}, {}, "distribution.devices is not used"),
]
REFUSED_ON_JAX = [
    ({"kind": "mirrored"}, {}, "needs the backend tensorflow. Received: jax, which supports none, data_parallel"),
    ({"kind": "data_parallel"}, {}, "more than one device, but there is only one"),
    ({"kind": "data_parallel", "devices": 3}, {}, "at most 1 on this machine. Received: 3"),
    ({"kind": "model_parallel", "model_devices": 2}, {}, "model_devices must divide the 1 devices.*Received: 2"),
    ({"kind": "data_parallel"}, dict(list(PROCESSES.items())[:2]), "Missing: KERAS_DISTRIBUTION_PROCESS_ID"),
    (
        {"kind": "data_parallel"},
        PROCESSES | {JAX_PROCESSES[2]: "2"},
        "PROCESS_ID='2', KERAS_DISTRIBUTION_NUM_PROCESSES='2'",
    ),
    ({"kind": "none", "precision": "mixed_float16"}, {}, "Choose mixed_bfloat16"),
]


@pytest.fixture(autouse=True)
def no_distribution_left():
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.parametrize(
    ("fields", "environment", "message"), REFUSED + (REFUSED_ON_JAX if IS_JAX else REFUSED_ON_TENSORFLOW)
)
def test_refused(fields, environment, message, monkeypatch):
    keras.ops.convert_to_numpy(keras.ops.ones(1))  # From this line on, JAX has only one device.
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        distribution.start(recipe(**fields))


@pytest.mark.parametrize(("batch_size", "is_refused"), [(12, False), (18, True), (15, True)])
def test_a_batch_that_does_not_divide(batch_size, is_refused, monkeypatch):
    monkeypatch.setattr(distribution.Engine, "num_replicas", 4)
    expected = (
        pytest.raises(InputError, match=r"multiple of 12 \(4 replicas") if is_refused else contextlib.nullcontext()
    )
    with expected:
        distribution.start(recipe(batch_size=batch_size))


def test_one_device():
    engine = distribution.start(recipe())
    assert (engine.num_replicas, engine.num_processes, engine.is_chief) == (1, 1, True)
    assert engine.distribute(lambda *slices: slices, 12) == (0, 1, 12)
    assert [engine.any_process(flag) for flag in (True, False)] == [True, False]
    variable = keras.Variable(np.zeros((2, 3)), dtype="float32")
    engine.assign([variable], [np.arange(6.0).reshape(2, 3)])
    np.testing.assert_array_equal(engine.to_host([variable])[0], [[0, 1, 2], [3, 4, 5]])
    with engine.scope():
        assert not tf.distribute.has_strategy()
