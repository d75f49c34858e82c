"""Training on several devices and processes equals training on one, and plans equal numbers derived by hand.

All programs that need several devices, several processes or Keras on JAX are started at once, because they share the
imports. `distribution_errors_test.py` tests invalid distributions.
"""

import ast
import contextlib
import functools
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.test_case import rest_slow
from tests.training.engine.distribution_errors_test import JAX_PROCESSES
from tests.training.engine.layouts_test import SHARDED

ROOT = pathlib.Path(__file__).parents[3]
VT_RESNET = {"model": "vt_resnet", "optimizer": "sgd"}


def case(kind, devices=None, distribution=None, **fields):
    return {"distribution": {"kind": kind, "devices": devices, **(distribution or {})}, **fields}


# The reference on one device for the cases below.
SINGLE = {"dense": case("none"), "vt_resnet": case("none", **VT_RESNET), "vit": case("none", model="vit")}
SHARING = {"model_devices": 2, "shard_weights": True}
# {backend: (cases in one process, cases in two processes, …)}. The first case has the most devices and fixes their
# number. A batch of 8 images has one per device and chunk. Some chunks contain only padding.
CASES = {
    "tensorflow": (
        {
            "vit, 4 in parts": case("mirrored", 4, model="vit", accumulation_steps=2),
            "dense, 2": case("mirrored", 2),
            "vt_resnet, 2": case("mirrored", 2, **VT_RESNET),
        },
        # A second strategy in one process would use the same collective operations again.
        {"dense, 2 processes": case("multi_worker")},
        {"vit, 2 processes": case("multi_worker", model="vit")},
    ),
    "jax": (
        {
            "dense, 2 x 2 sharded": case("model_parallel", 4, SHARING, accumulation_steps=2),
            "vit, 2 x 2 sharded": case("model_parallel", 4, SHARING, model="vit", accumulation_steps=2),
            "vt_resnet, 2": case("data_parallel", 2, **VT_RESNET),
        },
        {
            "dense, 2 processes of 2": case("data_parallel", 2),
            # The two halves of a layer are in different processes.
            "dense, 1 x 2": case("model_parallel", 1, {"model_devices": 2}),
            "vit, 1 x 2 sharded": case("model_parallel", 1, SHARING, model="vit"),
        },
    ),
}
QUICK = ("dense, 2", "dense, 2 x 2 sharded", "dense, 2 processes of 2", "dense, 1 x 2")
NAMES = [
    pytest.param(backend, name, marks=() if name in QUICK else pytest.mark.slow)
    for backend, parts in CASES.items()
    for name in itertools.chain(*parts)
]

D, M, K, CLASSES, DEVICES = 64, 128, 4, 10, 4
PATCHES = 6 * 4
SMALL = [
    *("model.input_shape=12,8,3", "model.config.patch_size=2", "fit.epochs=none", "fit.steps=50", "fit.batch_size=64"),
    *(f"model.config.hidden_dim={D}", f"model.config.num_heads={K}", f"model.config.mlp_dim={M}"),
]
PARALLEL = ["distribution.kind=model_parallel"]
PUBLISHED = ["model.config=none", "model.weights=Ti/16@augreg-i21k", "model.input_shape=none"]
# {name: (devices, layers, changes)}
PLANS = {
    "replicas": (DEVICES, 1, []),
    "parts": (DEVICES, 1, ["fit.accumulation_steps=4"]),
    "shared": (DEVICES, 1, [*PARALLEL, "distribution.model_devices=4"]),
    # With so few images, XLA would by default transfer activations instead.
    "sharded": (
        DEVICES,
        1,
        [
            *(*PARALLEL, "distribution.shard_weights=true", "fit.batch_size=8"),
            *("model.config.class_token=true", "model.config.pooling=token"),
        ],
    ),
    "odd heads of published weights": (DEVICES, 1, [*PARALLEL, "distribution.model_devices=4", *PUBLISHED]),
    "one": (1, 2, []),
    "rematerialized": (1, 2, ["fit.rematerialize=true"]),
    "frozen": (1, 2, ["model.freeze_up_to=encoder_block_0", "fit.precision=mixed_bfloat16", "optimizer.ema=0.99"]),
}
SLOW_PLANS = ("replicas", "shared")


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory, jax_variables):
    """Runs all programs. Returns the folder of their results and of what they printed."""
    folder = tmp_path_factory.mktemp("programs")
    has_slow = any(item.path == request.path and item.get_closest_marker("slow") for item in request.session.items)
    programs = {"jax": {}, "tensorflow": {}}
    for backend, cases in CASES.items():
        (folder / backend).mkdir()
        cases = [{n: fields for n, fields in part.items() if has_slow or n in QUICK} for part in cases]
        single = {n: fields for n, fields in SINGLE.items() if any(name.startswith(n) for name in cases[0])}
        in_one, *in_two = [json.dumps(part) for part in (cases[0] | single, *filter(None, cases[1:]))]
        programs[backend]["one"] = _program("curves_program", str(folder / backend), in_one)
        for number, part in enumerate(in_two):
            for i, environment in enumerate(pair(backend)):
                program = _program("curves_program", str(folder / backend), part, environment=environment)
                programs[backend][f"process {i} of pair {number}"] = program
    for name in programs:
        programs[name]["dictionaries"] = _program("dictionary_program", "dictionaries", *["pairs"] * has_slow)
    programs["tensorflow"]["two replicas"] = _program("two_replicas", "scaled_sgd", *["muon"] * has_slow)
    requests = {
        name: (devices, [*SMALL, f"model.config.num_layers={layers}", *changes])
        for name, (devices, layers, changes) in PLANS.items()
        if has_slow or name not in SLOW_PLANS
    }
    programs["jax"]["plans"] = _program("plans_program", json.dumps(requests))
    command = [sys.executable, "-m", "tests.training.forked_programs", str(folder), json.dumps(programs)]
    # XLA's optimizations would take most of the time and save almost none. They do not change plans.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | jax_variables
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    logs = [f"{path.name}\n{path.read_text()[-4000:]}" for path in folder.glob("*.log")]
    assert process.returncode == 0, "\n".join([process.stderr[-4000:], *logs])
    return folder


