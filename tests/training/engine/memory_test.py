"""What is said if the memory was not enough. `plan_test.py` checks the estimate of activations."""

import types

import pytest
import tensorflow as tf

import keras_vit
from tests.training.conftest import BRIEF
from training import recipes
from training.engine import train
from training.engine.memory import activations, is_out_of_memory, is_too_large, shortage_message
from training.errors import InputError
from training.recipe.assignments import override

ONE_DEVICE = types.SimpleNamespace(num_replicas=1)


@pytest.fixture(scope="module")
def model():
    recipe = override(recipes.load("digits"), BRIEF)
    return keras_vit.ViT(recipe.model.config, input_shape=(8, 8, 1), classes=10)


@pytest.mark.combination(
    "train with a batch that does not fit", "the error names fit.batch_size, the free memory and what would fit"
)
def test_a_shortage_is_explained(model):
    recipe = override(recipes.load("digits"), [*BRIEF, "fit.batch_size=100"])
    gradients = 4 * model.count_params()
    per_image = activations(recipe, model, ONE_DEVICE) / 100
    text = shortage_message(recipe, model, ONE_DEVICE, gradients + 30.5 * per_image)
    assert text == (
        "The memory is not enough for a training step with fit.batch_size=100. 0.0 GB were free before the first "
        "step. By the estimate of `plan`, at most 30 images fit. Start a new run with fit.batch_size=30 or "
        "fit.accumulation_steps=4 (the same batch in more parts) or fit.rematerialize=true (slower)."
    )
    # An estimate that is too high is not printed.
    too_high = shortage_message(recipe, model, ONE_DEVICE, gradients + 200 * per_image)
    assert "before the first step. Start a new run with fit.batch_size=50 or" in too_high
    resnet = keras_vit.ResNet18(weights=None, input_shape=(32, 32, 3), classes=2)
    assert shortage_message(recipe, resnet, ONE_DEVICE, None).endswith(
        "size=100. Start a new run with fit.batch_size=50 or fit.accumulation_steps=2 (the same batch in more parts)."
    )


def test_a_step_that_cannot_fit_is_refused_before_it_begins(model, tmp_path, monkeypatch):
    recipe = override(recipes.load("digits"), BRIEF)
    least = activations(recipe, model, ONE_DEVICE, with_attention=False)
    assert 0 < least < activations(recipe, model, ONE_DEVICE)
    assert [is_too_large(recipe, model, ONE_DEVICE, free) for free in (least - 1, least, None)] == [True, False, False]
    frozen = override(recipe, ["model.freeze_up_to=encoder_block_0"])
    assert not is_too_large(frozen, model, ONE_DEVICE, 1)
    assert activations(recipes.load("segment_folder"), model, ONE_DEVICE) is None  # Its encoder is frozen.
    monkeypatch.setattr(train, "free_memory", lambda: 1)
    with pytest.raises(InputError, match=r"The memory is not enough .*fit\.batch_size=.* Start a new run with"):
        train.train(recipe, tmp_path)


@pytest.mark.parametrize(
    ("size", "parts", "replicas", "remedies"),
    [
        (4, 4, 1, "fit.rematerialize=true"),
        (8, 2, 2, "fit.batch_size=4 or fit.accumulation_steps=4 (the same batch in more parts) or fit.rematerialize"),
        (6, 2, 1, "fit.batch_size=2 or fit.accumulation_steps=6 (the same batch in more parts) or fit.rematerialize"),
        (1, 1, 1, "fit.rematerialize=true"),
    ],
)
def test_remedies_are_settings_that_a_recipe_accepts(model, size, parts, replicas, remedies):
    recipe = override(recipes.load("digits"), [*BRIEF, f"fit.batch_size={size}", f"fit.accumulation_steps={parts}"])
    text = shortage_message(recipe, model, types.SimpleNamespace(num_replicas=replicas), None)
    assert f"Start a new run with {remedies}" in text


def test_errors_of_both_backends_are_recognised():
    class JaxRuntimeError(RuntimeError):
        pass

    shortages = (
        tf.errors.ResourceExhaustedError(None, None, "OOM"),
        MemoryError(),
        JaxRuntimeError("RESOURCE_EXHAUSTED: x"),
    )
    assert all(map(is_out_of_memory, shortages))
    full_disk = tf.errors.ResourceExhaustedError(None, None, "/dev/full; No space left on device")
    others = (
        full_disk,
        tf.errors.NotFoundError(None, None, "x"),
        JaxRuntimeError("INTERNAL"),
        ValueError("RESOURCE_EXHAUSTED"),
    )
    assert not any(map(is_out_of_memory, others))
