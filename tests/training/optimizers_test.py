"""The schedule against its closed form, a step against numpy."""

import keras
import numpy as np
import pytest

from training import recipes
from training.config import override
from training.optimizers import build_optimizer
from training.train import build_model


@pytest.fixture
def recipe():
    assignments = ["fit.epochs=10", "optimizer.learning_rate=0.5", "optimizer.weight_decay=0.1", "schedule.warmup=0.2"]
    return override(recipes.load("digits"), assignments)


def test_schedule_equals_its_closed_form(recipe):
    schedule = build_optimizer(recipe, build_model(recipe, 3), steps_per_epoch=10)._learning_rate
    warmup, total, peak = 20, 100, 0.5
    for step in (0, 10, 20, 40, 60, 99, 100):
        progress = np.clip((step - warmup) / (total - warmup), 0, 1)
        expected = peak / 2 * (1 + np.cos(np.pi * progress)) * min(1, step / warmup)
        np.testing.assert_allclose(schedule(step), expected, atol=1e-6)


def test_without_warmup_it_starts_at_the_peak(recipe):
    recipe = override(recipe, ["schedule.warmup=0"])
    schedule = build_optimizer(recipe, build_model(recipe, 3), steps_per_epoch=10)._learning_rate
    np.testing.assert_allclose(schedule(0), 0.5, atol=1e-6)


def test_only_kernels_decay_and_the_step_is_adamws(recipe):
    model = build_model(override(recipe, ["schedule.warmup=0", "optimizer.clip_norm=none"]), 3)
    optimizer = build_optimizer(override(recipe, ["schedule.warmup=0", "optimizer.clip_norm=none"]), model, 10)
    generator = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(generator.normal(size=weight.shape))
    before = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    # No gradient is near zero, where Adam's epsilon would count.
    gradients = [generator.uniform(0.5, 2, weight.shape).astype("float32") for weight in model.trainable_weights]
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], model.trainable_weights)
    for weight, old, gradient in zip(model.trainable_weights, before, gradients, strict=True):
        decay = 0.1 if weight.name == "kernel" else 0.0
        # The first step of Adam: both moments, corrected for their bias, are the gradient and its square.
        expected = old - 0.5 * (decay * old + np.sign(gradient))
        np.testing.assert_allclose(weight, expected, atol=2e-5, err_msg=weight.path)  # Corrections in float32.
    assert {weight.name for weight in model.trainable_weights} == {"kernel", "bias", "gamma", "beta", "embedding"}


def test_clipping_bounds_the_norm_of_all_gradients(recipe):
    model = build_model(recipe, 3)
    optimizer = build_optimizer(recipe, model, 10)
    gradients = [keras.ops.ones(weight.shape) for weight in model.trainable_weights]
    clipped = optimizer._clip_gradients(gradients)
    norm = np.sqrt(sum(float(keras.ops.sum(keras.ops.square(gradient))) for gradient in clipped))
    np.testing.assert_allclose(norm, 1.0, rtol=1e-5)
