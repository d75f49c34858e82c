"""The parts of `plan` that compile nothing. `engine/distribution_test.py` tests whole plans."""

import os
import types

import pytest

import keras_vit
from training import recipes
from training.__main__ import main
from training.engine.memory import activations
from training.planning import plan as module
from training.planning.plan import count_collectives, with_devices
from training.planning.plan_report import ACCELERATORS, Memory, Plan
from training.recipe.assignments import override


def test_activations_of_an_axial_model():
    """Its blocks take tokens and patches."""
    config = keras_vit.ViTConfig(4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20, pooling="avg", axial=True)
    model = keras_vit.ViT(config, input_shape=(8, 12, 3), classes=5)
    fit = types.SimpleNamespace(rematerialize=False, batch_size=4, accumulation_steps=1, precision="float32")
    recipe = types.SimpleNamespace(fit=fit, distribution=types.SimpleNamespace(model_devices=1))
    recipe.model = types.SimpleNamespace(has_frozen_encoder=False)
    for recipe.distribution.model_devices in (1, 3):
        shared = (6 * (4 * 12 + 2 * 20) + 3 * 6**2) / recipe.distribution.model_devices
        expected = 4 * 4 * 2 * (4 * 6 * 12 + shared)
        assert activations(recipe, model, types.SimpleNamespace(num_replicas=1)) == expected


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


def test_devices_decide_the_distribution():
    for changes, devices, kind, planned in (
        ([], 1, "none", None),
        ([], 8, "data_parallel", 8),
        (["distribution.kind=mirrored", "distribution.devices=2"], 8, "data_parallel", 8),
        (["distribution.kind=multi_worker"], 1, "none", None),
        (["distribution.kind=model_parallel"], 8, "model_parallel", 8),
    ):
        recipe = with_devices(override(recipes.load("digits"), changes), devices)
        assert (recipe.distribution.kind, recipe.distribution.devices) == (kind, planned), (changes, devices)


def test_what_is_given_is_completed_from_known_data_sets():
    dataset, origin = module._dataset(recipes.load("digits"), 1600, None)
    assert (len(dataset.class_names), dataset.splits["train"].size, origin) == (10, 1600, "given")
    dataset, origin = module._dataset(recipes.load("pretrain_imagenet_b16"), None, 1000)  # It holds out 1 %.
    assert dataset.splits["train"].size == 1_281_167 - 12_812
    assert origin[:33] == "assumed from the 1,281,167 images"


def _plan(expected, compiled):
    recipe = override(recipes.load("digits"), ["fit.batch_size=64"])
    memory = Memory(0, 0, 0, expected, 0, compiled)
    return Plan(recipe, 8, 4, 1000, "given", 100, 12345, int(5e11), memory, 36e12, {"all-reduce": (2, 4e7)})


def test_fits_by_both_measures():
    for expected, compiled, fits in ((39e9, 39e9, "yes"), (39e9, 41e9, "perhaps"), (41e9, 42e9, "no")):
        assert _plan(expected, compiled).fits(ACCELERATORS[0]) == fits


def test_hours_at_forty_percent_of_the_peak():
    """36e12 FLOPs x 8 devices x 100 steps at 0.4 x 312e12 FLOPs per second."""
    assert _plan(0, 0).device_hours(ACCELERATORS[0]) == pytest.approx(8 * 100 * 36 / (0.4 * 312) / 3600)


def test_the_text_names_all_numbers():
    text = str(_plan(39e9, 41e9))
    for expected in (
        "digits: 12,345 parameters, 500.000 GMACs per image, float32\n",
        "8 devices, 4 copies of the model: 64 images per step, 16 per copy\n",
        "1,000 training images (given), 100 steps\n",
        f"  {'activations of the encoder, by formula':<40}   39.000\n  {'total':<40}   39.000\n",
        f"  {'XLA for CPUs: total':<40}   41.000\n",
        "Each device in a step: 36.000 TFLOPs, 1.50 x (6 x MACs x images)\n",
        "  all-reduce: 2, with results of 0.040 GB\nThe whole run: 0.0288 exaFLOPs\n",
        f"{'A100 40 GB':<12}{312:>9}{40:>6}  {'perhaps':<8}{'0.1':>14}{'0.0':>10}\n",
    ):
        assert expected in text, text


def test_the_command_needs_no_device_and_no_environment(monkeypatch, capsys):
    def plan(recipe, images, classes):
        return f"{recipe.distribution.devices} {recipe.distribution.kind} {recipe.fit.epochs} {images} {classes}"

    monkeypatch.setattr(module, "plan", plan)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert not main(["plan", "digits", "devices=4", "--images=1600", "--classes=7", "fit.epochs=3"])
    assert capsys.readouterr().out == "4 data_parallel 3 1600 7\n"
    assert (os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"]) == ("jax", "cpu")
