"""Training on several devices and processes equals training on one. Invalid distributions are errors."""

import ast
import contextlib
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.engine.layouts_test import SHARDED
from training.engine import distribution
from training.errors import InputError
from training.recipe.config import validate

ROOT = pathlib.Path(__file__).parents[3]
IS_JAX = keras.backend.backend() == "jax"
JAX_PROCESSES = [f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")]
BATCH_NORM = {"model": "batch_norm", "optimizer": "sgd"}


def case(kind, devices=None, distribution=None, **fields):
    return {"distribution": {"kind": kind, "devices": devices, **(distribution or {})}, **fields}


# The reference on one device for the cases below.
SINGLE = {"dense": case("none"), "batch_norm": case("none", **BATCH_NORM), "vit": case("none", model="vit")}
SHARING = {"model_devices": 2, "shard_weights": True}
# {backend: (cases in one process, cases in two processes)}. The first case has the most devices and fixes their
# number. A batch of 8 images has one per device and chunk. Some chunks contain only padding.
CASES = {
    "tensorflow": (
        {
            "nothing, 4": case("mirrored", 4, model=None),
            "dense, 2 in parts": case("mirrored", 2, accumulation_steps=4),
        },
        {"dense, 2 processes": case("multi_worker")},
    ),
    "jax": (
        {
            "dense, 2 x 2 sharded": case("model_parallel", 4, SHARING),
            "dense, 2 in parts": case("data_parallel", 2, accumulation_steps=4),
        },
        {
            "dense, 2 processes of 2": case("data_parallel", 2),
            # The two halves of a layer are in different processes.
            "dense, 1 x 2": case("model_parallel", 1, {"model_devices": 2}),
        },
    ),
}
SLOW_CASES = {
    "tensorflow": (
        {
            "vit, 4 in parts": case("mirrored", 4, model="vit", accumulation_steps=2),
            "batch_norm, 2": case("mirrored", 2, **BATCH_NORM),
        },
        {"vit, 2 processes": case("multi_worker", model="vit")},
    ),
    "jax": (
        {
            "vit, 2 x 2 sharded": case("model_parallel", 4, SHARING, model="vit", accumulation_steps=2),
            "vit, 2 x 2": case("model_parallel", 4, {"model_devices": 2}, model="vit"),
            "batch_norm, 2": case("data_parallel", 2, **BATCH_NORM),
        },
        {"vit, 1 x 2 sharded": case("model_parallel", 1, SHARING, model="vit")},
    ),
}


def names(cases):
    """(backend, name) of each case that trains a model."""
    for backend, (in_one, in_each_of_two) in cases.items():
        for name, fields in (in_one | in_each_of_two).items():
            if fields.get("model", "dense") is not None:
                yield backend, name


NAMES = [*names(CASES), *(pytest.param(*name, marks=pytest.mark.slow) for name in names(SLOW_CASES))]


@pytest.fixture(scope="module")
def programs(tmp_path_factory, jax_variables):
    """Function that runs a backend's programs; returns their output folder and what they printed, {name: text}.

    `is_slow` selects the slow cases.
    """

    @functools.cache
    def started(backend, is_slow):
        folder = tmp_path_factory.mktemp(backend)
        in_one, in_each_of_two = (SLOW_CASES if is_slow else CASES)[backend]
        single = {name: fields for name, fields in SINGLE.items() if any(n.startswith(name) for n in in_one)}
        programs = {"one": _program("curves_program", str(folder), json.dumps(in_one | single))}
        for i, environment in enumerate(_pair(backend)):
            arguments = str(folder), json.dumps(in_each_of_two)
            programs[f"process {i}"] = _program("curves_program", *arguments, environment=environment)
        if backend == "tensorflow":
            cases = ["keras_clipping", "keras_overflow"] if is_slow else ["adamw", "muon", "scaled_sgd", "overflow"]
            programs["two replicas"] = _program("two_replicas", *cases)
        command = [sys.executable, "-m", "tests.training.forked_programs", str(folder), json.dumps(programs)]
        # XLA's optimizations would take most of the time and save almost none.
        environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"} | jax_variables
        return (
            folder,
            programs,
            subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=900,
                check=True,
            ),
        )

    def ended(backend, is_slow=False):
        folder, programs, process = started(backend, is_slow)
        statuses = json.loads(process.stdout.splitlines()[-1])
        logs = {name: (folder / f"{name}.log").read_text() for name in programs}
        assert not any(statuses.values()), "\n".join(log[-4000:] for name, log in logs.items() if statuses[name])
        return folder, logs

    return ended


def _program(module, *arguments, environment=None):
    return {"module": f"tests.training.{module}", "arguments": arguments, "environment": environment or {}}


@pytest.fixture(scope="module")
def curves(programs):
    """Function that returns the results of a backend's programs by the names of the cases."""

    @functools.cache
    def written(backend, is_slow):
        return {path.stem: dict(np.load(path)) for path in programs(backend, is_slow)[0].glob("*.npz")}

    return lambda backend, name: written(backend, (backend, name) in names(SLOW_CASES))


