"""A training step equals the equations of a linear classifier (N images, F features, C classes)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.test_case import rest_slow
from training.engine.step import TrainedModel

pytestmark = pytest.mark.each_backend
SHAPE, NUM_CLASSES, LEARNING_RATE = (2, 3, 1), 4, 0.5
IS_JAX = keras.backend.backend() == "jax"


def cross_entropy(labels, logits, teacher_logits=None):
    """If there is a teacher, half of the loss is the squared distance between both models' logits."""
    losses = keras.losses.categorical_crossentropy(labels, logits, from_logits=True)
    if teacher_logits is None:
        return losses
    return 0.5 * losses + 0.5 * keras.ops.mean((logits - teacher_logits) ** 2, axis=-1)


def classifier(dropout=0.0):
    images = keras.Input(SHAPE)
    features = keras.layers.Dropout(dropout)(keras.layers.Flatten()(images))
    return keras.Model(images, keras.layers.Dense(NUM_CLASSES, bias_initializer="normal")(features))


def trained(model, optimizer=None, **options):
    result = TrainedModel(model.inputs[0], model.outputs[0], cross_entropy, **options)
    result.compile(optimizer or keras.optimizers.SGD(LEARNING_RATE))
    return result


def batch(size, weights, seed=0):
    """Images, mixed labels and weights of the images."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(size, *SHAPE)).astype("float32")
    labels = random.dirichlet(np.ones(NUM_CLASSES), size).astype("float32")
    return images, labels, np.asarray(weights, "float32")


def dataset(*batches):
    return tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=tuple(tf.TensorSpec((None, *part.shape[1:])) for part in batches[0])
    )


def losses_and_gradients(images, labels, weights, kernel, bias, scale=1.0):
    """The loss of each image, the gradient of their weighted mean with respect to the logits, and the logits."""
    logits = images.reshape(len(images), -1).astype("float64") @ kernel + bias  # (N, C)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    gradients = scale * (np.exp(log_probabilities) - labels) * (weights / weights.sum())[:, None]
    return -(labels * log_probabilities).sum(-1), gradients, logits


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_step_follows_the_weighted_mean(accumulation_steps):
    """With two chunks, the loss is scaled, XLA compiles the step, and one chunk contains only padding on TensorFlow."""
    model = classifier()
    kernel, bias = model.get_weights()
    images, labels, weights = batch(6, [1, 0.3, 2, 0, 0, 0])
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(LEARNING_RATE), initial_scale=8.0)
    has_chunks = accumulation_steps > 1
    whole = trained(model, scaled if has_chunks else None, accumulation_steps=accumulation_steps)
    whole.jit_compile = has_chunks
    logs = whole.fit(dataset((images, labels, weights)), verbose=0).history
    losses, gradients, logits = losses_and_gradients(images, labels, weights, kernel, bias)
    correct = logits.argmax(-1) == labels.argmax(-1)
    new_kernel, new_bias = model.get_weights()
    np.testing.assert_allclose(new_kernel, kernel - LEARNING_RATE * images.reshape(6, -1).T @ gradients, atol=1e-6)
    np.testing.assert_allclose(new_bias, bias - LEARNING_RATE * gradients.sum(0), atol=1e-6)
    assert logs["loss"] == [pytest.approx(np.average(losses, weights=weights), rel=1e-5)]
    assert logs["accuracy"] == [pytest.approx(np.average(correct, weights=weights), rel=1e-5)]


def two_inputs():
    """A model of images and numbers with two outputs, (N, C) and (N, 2)."""
    inputs = {"images": keras.Input(SHAPE), "numbers": keras.Input((3,))}
    features = keras.layers.Concatenate()([keras.layers.Flatten()(inputs["images"]), inputs["numbers"]])
    outputs = {
        name: keras.layers.Dense(size, name=name)(features) for name, size in (("class", NUM_CLASSES), ("sizes", 2))
    }
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("accumulation_steps", rest_slow([3, 1]))
def test_inputs_and_outputs_can_be_dictionaries(accumulation_steps):
    """The step equals that of a Keras model with two losses."""

    def objective(labels, outputs):
        squares = keras.ops.mean((labels["sizes"] - outputs["sizes"]) ** 2, axis=-1)
        return cross_entropy(labels["class"], outputs["class"]) + 2 * squares

    class Error(keras.metrics.Mean):
        def update_state(self, labels, outputs, sample_weight=None):
            super().update_state(keras.ops.abs(labels["sizes"] - outputs["sizes"])[:, 0], sample_weight)

    model, same = two_inputs(), two_inputs()
    same.set_weights(model.get_weights())
    images, classes, weights = batch(6, [1, 0.3, 2, 0.5, 1, 1])
    random = np.random.default_rng(1)
    numbers, sizes = (random.normal(size=(6, size)).astype("float32") for size in (3, 2))
    parts = {"images": images, "numbers": numbers}, {"class": classes, "sizes": sizes}
    error = np.average(np.abs(sizes - keras.ops.convert_to_numpy(model(parts[0])["sizes"]))[:, 0], weights=weights)
    learner = TrainedModel(
        model.input, model.output, objective, accumulation_steps=accumulation_steps, metric=Error(name="error")
    )
    learner.compile(keras.optimizers.SGD(LEARNING_RATE))
    logs = learner.fit(tf.data.Dataset.from_tensors((*parts, weights)), verbose=0).history
    losses = {"class": keras.losses.CategoricalCrossentropy(from_logits=True), "sizes": keras.losses.MeanSquaredError()}
    same.compile(keras.optimizers.SGD(LEARNING_RATE), losses, loss_weights={"class": 1, "sizes": 2})
    scaled = weights * 6 / weights.sum()  # Keras divides by the number of images.
    same.fit(*parts, sample_weight={"class": scaled, "sizes": scaled}, batch_size=6, verbose=0)
    for ours, theirs in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert logs["error"] == [pytest.approx(error, rel=1e-5)]


@pytest.mark.slow
def test_metrics_are_over_all_batches_of_an_epoch():
    model = classifier(dropout=0.9)  # Dropout has no effect in evaluation.
    parts = [batch(6, [1, 2, 3, 4, 5, 6], seed=1), batch(6, [0.1, 0, 0, 0, 0, 0], seed=2)]
    losses = [losses_and_gradients(*part, *model.get_weights())[0] for part in parts]
    expected = np.average(np.concatenate(losses), weights=np.concatenate([part[2] for part in parts]))
    tested = trained(model)
    for _ in range(2):  # The second evaluation starts from zero.
        assert tested.evaluate(dataset(*parts), verbose=0, return_dict=True)["loss"] == pytest.approx(expected, 1e-5)
    # Each metric has a total and a count. The counts are the sums of the weights.
    totals = [float(keras.ops.convert_to_numpy(value)) for value in tested.metrics_variables]
    np.testing.assert_allclose(totals[1::2], [21.1, 21.1], rtol=1e-6)
    assert totals[0] / totals[1] == pytest.approx(expected, 1e-5)
    assert tested.metrics_names == ["loss", "accuracy"]


def test_a_teacher_is_learned_from_and_does_not_learn():
    model, teacher = classifier(), classifier(dropout=0.9)
    kernel, bias = model.get_weights()
    before = teacher.get_weights()
    images, labels, weights = batch(4, [1, 2, 0, 0.5])
    learner = trained(model, accumulation_steps=2, teacher=teacher)
    learner.fit(dataset((images, labels, weights)), verbose=0)
    _, gradients, logits = losses_and_gradients(images, labels, weights, kernel, bias, scale=0.5)
    theirs = losses_and_gradients(images, labels, weights, *before)[2]
    gradients += (logits - theirs) / NUM_CLASSES * (weights / weights.sum())[:, None]
    expected = kernel - LEARNING_RATE * images.reshape(4, -1).T @ gradients
    np.testing.assert_allclose(model.get_weights()[0], expected, atol=1e-6)
    for value, unchanged in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, unchanged)
    assert [variable.path for variable in learner.trainable_variables] == [v.path for v in model.trainable_variables]
    assert not {id(variable) for variable in teacher.variables} & {id(variable) for variable in model.variables}


def test_the_weights_of_a_teacher_are_not_compiled_into_the_step():
    model, teacher = classifier(), classifier()
    data = dataset(batch(4, [1, 1, 1, 1]))
    learner = trained(model, teacher=teacher)
    first = learner.evaluate(data, verbose=0)[0]
    teacher.set_weights([weight + 10 for weight in teacher.get_weights()])
    assert learner.evaluate(data, verbose=0)[0] > first + 10


def test_random_state_goes_on_with_every_part():
    model = classifier(dropout=0.5)
    data = batch(6, np.ones(6))
    trained(model, accumulation_steps=3).fit(dataset(data, data), verbose=0)
    [state] = [variable for variable in model.variables if "seed" in variable.path]
    assert int(keras.ops.convert_to_numpy(state)[1]) == 2 * 3


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of Keras on TensorFlow")
def test_keras_has_the_private_method_that_is_replaced():
    assert hasattr(keras.Model, "_maybe_symbolic_build"), "Look for what took its place, and try two workers."
