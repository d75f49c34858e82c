"""Tests that need Keras on JAX: plans of a small model against numbers derived by hand, and KerasCV's layers."""

import json
import os
import subprocess
import sys

import pytest

from tests.training.on_jax import DEVICES

D, M, K, CLASSES = 64, 128, 4, 10
PATCHES = 6 * 4
SMALL = [
    "model.input_shape=12,8,3",
    "model.config.patch_size=2",
    f"model.config.hidden_dim={D}",
    f"model.config.num_heads={K}",
    f"model.config.mlp_dim={M}",
    "fit.epochs=none",
    "fit.steps=50",
    "fit.batch_size=64",
]
PARALLEL = ["distribution.kind=model_parallel"]
PUBLISHED = ["model.weights=Ti/16@augreg-i21k", "model.input_shape=none"]
# {name: (devices, layers, changes)}
PLANS = {
    "one": (1, 2, []),
    "rematerialized": (1, 2, ["fit.rematerialize=true"]),
    "frozen": (
        1,
        2,
        ["model.freeze_up_to=encoder_block_0", "fit.precision=mixed_bfloat16", "optimizer.ema=0.99"],
    ),
    "replicas": (DEVICES, 1, []),
    "parts": (DEVICES, 1, ["fit.accumulation_steps=4"]),
    "shared": (DEVICES, 1, [*PARALLEL, "distribution.model_devices=4"]),
    # With so few images, XLA would by default transfer activations instead.
    "sharded": (
        DEVICES,
        1,
        [
            *PARALLEL,
            "distribution.shard_weights=true",
            "fit.batch_size=8",
            "model.config.class_token=true",
            "model.config.pooling=token",
        ],
    ),
    "odd batch": (DEVICES, 1, ["fit.batch_size=62"]),
    "odd heads": (DEVICES, 1, [*PARALLEL, "distribution.model_devices=4", "model.config.num_heads=2"]),
    "odd heads of published weights": (
        DEVICES,
        1,
        [*PARALLEL, "distribution.model_devices=4", "model.config=none", *PUBLISHED],
    ),
    "odd width": (
        DEVICES,
        1,
        [*PARALLEL, "distribution.shard_weights=true", "model.config.hidden_dim=66", "model.config.num_heads=3"],
    ),
    "float16": (1, 1, ["fit.precision=mixed_float16"]),
}


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