def _pair(backend):
    """The environments of two processes that connect to each other."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    for i in range(2):
        if backend == "tensorflow":
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            yield {"TF_CONFIG": json.dumps(task)}
        else:
            yield dict(zip(JAX_PROCESSES, [addresses[0], "2", str(i)], strict=True))


@pytest.mark.parametrize(("backend", "name"), NAMES)
def test_the_same_curve_on_any_devices(curves, backend, name):
    """The losses and metrics of 10 steps and 2 validations are equal, and so are all variables after them."""
    found, single = (curves(backend, name)[each] for each in (name, name.split(",")[0]))
    assert found["steps"].shape == (10, 2)
    for key in [key for key in single if key in ("steps", "epochs") or key.startswith("variable")]:
        # Measured differences are at most 4e-6. One miscounted image changes an accuracy by 0.006 or more.
        np.testing.assert_allclose(found[key], single[key], rtol=1e-5, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(found["metrics"], single["metrics"], rtol=1e-4)
    # The loss must fall, because flat curves would always be equal.
    loss, accuracy = single["epochs"][:2]
    assert loss[-1] < loss[0] - 0.1
    assert accuracy[-1] > accuracy[0]
    # `to_host` gives the same values after `assign`. The last process raises the alarm, and the first must see it.
    assert found["restored"]
    assert found["alarms"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "axes", "count"),
    [
        ("dense, 2 x 2 sharded", {"batch", "model"}, 4),
        ("dense, 1 x 2", {"model"}, 4),
        pytest.param("vit, 2 x 2 sharded", {"batch", "model"}, 13, marks=pytest.mark.slow),
        pytest.param("vit, 1 x 2 sharded", {"batch", "model"}, 13, marks=pytest.mark.slow),
        pytest.param("vit, 2 x 2", {"model"}, 13, marks=pytest.mark.slow),
    ],
)
def test_weights_and_slots_lie_as_laid_out(curves, name, axes, count):
    """Results are right under any layout, so the shardings of JAX's arrays are compared."""
    shardings = _shardings(curves("jax", name)[name])
    laid_out = {path.removeprefix("encoder_block_1/"): layout for path, layout in SHARDED.items()}
    found = [path for path in shardings if path.removeprefix("encoder_block_0/") in laid_out]
    assert len(found) == count  # Each model has only some of these variables.
    for path in found:
        layout = laid_out[path.removeprefix("encoder_block_0/")]
        expected = _trimmed([axis if axis in axes else None for axis in layout])
        assert _trimmed(shardings[path]) == expected, path
        for slot in ("momentum", "velocity"):
            end = f"{path.replace('/', '_')}_{slot}"
            [of_slot] = [sharding for key, sharding in shardings.items() if key.endswith(end)]
            assert _trimmed(of_slot) == expected, end


@pytest.mark.parametrize("name", ["dense, 2 in parts", "dense, 2 processes of 2"])
def test_devices_that_share_batches_alone_have_whole_weights(curves, name):
    shardings = _shardings(curves("jax", name)[name])
    assert len(shardings) > 10
    assert all(_trimmed(axes) == [] for axes in shardings.values())


def _shardings(result):
    """{path of a variable: its sharding on JAX}."""
    written = {key: str(value) for key, value in result.items() if key.startswith("sharding ")}
    return {key.removeprefix("sharding "): ast.literal_eval(value) for key, value in written.items()}


def _trimmed(axes):
    """Drops trailing dimensions that are not sharded, because JAX may omit them."""
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


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("fields", "environment", "message"), REFUSED + (REFUSED_ON_JAX if IS_JAX else REFUSED_ON_TENSORFLOW)
)
def test_refused(fields, environment, message, monkeypatch):
    keras.ops.convert_to_numpy(keras.ops.ones(1))  # From this line on, JAX has only one device.
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        distribution.start(recipe(**fields))


@pytest.mark.each_backend
@pytest.mark.parametrize(("batch_size", "is_refused"), [(12, False), (18, True), (15, True)])
def test_a_batch_that_does_not_divide(batch_size, is_refused, monkeypatch):
    monkeypatch.setattr(distribution.Engine, "num_replicas", 4)
    expected = (
        pytest.raises(InputError, match=r"multiple of 12 \(4 replicas") if is_refused else contextlib.nullcontext()
    )
    with expected:
        distribution.start(recipe(batch_size=batch_size))


@pytest.mark.each_backend
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


@pytest.fixture(scope="module")
def two_replicas(programs):
    """The results of `two_replicas.py` by case."""
    _, logs = programs("tensorflow")
    return json.loads(logs["two replicas"].splitlines()[-1])


@pytest.mark.parametrize("case", ["adamw", "muon", "scaled_sgd"])
def test_steps_on_two_replicas_equal_those_on_one_device(two_replicas, case):
    """The cases cover clipping, where replicas could differ, layer decay, weight decay and the moving average."""
    results = two_replicas[case]
    assert results["weights"] < 1e-6
    assert results["averages"] < 1e-6
    assert results["change"] > 1e-3


def test_a_step_that_overflows_on_the_second_replica_alone_is_skipped(two_replicas):
    results = two_replicas["overflow"]
    assert results["finite"]
    assert results["change"] == 0
    assert results["scales"] == [1 / 8, 1 / 8]  # All three steps were skipped.


@pytest.mark.slow
def test_keras_still_needs_the_help(programs):
    _, logs = programs("tensorflow", is_slow=True)
    results = json.loads(logs["two replicas"].splitlines()[-1])
    assert results["keras_clipping"]["weights"] > 1e-3, (
        "Keras clips the sum over the replicas now: remove _clip_gradients and _all_reduce_sum_gradients from _Update, "
        "and require this version of Keras."
    )
    assert not results["keras_overflow"]["finite"], (
        "Keras asks every replica whether its gradients are finite now: remove LossScaleOptimizer from "
        "training.engine.optimizers, and require this version of Keras."
    )
