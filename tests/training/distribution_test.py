"""Training on several devices and processes against training on one, and what is refused."""

import ast
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.layouts_test import SHARDED
from training import distribution
from training.config import validate
from training.errors import InputError

ROOT = pathlib.Path(__file__).parents[2]
IS_JAX = keras.backend.backend() == "jax"
ADAMW_IN_PARTS = {"optimizer": "adamw", "accumulation_steps": 2}


def case(kind, devices=None, distribution=None, **fields):
    return {"distribution": {"kind": kind, "devices": devices, **(distribution or {})}, **fields}


# On one device, for each kind of model and optimizer; what is below is compared with these.
SINGLE = {
    "sgd": case("none"),
    "adamw": case("none", optimizer="adamw"),
    "batch_norm": case("none", model="batch_norm"),
}
SHARING = {"model_devices": 2, "shard_weights": True}
# backend: in one process, the most devices first, because they are fixed from then on; in each of two processes. A
# batch has 8 images, so that with 4 replicas and 2 parts each part is a single image, some of them nothing but padding.
CASES = {
    "tensorflow": (
        {
            "adamw, 4 in parts": case("mirrored", 4, **ADAMW_IN_PARTS),
            "sgd, 2": case("mirrored", 2),
            "batch_norm, 2": case("mirrored", 2, model="batch_norm"),
        },
        {"adamw, 2 processes": case("multi_worker", **ADAMW_IN_PARTS)},
    ),
    "jax": (
        {
            "adamw, 4 in parts": case("data_parallel", 4, **ADAMW_IN_PARTS),
            "sgd, 2": case("data_parallel", 2),
            "batch_norm, 2": case("data_parallel", 2, model="batch_norm"),
            "sgd, 2 x 2": case("model_parallel", 4, {"model_devices": 2}),
            "adamw, 2 x 2 sharded": case("model_parallel", 4, SHARING, **ADAMW_IN_PARTS),
        },
        {
            "sgd, 2 processes of 2": case("data_parallel", 2),
            # The two halves of a layer lie in different processes.
            "adamw, 1 x 2 sharded": case("model_parallel", 1, SHARING, **ADAMW_IN_PARTS),
        },
    ),
}
NAMES = [(backend, name) for backend, groups in CASES.items() for group in groups for name in group]


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """A function from a backend to what its programs wrote, by the names of the cases."""

    def results(backend):
        folder = tmp_path_factory.mktemp("curves")
        in_one, in_each_of_two = CASES[backend]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(_run, folder, in_one | SINGLE, {"KERAS_BACKEND": backend})]
            runs += [pool.submit(_run, folder, in_each_of_two, environment) for environment in _pair(backend)]
            for run in runs:
                run.result()
        return {path.stem: dict(np.load(path)) for path in folder.iterdir()}

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # A future is what keeps an error as well: the programs of a backend run once.
        started = functools.cache(functools.partial(pool.submit, results))
        yield lambda backend: started(backend).result()


def _run(folder, cases, environment):
    command = [sys.executable, "-m", "tests.training.curves_program", str(folder), json.dumps(cases)]
    # XLA takes most of the time, to make faster what takes none.
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"} | environment
    with tempfile.TemporaryFile() as log:
        result = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=900, check=False)
        log.seek(-min(log.tell(), 4000), os.SEEK_END)
        assert result.returncode == 0, log.read().decode(errors="replace")


