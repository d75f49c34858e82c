"""A model with several inputs and outputs, and an image-text model, are trained on two devices, and on one:

    python -m tests.training.dictionary_program dictionaries pairs

It is a separate program, because a CPU can be split into devices only at the start. It prints the largest difference
between the weights of each model, and their largest change, as JSON.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from training import recipes
from training.engine import distribution
from training.engine.step import TrainedModel
from training.recipe.assignments import override
from training.tasks.contrastive import ContrastiveObjective, RecallInBatch

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


def dictionaries():
    """The model, the `TrainedModel` and the batches of `build`."""
    model = build()
    return model, TrainedModel(model.input, model.output, objective, metric=MeanObjective()), make_dataset


def pairs():
    """The same of an image-text model, whose loss compares all pairs of a batch."""
    keras.utils.set_random_seed(0)
    config = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}
    images = keras_vit.ViT(keras_vit.ViTConfig(4, **config), include_top=False, input_shape=(8, 8, 3))
    model = keras_vit.ImageTextModel(images, keras_vit.TextConfig(9, 5, **config), "softmax")
    inputs, metric = [model.input["images"], model.input["token_ids"]], RecallInBatch()
    learner = TrainedModel(inputs, model.output, ContrastiveObjective("softmax"), metric=metric, reads_labels=True)

    def make_pairs(index, count, size):
        random = np.random.default_rng(1)
        pixels = random.normal(size=(BATCH * STEPS, 8, 8, 3)).astype("float32")
        ids = random.integers(1, 9, (BATCH * STEPS, 5)).astype("int32")
        arrays = pixels, ids, np.ones(len(ids), "float32")
        return tf.data.Dataset.from_tensor_slices(arrays).batch(size, drop_remainder=True)

    return model, learner, make_pairs


def trained_weights(create, *assignments):
    """The weights before and after the training."""
    engine = distribution.start(override(recipes.load("digits"), assignments))
    with engine.scope():
        model, learner, batches = create()
        engine.prepare(model)
        learner.compile(keras.optimizers.SGD(0.005))
    before = engine.to_host(model.variables)
    learner.fit(engine.distribute(batches, BATCH), steps_per_epoch=STEPS, verbose=0)
    after = engine.to_host(model.variables)
    engine.release()
    return before, after


def main(*names):
    results = {}
    for create in (globals()[name] for name in names):
        on_two = trained_weights(create, f"distribution.kind={KIND[keras.backend.backend()]}", "distribution.devices=2")
        on_one = trained_weights(create)
        results[create.__name__] = {"difference": largest(on_two[1], on_one[1]), "change": largest(*on_one)}
    print(json.dumps(results))


def largest(first, second):
    return float(max(np.abs(a - b).max() for a, b in zip(first, second, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
