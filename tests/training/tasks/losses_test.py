"""Losses equal their definitions in NumPy with float64."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tests.test_case import assert_close
from training import recipes
from training.errors import InputError
from training.recipe.assignments import override
from training.tasks.losses import Objective, build_loss, distillation_loss

CLASSES = 5


def make_recipe(*assignments):
    return override(recipes.load("digits"), assignments)


@pytest.fixture
def batch():
    """Labels of mixed images, logits that include large values, and a teacher's logits."""
    generator = np.random.default_rng(0)
    labels = generator.dirichlet(np.ones(CLASSES), 3)
    logits = generator.normal(size=(3, CLASSES))
    logits[1] *= 30
    return labels, logits, 2 * generator.normal(size=(3, CLASSES))


def softmax(logits):
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(-1, keepdims=True)


def softmax_cross_entropy(labels, logits):
    return -(labels * np.log(softmax(logits))).sum(-1)


def sigmoid_cross_entropy(labels, logits):
    return (labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(("name", "expected"), [("softmax", softmax_cross_entropy), ("sigmoid", sigmoid_cross_entropy)])
def test_losses_equal_their_definitions(batch, name, expected, smoothing, policy):
    labels, logits, _ = batch
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        loss = build_loss(make_recipe(f"fit.loss={name}", f"fit.label_smoothing={smoothing}"))
    finally:
        keras.config.set_dtype_policy(before)
    smoothed = (1 - smoothing) * labels + smoothing / CLASSES
    for candidate in (loss, keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))):
        result = candidate(labels, logits)
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
        assert_close(result, expected(smoothed, logits))


def test_half_precision_logits_are_computed_with_in_float32(batch):
    for name in ("softmax", "sigmoid"):
        labels, logits, _ = batch
        recipe = make_recipe(f"fit.loss={name}")
        halves = ops.cast(logits, "bfloat16")
        result = build_loss(recipe)(labels, halves)
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
        assert_close(result, build_loss(recipe)(labels, ops.cast(halves, "float32")))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_is_cross_entropy_with_the_softened_teacher(batch, temperature):
    _, logits, teacher = batch
    result = distillation_loss(logits.astype("float32"), teacher.astype("float32"), temperature)
    targets = softmax(teacher / temperature)
    assert_close(result, temperature**2 * softmax_cross_entropy(targets, logits / temperature))
    entropy = -(targets * np.log(targets)).sum(-1)
    assert_close(distillation_loss(teacher.astype("float32"), teacher, temperature), temperature**2 * entropy)


def test_with_a_hot_teacher_gradients_do_not_vanish():
    """At high temperatures, the loss is half the mean squared difference of centred logits (arXiv 1503.02531, 2.1)."""
    generator = np.random.default_rng(1)
    student, teacher = (x - x.mean(-1, keepdims=True) for x in generator.normal(size=(2, 4, CLASSES)))
    hot = 300.0
    divergence = distillation_loss(student, teacher, hot) - distillation_loss(teacher, teacher, hot)
    # Both losses are near T^2 log(classes), where float32 has seven digits.
    assert_close(divergence, ((student - teacher) ** 2).mean(-1) / 2, 0.05)


def test_the_objective_weighs_teacher_and_labels(batch):
    labels, logits, teacher = (array.astype("float32") for array in batch)
    distillation = ["distillation.teacher=teacher", "distillation.weight=0.8", "distillation.temperature=2"]
    objective = Objective(make_recipe(*distillation, "fit.label_smoothing=0.1"))
    taught = 4 * softmax_cross_entropy(softmax(batch[2] / 2), batch[1] / 2)
    labelled = softmax_cross_entropy(0.9 * batch[0] + 0.1 / CLASSES, batch[1])
    assert_close(objective(labels, logits, teacher), 0.8 * taught + 0.2 * labelled)
    assert objective.has_teacher


def test_without_a_teacher_it_is_the_labels_loss(batch):
    for name in ("softmax", "sigmoid"):
        labels, logits, _ = batch
        recipe = make_recipe(f"fit.loss={name}")
        objective = Objective(recipe)
        assert not objective.has_teacher
        np.testing.assert_array_equal(objective(labels, logits), build_loss(recipe)(labels, logits))


@pytest.mark.parametrize(("assignments", "given"), [(["distillation.teacher=teacher"], False), ([], True)])
def test_a_teacher_is_given_exactly_when_there_is_one(batch, assignments, given):
    with pytest.raises(ValueError, match=r"teacher_logits must be given if and only if distillation\.teacher is set"):
        Objective(make_recipe(*assignments))(*batch[: 2 + given])


def test_a_teacher_needs_a_softmax():
    with pytest.raises(InputError, match=r"distillation\.teacher needs fit\.loss=softmax.*Received: fit\.loss=sigmoid"):
        Objective(make_recipe("distillation.teacher=teacher", "fit.loss=sigmoid"))
