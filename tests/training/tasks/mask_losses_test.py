"""Losses of masks equal the equations in NumPy and the loss of transformers."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_vit
from tests.differentiation import compiled, value_and_gradients
from tests.reference import mask_loss
from tests.test_case import assert_close, rest_slow
from training.engine.step import TrainedModel
from training.errors import InputError
from training.tasks.mask_losses import MaskObjective

pytestmark = pytest.mark.each_backend
B, H, W, h, w, n, Q, M, C, P = 4, 12, 10, 5, 7, 2, 6, 3, 4, 16


def drawn_at(num_queries, num_points, *points):
    """The loss at given points, which have different shapes."""
    objective, by_shape = MaskObjective(num_queries, None, num_points), {each.shape[-2:]: each for each in points}
    objective.draw = lambda shape: ops.convert_to_tensor(by_shape[tuple(shape)[-2:]])
    return objective


def batch():
    """Labels and outputs. Of image 0, object 1 has no class, and object 2 no pixels. Image 2 has no objects."""
    rng = np.random.default_rng(0)
    segments, classes = np.zeros((B, H, W), "int32"), rng.integers(0, C, (B, M)).astype("int32")
    segments[0, 2:7, 3:9], segments[0, 8:] = 1, 3
    segments[1, :3, :4], segments[1, 3:9, :5], segments[1, 5:, 6:] = 3, 2, 1
    segments[3, 4:8, 2:6], segments[3, 9:, 1:3] = 1, 2
    classes[0, 0] = classes[3, 2] = -1
    outputs = rng.normal(size=(B, h, w, n * Q)), rng.normal(size=(B, n * Q, C + 1))
    shapes = (B, n, P, 2), (B, n, M, 3 * P, 2), (B, n, M, P // 4, 2)
    points = [rng.random(shape, "float32") for shape in shapes]
    return {"segments": segments, "classes": classes}, [array.astype("float32") for array in outputs], points


def test_losses_equal_the_equations_and_have_finite_gradients():
    labels, outputs, points = batch()

    def losses(masks, objects):
        return drawn_at(Q, P, *points)(labels, {"masks": masks, "objects": objects})

    images = []
    masks, objects = outputs[0].transpose(0, 3, 1, 2).reshape(B, n, Q, h, w), outputs[1].reshape(B, n, Q, C + 1)
    for i in range(B):
        valid = [k for k in range(M) if (labels["segments"][i] == k + 1).any() and labels["classes"][i, k] >= 0]
        truth = np.array([labels["segments"][i] == k + 1 for k in valid]), labels["classes"][i, valid]
        points_of_objects = (each[i, :, : len(valid)] for each in points[1:])
        images.append((truth, [*zip(masks[i], objects[i], points[0][i], *points_of_objects, strict=True)]))
    assert [len(truth[1]) for truth, _ in images] == [1, 3, 0, 2]
    found, (masks, objects) = value_and_gradients(losses, *outputs)
    assert_close(found, B * mask_loss.losses(images))
    assert np.isfinite(masks).all()
    assert np.isfinite(objects).all()
    with pytest.raises(InputError, match=r"up to 3 objects, a model with 2 queries\. Choose a model with at least 3"):
        MaskObjective(2, None)(labels, dict(zip(("masks", "objects"), outputs, strict=True)))
    assert objects.any(axis=-1).all()  # The classes of all queries are learned, and the masks of those with an object.
    num_learned = masks.any(axis=(1, 2)).reshape(B, n, Q).sum(axis=-1)
    np.testing.assert_array_equal(num_learned, [[1, 1], [3, 3], [0, 0], [2, 2]])


def test_loss_is_that_of_transformers():
    golden = dict(np.load(pathlib.Path(__file__).parents[2] / "golden" / "eomt_loss.npz"))
    objective = drawn_at(6, 64, *(golden[f"{name}_points"] for name in ("matching", "candidate", "random")))
    pairs = ("segments", "classes"), ("masks", "objects")
    losses = compiled(objective)(*({name: golden[name] for name in pair} for pair in pairs))
    assert_close(ops.mean(losses), golden["loss"])


@pytest.mark.parametrize("accumulation_steps", rest_slow([1, 2]))
def test_steps_train_all_weights(accumulation_steps):
    """Each step, and each chunk of a batch, has other points."""
    keras.utils.set_random_seed(0)
    images = keras.Input((h, w, 3))
    dropped = keras_vit.layers.Dropout(0.1, seed=0)
    features = dropped(keras.layers.Dense(8, activation="gelu")(images))
    masks, pooled = keras.layers.Dense(Q, use_bias=False)(features), keras.layers.GlobalAveragePooling2D()(features)
    outputs = {"masks": masks, "objects": keras.layers.Reshape((Q, C + 1))(keras.layers.Dense(Q * (C + 1))(pooled))}
    objective = MaskObjective(Q, dropped.seed_generator, P)
    metric = keras.metrics.MeanMetricWrapper(lambda labels, outputs: outputs["masks"][:, 0, 0, 0], name="first")
    learner = TrainedModel(images, outputs, objective, accumulation_steps=accumulation_steps, metric=metric)
    learner.compile(keras.optimizers.SGD(0.1))
    before, draws = [weight.numpy() for weight in learner.trainable_weights], dropped.seed_generator.state.numpy()
    pixels = np.random.default_rng(0).random((B, h, w, 3), "float32")
    data = tf.data.Dataset.from_tensors((pixels, batch()[0], np.ones(B, "float32"))).repeat(2)
    assert np.isfinite(learner.fit(data, verbose=0).history["loss"]).all()
    # In each chunk, points are drawn three times, and dropout draws once.
    np.testing.assert_array_equal(dropped.seed_generator.state.numpy() - draws, [0, 4 * 2 * accumulation_steps])
    for weight, old in zip(learner.trainable_weights, before, strict=True):
        assert np.isfinite(weight.numpy()).all()
        assert (weight.numpy() != old).any()