def _pair(backend):
    """The environments of two processes that find each other."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    for i in range(2):
        if backend == "tensorflow":
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            yield {"KERAS_BACKEND": backend, "TF_CONFIG": json.dumps(task)}
        else:
            values = dict(zip(distribution._JAX_PROCESSES, [addresses[0], "2", str(i)], strict=True))
            yield {"KERAS_BACKEND": backend, **values}


@pytest.mark.parametrize(("backend", "name"), NAMES)
def test_the_same_curve_on_any_devices(curves, backend, name):
    """The losses and metrics of 20 steps and 4 validations, and all variables after them."""
    found, expected = curves(backend)[name], curves(backend)[name.split(",")[0]]
    assert found["steps"].shape == (20, 2)
    for key in [key for key in expected if key in ("steps", "epochs") or key.startswith("variable")]:
        # Measured: at most 4e-6. Accuracies differ by 0.006 or more where an image is counted otherwise.
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(found["metrics"], expected["metrics"], rtol=1e-4)


@pytest.mark.parametrize("backend", CASES)
def test_the_loss_falls(curves, backend):
    """Or all curves might be equal for being flat."""
    for name in SINGLE:
        loss, accuracy = curves(backend)[name]["epochs"][:2]
        assert loss[-1] < loss[0] - 0.1
        assert accuracy[-1] > accuracy[0]


@pytest.mark.parametrize(("backend", "name"), NAMES)
def test_variables_come_and_go_whole_and_flags_reach_all_processes(curves, backend, name):
    """`to_host` after `assign` gives what `to_host` gave. The flag is set in the last process, the first one wrote."""
    result = curves(backend)[name]
    assert result["restored"]
    assert result["alarms"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "axes", "slots"),
    [
        ("adamw, 2 x 2 sharded", {"batch", "model"}, ("momentum", "velocity")),
        ("adamw, 1 x 2 sharded", {"batch", "model"}, ("momentum", "velocity")),
        ("sgd, 2 x 2", {"model"}, ("momentum",)),
        ("sgd, 2", set(), ("momentum",)),
    ],
)
def test_weights_and_slots_lie_as_laid_out(curves, name, axes, slots):
    """Numbers are right either way: what is looked at are the shardings that the arrays of JAX have."""
    written = {key: str(value) for key, value in curves("jax")[name].items() if key.startswith("sharding ")}
    shardings = {key.removeprefix("sharding "): ast.literal_eval(value) for key, value in written.items()}
    assert len(shardings.keys() & {path.replace("encoder_block_1", "encoder_block_0") for path in SHARDED}) == 13
    for path, layout in SHARDED.items():
        path = path.replace("encoder_block_1", "encoder_block_0")
        if path in shardings:  # The tiny model has a part of them.
            expected = _trimmed([axis if axis in axes else None for axis in layout])
            assert _trimmed(shardings[path]) == expected, path
            for slot in slots:
                end = f"{path.replace('/', '_')}_{slot}"
                [of_slot] = [sharding for key, sharding in shardings.items() if key.endswith(end)]
                assert _trimmed(of_slot) == expected, end


def _trimmed(axes):
    """Without the dimensions at the end that are not cut, which JAX may or may not name."""
    while axes and axes[-1] is None:
        axes = axes[:-1]
    return list(axes)


def recipe(config=None, batch_size=12, precision="float32", **of_distribution):
    small = {"patch_size": 4, "hidden_dim": 24, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
    return validate(
        {
            "name": "refused",
            "model": {"config": small | (config or {}), "input_shape": (8, 12, 3)},
            "data": {"dataset": "digits"},
            "fit": {"batch_size": batch_size, "epochs": 1, "precision": precision, "accumulation_steps": 3},
            "distribution": of_distribution,
        }
    )


def workers(count, kind="worker", index=0, job="worker"):
    addresses = [f"127.0.0.1:{10_000 + i}" for i in range(count)]
    return {"TF_CONFIG": json.dumps({"cluster": {job: addresses}, "task": {"type": kind, "index": index}})}


PROCESSES = dict(zip(distribution._JAX_PROCESSES, ["127.0.0.1:10000", "2", "0"], strict=True))
REFUSED = [
    ({"kind": "none"}, workers(2), "TF_CONFIG is set, but distribution.kind=none"),
    ({"kind": "none"}, PROCESSES, "JOB_ADDRESSES is set, but distribution.kind=none"),
]
REFUSED_ON_TENSORFLOW = [
    ({"kind": "data_parallel"}, {}, "of the backend jax. Received: tensorflow, which has none, mirrored"),
    ({"kind": "model_parallel"}, {}, "KERAS_BACKEND"),
    ({"kind": "mirrored"}, {}, "more than one device; there is one.*distribution.devices=2"),
    ({"kind": "mirrored", "devices": 3}, {}, "at most 1, what there is. Received: 3"),
    ({"kind": "mirrored"}, workers(2), "TF_CONFIG is set, but distribution.kind=mirrored"),
    ({"kind": "multi_worker"}, {}, "needs the environment variable TF_CONFIG.*Received: None"),
    ({"kind": "multi_worker"}, {"TF_CONFIG": "{"}, "Received: '{'"),
    ({"kind": "multi_worker"}, workers(1), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, index=2), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, kind="evaluator"), "two workers or more"),
    ({"kind": "multi_worker"}, workers(2, job="ps"), "two workers or more"),
    ({"kind": "multi_worker", "devices": 2}, workers(2), "at most 1, what there is. Received: 2"),
    ({"kind": "tpu"}, {}, "finds no TPU"),
    ({"kind": "tpu", "devices": 8}, {}, "distribution.devices is not read"),
]
REFUSED_ON_JAX = [
    ({"kind": "mirrored"}, {}, "of the backend tensorflow. Received: jax, which has none, data_parallel"),
    ({"kind": "data_parallel"}, {}, "more than one device; there is one"),
    ({"kind": "data_parallel", "devices": 3}, {}, "at most 1, what there is. Received: 3"),
    ({"kind": "model_parallel", "model_devices": 2}, {}, "model_devices must divide the 1 devices.*Received: 2"),
    ({"kind": "data_parallel"}, dict(list(PROCESSES.items())[:2]), "and so must be KERAS_DISTRIBUTION_PROCESS_ID"),
    ({"kind": "data_parallel"}, PROCESSES | {distribution._JAX_PROCESSES[2]: "2"}, "Received: '2' and '2'"),
    ({"kind": "none", "precision": "mixed_float16"}, {}, "choose mixed_bfloat16"),
]


@pytest.fixture(autouse=True)
def no_distribution_left():
    yield
    keras.distribution.set_distribution(None)


@pytest.mark.parametrize(
    ("fields", "environment", "message"), REFUSED + (REFUSED_ON_JAX if IS_JAX else REFUSED_ON_TENSORFLOW)
)
def test_refused(fields, environment, message, monkeypatch):
    keras.ops.convert_to_numpy(keras.ops.ones(1))  # From now on there is one device.
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        distribution.start(recipe(**fields))


@pytest.mark.parametrize(("batch_size", "is_refused"), [(12, False), (18, True), (15, True)])
def test_a_batch_that_does_not_divide(batch_size, is_refused, monkeypatch):
    class Four(distribution.Engine):
        num_devices = num_replicas = 4

    monkeypatch.setitem(distribution._ENGINES, "none", Four)
    expected = pytest.raises(InputError, match="multiple of 12: 4 replicas") if is_refused else contextlib.nullcontext()
    with expected:
        distribution.start(recipe(batch_size=batch_size))


def test_heads_of_published_weights_are_checked_too():
    engine = object.__new__(distribution._ModelParallel)
    engine._mesh, engine._shard_weights = types.SimpleNamespace(shape=(1, 4)), False
    model = {"config": None, "weights": "Ti/16@augreg-i21k", "input_shape": None}
    of_weights = dataclasses.replace(recipe(), model=dataclasses.replace(recipe().model, **model))
    with pytest.raises(InputError, match=r"num_heads must be a multiple of the 4.*Received: 3"):
        engine.check_model(of_weights)


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


@pytest.mark.skipif(IS_JAX, reason="this is it")
def test_what_is_refused_on_jax():
    chosen = "test_refused or divide or one_device"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