def _program(module, *arguments, environment=None):
    return {"module": f"tests.training.{module}", "arguments": arguments, "environment": environment or {}}


def pair(backend):
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


@pytest.fixture(scope="module")
def curves(folder):
    """Function that returns the results of a case."""
    return functools.cache(lambda backend, name: dict(np.load(folder / backend / f"{name}.npz")))


@pytest.fixture(scope="module")
def printed(folder):
    """Function that returns what a program printed last."""
    return lambda name: json.loads((folder / f"{name}.log").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def plans(printed):
    return printed("jax plans")


@pytest.mark.parametrize(("backend", "name"), NAMES)
def test_the_same_curve_on_any_devices(curves, backend, name):
    """The losses and metrics of 10 steps and 2 validations are equal, and so are all variables after them."""
    found, single = (curves(backend, each) for each in (name, name.split(",")[0]))
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
    ],
)
def test_weights_and_slots_lie_as_laid_out(curves, name, axes, count):
    """Results are right under any layout, so the shardings of JAX's arrays are compared."""
    shardings = _shardings(curves("jax", name))
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


def test_devices_that_share_batches_alone_have_whole_weights(curves):
    shardings = _shardings(curves("jax", "dense, 2 processes of 2"))
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


@pytest.mark.parametrize("optimizer", rest_slow(["scaled_sgd", "muon"]))
def test_steps_on_two_replicas_equal_those_on_one_device(printed, optimizer):
    """The optimizer scales the loss, clips, where replicas could differ, decays weights and averages them."""
    results = printed("tensorflow two replicas")[optimizer]
    assert results["weights"] < 1e-6
    assert results["averages"] < 1e-6
    assert results["change"] > 1e-3
    # Steps that overflow on the second replica alone are skipped.
    assert results["finite"]
    assert results["change in overflows"] == 0
    assert results["scales"] == ([1 / 8, 1 / 8] if optimizer == "scaled_sgd" else [])


