"""What `plan` says of a small model, against numbers worked out here by hand.

The plans are made in a process of their own: JAX splits a CPU into devices before it does anything else, or never.
"""

import json
import os
import subprocess
import sys
import types

import pytest

import keras_vit
from training import recipes
from training.assignments import override
from training.plan import activations, count_collectives, with_devices
from training.plan_report import ACCELERATORS, Memory, Plan

DEVICES = 4
D, M, K, DEPTH, T, CLASSES = 64, 128, 4, 2, 6 * 4, 10  # Without a class token.
SMALL = [
    "model.input_shape=12,8,3",
    "model.config.patch_size=2",
    f"model.config.num_layers={DEPTH}",
    f"model.config.hidden_dim={D}",
    f"model.config.num_heads={K}",
    f"model.config.mlp_dim={M}",
    "fit.epochs=none",
    "fit.steps=50",
    "fit.batch_size=64",
]
MATRICES = DEPTH * (4 * D * D + 2 * D * M) + 2 * 2 * 3 * D + T * D + D * CLASSES
VECTORS = DEPTH * (4 * D + M + D + 4 * D) + D + 2 * D + CLASSES
PARAMETERS = MATRICES + VECTORS
MACS = DEPTH * (T * (4 * D * D + 2 * D * M) + 2 * T * T * D) + T * 2 * 2 * 3 * D + D * CLASSES
PARALLEL = ["distribution.kind=model_parallel"]
WITH_CLASS_TOKEN = ["model.config.class_token=true", "model.config.pooling=token"]
PLANS = {
    "one": (1, []),
    "replicas": (DEVICES, []),
    "shared": (DEVICES, [*PARALLEL, "distribution.model_devices=4"]),
    "sharded": (DEVICES, [*PARALLEL, "distribution.shard_weights=true"]),
    # Where XLA, left to itself, prefers to send activations around.
    "sharded, few images": (
        DEVICES,
        [*PARALLEL, "distribution.shard_weights=true", "fit.batch_size=8", *WITH_CLASS_TOKEN],
    ),
    "rematerialized": (1, ["fit.rematerialize=true"]),
    "parts": (DEVICES, ["fit.accumulation_steps=4"]),
    "bfloat16": (1, ["fit.precision=mixed_bfloat16", "optimizer.ema=0.99"]),
    "frozen": (1, ["model.freeze_up_to=encoder_block_0"]),
    "odd batch": (DEVICES, ["fit.batch_size=62"]),
    "odd heads": (DEVICES, [*PARALLEL, "distribution.model_devices=4", "model.config.num_heads=2"]),
    "odd width": (
        DEVICES,
        [*PARALLEL, "distribution.shard_weights=true", "model.config.hidden_dim=66", "model.config.num_heads=3"],
    ),
    "float16": (1, ["fit.precision=mixed_float16"]),
}
_PROGRAM = """
import dataclasses, json, sys
import keras_vit
from training import recipes
from training.assignments import override
from training.errors import InputError
from training.plan import plan, with_devices

results = {}
for name, (devices, assignments) in json.loads(sys.argv[1]).items():
    try:
        recipe = with_devices(override(recipes.load("digits"), assignments), devices)
        found = plan(recipe, images=1797, classes=10)
        facts = {"text": str(found), "total_flops": found.total_flops, "expected_flops": found.expected_flops}
        fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        results[name] = facts | fields | {"recipe": None, "memory": dataclasses.asdict(found.memory)}
    except InputError as error:
        results[name] = {"error": str(error)}
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def plans():
    """{name: what was found, or the error}. Those of several devices come first: they decide how the CPU is split."""
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    requests = {name: (devices, [*SMALL, *changes]) for name, (devices, changes) in PLANS.items()}
    ordered = json.dumps(dict(sorted(requests.items(), key=lambda item: -item[1][0])))
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, ordered], capture_output=True, text=True, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_counts_parameters_and_steps(plans):
    one = plans["one"]
    assert (one["parameters"], one["macs"], one["steps"], one["images"]) == (PARAMETERS, MACS, 50, 1797)
    assert one["num_devices"] == 1
    assert plans["replicas"]["num_devices"] == DEVICES


@pytest.mark.parametrize("name", ["one", "replicas", "parts"])
def test_whole_weights_on_every_device(plans, name):
    """AdamW has two numbers for each, and counts its steps."""
    memory = plans[name]["memory"]
    assert memory["weights"] == memory["gradients"] == 4 * PARAMETERS
    assert 2 * 4 * PARAMETERS <= memory["optimizer"] <= 2 * 4 * PARAMETERS + 16


def test_the_moving_average_is_a_third_number(plans):
    """Weights, and all that is kept of them, are float32 whatever is computed in."""
    memory = plans["bfloat16"]["memory"]
    assert memory["weights"] == memory["gradients"] == 4 * PARAMETERS
    assert memory["optimizer"] - plans["one"]["memory"]["optimizer"] == 4 * PARAMETERS


def test_frozen_weights_have_no_gradients(plans):
    block = 4 * D * D + 2 * D * M + 4 * D + M + D + 4 * D
    trained = block + 2 * D + D * CLASSES + CLASSES  # The last block, the norm and the head.
    memory = plans["frozen"]["memory"]
    assert (memory["weights"], memory["gradients"]) == (4 * PARAMETERS, 4 * trained)
    assert 2 * 4 * trained <= memory["optimizer"] <= 2 * 4 * trained + 16


def test_sharding_lowers_weights_by_its_factor(plans):
    assert plans["sharded"]["memory"]["weights"] == 4 * (MATRICES / DEVICES + VECTORS)
    assert plans["sharded"]["memory"]["gradients"] == 4 * (MATRICES / DEVICES + VECTORS)


def test_tensor_parallelism_shares_heads_and_hidden_width(plans):
    shared = DEPTH * (4 * D * D + 2 * D * M + 3 * D + M)
    assert plans["shared"]["memory"]["weights"] == 4 * (shared / DEVICES + PARAMETERS - shared)
    assert plans["shared"]["num_replicas"] == 1


@pytest.mark.parametrize("name", ["one", "replicas", "shared", "sharded"])
def test_the_step_is_given_weights_optimizer_and_batch(plans, name):
    """What XLA is given agrees with what is counted from shapes and layouts."""
    memory, replicas = plans[name]["memory"], plans[name]["num_replicas"]
    batch = 4 * 64 * (12 * 8 * 3 + CLASSES + 1) / replicas
    assert memory["weights"] + memory["optimizer"] + batch == pytest.approx(memory["arguments"], abs=64)


# Norms, activations and the optimizer are beyond 6 x MACs; the images need no gradient, and XLA merges products.
@pytest.mark.parametrize("name", ["one", "replicas", "shared", "sharded", "parts", "bfloat16"])
def test_flops_are_about_six_for_a_mac_and_image(plans, name):
    found = plans[name]
    assert found["expected_flops"] == 6 * MACS * 64 / found["num_devices"]
    assert 0.95 < found["flops"] / found["expected_flops"] < 1.35
    assert found["total_flops"] == pytest.approx(found["flops"] * found["num_devices"] * 50)


def test_rematerialization_pays_memory_with_a_second_forward_pass(plans):
    one, rematerialized = plans["one"], plans["rematerialized"]
    assert rematerialized["memory"]["temporaries"] < 0.75 * one["memory"]["temporaries"]
    assert 1.2 < rematerialized["flops"] / one["flops"] < 1.4  # 8 instead of 6 for a MAC, in the blocks.


def test_parts_lower_temporaries(plans):
    assert plans["parts"]["memory"]["temporaries"] < 0.6 * plans["replicas"]["memory"]["temporaries"]


BLOCK = T * (8 * D + 2 * M) + K * T * T


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("one", 64 * DEPTH * BLOCK),
        ("replicas", 16 * DEPTH * BLOCK),
        ("parts", 4 * DEPTH * BLOCK),
        ("shared", 64 * DEPTH * (4 * T * D + (BLOCK - 4 * T * D) / 4)),
        ("rematerialized", 64 * (DEPTH * T * D + BLOCK)),
        ("bfloat16", 64 * DEPTH * BLOCK / 2),
    ],
)
def test_activations_by_formula(plans, name, numbers):
    assert plans[name]["memory"]["activations"] == 4 * numbers


def test_activations_of_an_axial_model():
    """Whose blocks take tokens and patches."""
    config = keras_vit.ViTConfig(4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20, pooling="avg", axial=True)
    model = keras_vit.ViT(config, input_shape=(8, 12, 3), classes=5)
    fit = types.SimpleNamespace(rematerialize=False, batch_size=4, accumulation_steps=1, precision="float32")
    recipe = types.SimpleNamespace(fit=fit, distribution=types.SimpleNamespace(model_devices=1))
    numbers = 2 * (6 * (8 * 12 + 2 * 20) + 3 * 6**2)
    assert activations(recipe, model, types.SimpleNamespace(num_replicas=1)) == 4 * 4 * numbers


def test_replicas_add_up_their_gradients(plans):
    assert plans["one"]["collectives"] == {}
    [(kind, (_, size))] = plans["replicas"]["collectives"].items()
    assert kind == "all-reduce"
    assert 4 * PARAMETERS <= size <= 4 * PARAMETERS + 64  # And the sums of losses and weights.
    # Not once a step but once a part: the price of accumulation.
    assert plans["parts"]["collectives"]["all-reduce"][1] == pytest.approx(4 * size, rel=1e-3)


@pytest.mark.parametrize("name", ["sharded", "sharded, few images"])
def test_sharded_weights_are_gathered(plans, name):
    """Once a step; the sums are those of gradients and losses. Of activations no more than the class token is sent."""
    sizes = {kind: size for kind, (_, size) in plans[name]["collectives"].items()}
    assert sizes.pop("all-gather") == pytest.approx(4 * MATRICES, rel=0.01)
    assert sizes.pop("all-reduce") == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert sum(sizes.values()) <= 4 * 8 * D


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd batch", "fit.batch_size must be a multiple of 4"),
        ("odd heads", "num_heads must be a multiple of the 4"),
        ("odd width", "hidden_dim must be a multiple of the 4"),
        ("float16", "choose mixed_bfloat16"),
    ],
)
def test_refuses_what_cannot_be(plans, name, message):
    assert message in plans[name]["error"]


def test_collectives_in_the_loop_over_parts_count_for_each():
    program = """
