"""TensorFlow traces the first step of `fit` and `evaluate` once, and its graph does not grow."""

import keras
import numpy as np
import pytest

from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import TENSORFLOW, random_inputs, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="only Keras on TensorFlow creates variables in the step")


def _compiled(model, **options):
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # AdamW would divide by the gradient of `key/bias`, which is zero up to rounding.
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=metrics, **options)
    return model


def _count_calls(model, name):
    calls, step = [], getattr(model, name)
    setattr(model, name, lambda *arguments: calls.append(name) or step(*arguments))
    return calls


@pytest.fixture(scope="module")
def model():
    return randomize(tiny_model(num_layers=1))


@pytest.mark.slow
def test_training_is_traced_once(model):
    labels, [images] = np.array([0, 3, 1]), random_inputs(SHAPE, batch=3)
    start, results = model.get_weights(), []
    for each in (model, keras.Model(model.inputs[0], model.outputs[0])):
        each.set_weights(start)
        _compiled(each, run_eagerly=each is not model)
        calls = _count_calls(each, "train_step")
        results.append([each.train_on_batch(images, labels) for _ in range(2)])
        assert len(calls) == (1 if each is model else 2)
        results[-1] += [variable.numpy() for variable in (*each.variables, *each.optimizer.variables)]
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_evaluation_is_traced_once(model):
    calls, [images] = _count_calls(_compiled(model), "test_step"), random_inputs(SHAPE, batch=3)
    results = [model.evaluate(images, np.array([0, 3, 1]), verbose=0) for _ in range(2)]
    assert len(calls) == 1
    assert results[0] == results[1]


def _num_operations(num_layers):
    import tensorflow as tf

    model = tiny_model(num_layers=num_layers)

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE))])
    def gradients(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        return tape.gradient(loss, model.trainable_variables)

    return len(gradients.get_concrete_function().graph.get_operations())


@pytest.mark.slow
def test_the_graph_of_a_block_stays_small():
    """The time to the first step is proportional to the number of operations (docs/performance/first_step.md)."""
    assert _num_operations(2) - _num_operations(1) <= 446
