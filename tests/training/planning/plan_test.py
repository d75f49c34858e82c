"""The parts of `plan` that compile nothing. `on_jax_test.py` tests whole plans."""

import types

import pytest

import keras_vit
from training import recipes
from training.planning.plan import activations, count_collectives, with_devices
from training.planning.plan_report import ACCELERATORS, Memory, Plan
from training.recipe.assignments import override


@pytest.mark.slow
def test_activations_of_an_axial_model():
    """Its blocks take tokens and patches."""
    config = keras_vit.ViTConfig(4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20, pooling="avg", axial=True)
    model = keras_vit.ViT(config, input_shape=(8, 12, 3), classes=5)
    fit = types.SimpleNamespace(rematerialize=False, batch_size=4, accumulation_steps=1, precision="float32")
    recipe = types.SimpleNamespace(fit=fit, distribution=types.SimpleNamespace(model_devices=1))
    numbers = 2 * (6 * (8 * 12 + 2 * 20) + 3 * 6**2)
    assert activations(recipe, model, types.SimpleNamespace(num_replicas=1)) == 4 * 4 * numbers


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
    """36e12 FLOPs x 8 devices x 100 steps at 0.4 x 312e12 FLOPs per second."""
    assert _plan(0, 0).device_hours(ACCELERATORS[0]) == pytest.approx(8 * 100 * 36 / (0.4 * 312) / 3600)
