"""A model with several inputs and outputs is trained for some steps on two devices, and on one:

    python -m tests.training.dictionary_program

It is a separate program, because a CPU can be split into devices only at the start. It prints the largest difference
between the weights, and their largest change, as JSON.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from training import recipes
from training.engine import distribution
from training.engine.step import TrainedModel
from training.recipe.assignments import override

BATCH, STEPS = 6, 3
KIND = {"jax": "data_parallel", "tensorflow": "mirrored"}


def build():
    """A model of images and numbers that returns a class and sizes. Its initial weights are always the same."""
    keras.utils.set_random_seed(0)
    images, numbers = keras.Input((2, 3, 1), name="images"), keras.Input((3,), name="numbers")
    joined = keras.layers.concatenate([keras.layers.Flatten()(images), numbers])
    outputs = {name: keras.layers.Dense(size, name=name)(joined) for name, size in (("class", 3), ("sizes", 2))}
    return keras.Model({"images": images, "numbers": numbers}, outputs)


def objective(labels, outputs):
    """The loss of each image, (B,)."""
    errors = keras.ops.mean((labels["sizes"] - outputs["sizes"]) ** 2, axis=-1)
    return errors + keras.losses.categorical_crossentropy(labels["class"], outputs["class"], from_logits=True)


class MeanObjective(keras.metrics.Mean):
    def update_state(self, labels, outputs, sample_weight=None):
        super().update_state(objective(labels, outputs), sample_weight)


def make_dataset(index, count, size):
    """Batches of dictionaries. The last image of each batch is padding."""
    random = np.random.default_rng(1)
    total = BATCH * STEPS
    images = {"images": random.normal(size=(total, 2, 3, 1)), "numbers": random.normal(size=(total, 3))}
    labels = {"class": np.eye(3)[np.arange(total) % 3], "sizes": random.normal(size=(total, 2))}
    weights = np.arange(total) % BATCH < BATCH - 1
    arrays = tf.nest.map_structure(lambda array: np.asarray(array, "float32"), (images, labels, weights))
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size, drop_remainder=True)


def trained_weights(*assignments):
    """The weights before and after the training."""
    engine = distribution.start(override(recipes.load("digits"), assignments))
    with engine.scope():
        model = build()
        engine.prepare(model)
        learner = TrainedModel(model.input, model.output, objective, metric=MeanObjective())
        learner.compile(keras.optimizers.SGD(0.1))
    before = engine.to_host(model.variables)
    learner.fit(engine.distribute(make_dataset, BATCH), steps_per_epoch=STEPS, verbose=0)
    after = engine.to_host(model.variables)
    engine.release()
    return before, after


def main():
    on_two = trained_weights(f"distribution.kind={KIND[keras.backend.backend()]}", "distribution.devices=2")
    on_one = trained_weights()

    def largest(first, second):
        return float(max(np.abs(a - b).max() for a, b in zip(first, second, strict=True)))

    print(json.dumps({"difference": largest(on_two[1], on_one[1]), "change": largest(*on_one)}))


if __name__ == "__main__":
    main()