%body (x: f32[3]) -> f32[3] {
  %a = f32[3]{0} all-reduce(%x), channel_id=1
}
ENTRY %main (x: f32[3]) -> f32[3] {
  %b = (f32[2,5]{1,0}, /*index=1*/bf16[7]{0}, f32[]) all-reduce(%x, %y, %z), channel_id=2
  %c = s32[4]{0} all-gather-start(%x), channel_id=3
  %d = f32[3]{0} get-tuple-element(%all-reduce.5), index=0
}
"""
    size = 4 * 10 + 2 * 7 + 4
    assert count_collectives(program, 6) == {"all-reduce": (7, 6 * 12 + size), "all-gather": (1, 16)}


@pytest.mark.parametrize(
    ("changes", "devices", "kind", "planned"),
    [
        ([], 1, "none", None),
        ([], 8, "data_parallel", 8),
        (["distribution.kind=mirrored", "distribution.devices=2"], 8, "data_parallel", 8),
        (["distribution.kind=multi_worker"], 1, "none", None),
        (["distribution.kind=model_parallel"], 8, "model_parallel", 8),
    ],
)
def test_devices_decide_the_distribution(changes, devices, kind, planned):
    recipe = with_devices(override(recipes.load("digits"), changes), devices)
    assert (recipe.distribution.kind, recipe.distribution.devices) == (kind, planned)


def _plan(expected, compiled):
    recipe = override(recipes.load("digits"), ["fit.batch_size=64"])
    memory = Memory(0, 0, 0, expected, 0, compiled)
    return Plan(recipe, 8, 8, 1000, "given", 100, 10, 10, memory, 36e12, {"all-reduce": (2, 40)})


@pytest.mark.parametrize(
    ("expected", "compiled", "fits"), [(39e9, 39e9, "yes"), (39e9, 41e9, "perhaps"), (41e9, 42e9, "no")]
)
def test_fits_by_both_measures(expected, compiled, fits):
    assert _plan(expected, compiled).fits(ACCELERATORS[0]) == fits


def test_hours_at_forty_percent_of_the_peak():
    """36e12 FLOPs x 8 devices x 100 steps at 0.4 x 312e12 a second."""
    assert _plan(0, 0).device_hours(ACCELERATORS[0]) == pytest.approx(8 * 100 * 36 / (0.4 * 312) / 3600)


def test_the_command_needs_no_device_and_no_environment():
    command = [sys.executable, "-m", "training", "plan", "digits", "devices=2", "--images=1600", "--classes=10"]
    environment = {name: text for name, text in os.environ.items() if name != "KERAS_BACKEND"}
    process = subprocess.run(
        [*command, "model.config.num_layers=1"], capture_output=True, text=True, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "2 devices (data_parallel)" in process.stdout
    assert "1,600 training images (given)" in process.stdout
    assert "all-reduce" in process.stdout