@pytest.fixture(scope="module")
def on_jax(jax_variables):
    """The results of the program. Plans for several devices come first, because they decide how the CPU is split."""
    requests = {
        name: (devices, [*SMALL, f"model.config.num_layers={layers}", *changes])
        for name, (devices, layers, changes) in sorted(PLANS.items(), key=lambda item: -item[1][0])
    }
    environment = {name: text for name, text in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-m", "tests.training.on_jax", json.dumps(requests)]
    # These variables change XLA's code generation, but not its plans.
    process = subprocess.run(command, capture_output=True, text=True, env=environment | jax_variables, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plans(on_jax):
    return on_jax["plans"]


def test_counts_parameters_and_steps(plans):
    one = plans["one"]
    assert (one["parameters"], one["macs"], one["steps"], one["images"]) == (parameters("one"), macs("one"), 50, 1797)
    assert one["num_devices"] == 1
    assert plans["replicas"]["num_devices"] == DEVICES


@pytest.mark.parametrize("name", ["one", "replicas", "parts"])
def test_whole_weights_on_every_device(plans, name):
    """AdamW has two numbers per weight and one step counter."""
    memory, size = plans[name]["memory"], 4 * parameters(name)
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


def test_tensor_parallelism_shares_heads_and_hidden_width(plans):
    shared = 4 * D * D + 2 * D * M + 3 * D + M
    assert plans["shared"]["memory"]["weights"] == 4 * (shared / DEVICES + parameters("shared") - shared)
    assert plans["shared"]["num_replicas"] == 1


@pytest.mark.parametrize("name", ["one", "replicas", "shared", "sharded"])
def test_the_step_is_given_weights_optimizer_and_batch(plans, name):
    """XLA's arguments agree with the sizes that follow from shapes and layouts."""
    memory, replicas = plans[name]["memory"], plans[name]["num_replicas"]
    batch = 4 * (8 if name == "sharded" else 64) * (12 * 8 * 3 + CLASSES + 1) / replicas
    assert memory["weights"] + memory["optimizer"] + batch == pytest.approx(memory["arguments"], abs=64)


# 6 x MACs excludes norms, activations and the optimizer. Images need no gradient, and XLA merges products.
@pytest.mark.parametrize("name", ["one", "replicas", "shared", "parts"])
def test_flops_are_about_six_for_a_mac_and_image(plans, name):
    found = plans[name]
    assert found["expected_flops"] == 6 * macs(name) * 64 / found["num_devices"]
    assert 0.95 < found["flops"] / found["expected_flops"] < 1.35
    assert found["total_flops"] == pytest.approx(found["flops"] * found["num_devices"] * 50)


def test_rematerialization_pays_memory_with_a_second_forward_pass(plans):
    one, rematerialized = plans["one"], plans["rematerialized"]
    assert rematerialized["memory"]["temporaries"] < 0.75 * one["memory"]["temporaries"]
    assert 1.2 < rematerialized["flops"] / one["flops"] < 1.4  # The blocks take 8 instead of 6 FLOPs per MAC.


def test_parts_lower_temporaries(plans):
    assert plans["parts"]["memory"]["temporaries"] < 0.6 * plans["replicas"]["memory"]["temporaries"]


BLOCK = PATCHES * (8 * D + 2 * M) + K * PATCHES * PATCHES


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("one", 64 * 2 * BLOCK),
        ("replicas", 16 * BLOCK),
        ("parts", 4 * BLOCK),
        ("shared", 64 * (4 * PATCHES * D + (BLOCK - 4 * PATCHES * D) / 4)),
        ("rematerialized", 64 * (2 * PATCHES * D + BLOCK)),
        ("frozen", 64 * 2 * BLOCK / 2),  # The activations are bfloat16.
    ],
)
def test_activations_by_formula(plans, name, numbers):
    assert plans[name]["memory"]["activations"] == 4 * numbers


def test_replicas_add_up_their_gradients(plans):
    assert plans["one"]["collectives"] == {}
    [(kind, (_, size))] = plans["replicas"]["collectives"].items()
    assert kind == "all-reduce"
    gradients = 4 * parameters("replicas")
    assert gradients <= size <= gradients + 64  # The margin is for the sums of losses and weights.
    # The reduction happens once per chunk, not once per step. This is the cost of accumulation.
    assert plans["parts"]["collectives"]["all-reduce"][1] == pytest.approx(4 * size, rel=1e-3)


def test_sharded_weights_are_gathered(plans):
    """Once per step. The sums are those of gradients and losses. Of the activations, only the class token is sent."""
    sizes = {kind: size for kind, (_, size) in plans["sharded"]["collectives"].items()}
    assert sizes.pop("all-gather") == pytest.approx(4 * matrices("sharded"), rel=0.01)
    assert sizes.pop("all-reduce") == pytest.approx(4 * parameters("sharded"), rel=0.01)
    assert sum(sizes.values()) <= 4 * 8 * D


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd batch", "fit.batch_size must be a multiple of 4"),
        ("odd heads", "num_heads must be a multiple of the 4"),
        ("odd heads of published weights", "num_heads must be a multiple of the 4"),
        ("odd width", "hidden_dim must be a multiple of the 4"),
        ("float16", "Choose mixed_bfloat16"),
    ],
)
def test_refuses_what_cannot_be(plans, name, message):
    assert message in plans[name]["error"]


def test_the_command_needs_no_device_and_no_environment(on_jax):
    status, printed = on_jax["command"]
    assert not status
    assert f"{DEVICES} devices (data_parallel)" in printed
    assert "1,600 training images (given)" in printed
    assert "all-reduce" in printed


def test_keras_cv_works_where_keras_runs_on_jax(on_jax):
    found = on_jax["keras_cv"]
    assert found["backend"] == "jax"
    assert found["changed"] == 5
    assert any(found["mixed"][:3])
    assert not any(found["mixed"][3:])  # Padding is not mixed.