@pytest.mark.parametrize("model", ["dictionaries", pytest.param("pairs", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_dictionaries_and_pairs_on_two_devices_equal_those_on_one(printed, name, model):
    results = printed(f"{name} dictionaries")[model]
    assert results["difference"] < 1e-6
    assert results["change"] > 1e-2


def tokens(name):
    return PATCHES + (name == "sharded")


def matrices(name):
    """The number of elements in weights with several dimensions."""
    return PLANS[name][1] * (4 * D * D + 2 * D * M) + 2 * 2 * 3 * D + tokens(name) * D + D * CLASSES


def vectors(name):
    return PLANS[name][1] * (4 * D + M + D + 4 * D) + D + 2 * D + CLASSES


def parameters(name):
    return matrices(name) + vectors(name)


def macs(name):
    t = tokens(name)
    return PLANS[name][1] * (t * (4 * D * D + 2 * D * M) + 2 * t * t * D) + PATCHES * 2 * 2 * 3 * D + D * CLASSES


def test_counts_and_whole_weights(plans):
    """AdamW has two numbers per weight and one step counter."""
    one = plans["one"]
    assert (one["parameters"], one["macs"], one["steps"], one["images"]) == (parameters("one"), macs("one"), 50, 1797)
    for name, devices in (("one", 1), ("parts", DEVICES)):
        memory, size = plans[name]["memory"], 4 * parameters(name)
        assert plans[name]["num_devices"] == devices
        assert memory["weights"] == memory["gradients"] == size
        assert 2 * size <= memory["optimizer"] <= 2 * size + 16


def test_frozen_weights_have_no_gradients(plans):
    """The moving average is a third number per trained weight. All are float32 in any computation type."""
    block = 4 * D * D + 2 * D * M + 4 * D + M + D + 4 * D
    trained = 4 * (block + 2 * D + D * CLASSES + CLASSES)  # The last block, the final norm and the head are trained.
    memory = plans["frozen"]["memory"]
    assert (memory["weights"], memory["gradients"]) == (4 * parameters("frozen"), trained)
    assert 3 * trained <= memory["optimizer"] <= 3 * trained + 16


def test_sharding_lowers_weights_by_its_factor(plans):
    memory = plans["sharded"]["memory"]
    # The class token is not sharded.
    assert memory["weights"] == memory["gradients"] == 4 * (matrices("sharded") / DEVICES + vectors("sharded") + D)


@pytest.mark.slow
def test_tensor_parallelism_shares_heads_and_hidden_width(plans):
    shared = 4 * D * D + 2 * D * M + 3 * D + M
    assert plans["shared"]["memory"]["weights"] == 4 * (shared / DEVICES + parameters("shared") - shared)
    assert plans["shared"]["num_replicas"] == 1


def test_the_step_is_given_weights_optimizer_and_batch(plans):
    """XLA's arguments agree with the sizes that follow from shapes and layouts."""
    for name in plans.keys() & {"one", "parts", "shared", "sharded"}:
        memory, replicas = plans[name]["memory"], plans[name]["num_replicas"]
        batch = 4 * (8 if name == "sharded" else 64) * (12 * 8 * 3 + CLASSES + 1) / replicas
        expected = memory["weights"] + memory["optimizer"] + batch
        assert expected == pytest.approx(memory["arguments"], abs=64), name


def test_flops_are_about_six_for_a_mac_and_image(plans):
    """6 x MACs excludes norms, activations and the optimizer. Images need no gradient, and XLA merges products."""
    for name in plans.keys() & {"one", "parts", "shared", "replicas"}:
        found = plans[name]
        assert found["expected_flops"] == 6 * macs(name) * 64 / found["num_devices"], name
        assert 0.95 < found["flops"] / found["expected_flops"] < 1.35, name
        assert found["total_flops"] == pytest.approx(found["flops"] * found["num_devices"] * 50), name


def test_rematerialization_pays_memory_with_a_second_forward_pass(plans):
    one, rematerialized = plans["one"], plans["rematerialized"]
    assert rematerialized["memory"]["temporaries"] < 0.75 * one["memory"]["temporaries"]
    assert 1.2 < rematerialized["flops"] / one["flops"] < 1.4  # The blocks take 8 instead of 6 FLOPs per MAC.


@pytest.mark.slow
def test_parts_lower_temporaries(plans):
    assert plans["parts"]["memory"]["temporaries"] < 0.6 * plans["replicas"]["memory"]["temporaries"]


BLOCK = PATCHES * (8 * D + 2 * M) + K * PATCHES * PATCHES
# {name of a plan: numbers that are kept for the backward pass}
ACTIVATIONS = {
    "one": 64 * 2 * BLOCK,
    "replicas": 16 * BLOCK,
    "parts": 4 * BLOCK,
    "shared": 64 * (4 * PATCHES * D + (BLOCK - 4 * PATCHES * D) / 4),
    "rematerialized": 64 * (2 * PATCHES * D + BLOCK),
    "frozen": 64 * 2 * BLOCK / 2,  # The activations are bfloat16.
}


def test_activations_by_formula(plans):
    for name in plans.keys() & ACTIVATIONS.keys():
        assert plans[name]["memory"]["activations"] == 4 * ACTIVATIONS[name], name


def test_replicas_add_up_their_gradients(plans):
    assert plans["one"]["collectives"] == {}
    [(kind, (_, size))] = plans["parts"]["collectives"].items()
    assert kind == "all-reduce"
    # The reduction happens once for each of the 4 chunks, not once per step. This is the cost of accumulation.
    gradients = 4 * parameters("parts")
    assert gradients <= size / 4 <= gradients + 64  # The margin is for the sums of losses and weights.


def test_sharded_weights_are_gathered(plans):
    """Once per step. The sums are those of gradients and losses. Of the activations, only the class token is sent."""
    sizes = {kind: size for kind, (_, size) in plans["sharded"]["collectives"].items()}
    assert sizes.pop("all-gather") == pytest.approx(4 * matrices("sharded"), rel=0.01)
    assert sizes.pop("all-reduce") == pytest.approx(4 * parameters("sharded"), rel=0.01)
    assert sum(sizes.values()) <= 4 * 8 * D


def test_refuses_what_cannot_be(plans):
    assert "num_heads must be a multiple of the 4" in plans["odd heads of published weights"]["error"]
