"""Helpers that read data sets and fit models to them.

Tracing takes most of a small run: three seconds for decoding and augmentation, two for a Vision Transformer.
`array_pipeline` and `linear_model` replace both in tests of other things.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf

import keras_vit
from keras_vit.architectures import RESNETS
from training.data.pipeline import read_once
from training.data.sources import BatchShard
from training.data.subsets import multi_hot
from training.engine import fitting, train
from training.engine.distribution import Engine
from training.engine.step import TrainedModel
from training.tasks import TASKS


def keys_of(source, part, epoch=0, skip=0, seed=None):
    """The (position, key) pairs of one epoch of a source, as Python and NumPy values."""
    keys = source.epoch(tf.constant(epoch, tf.int64), part, tf.constant(skip, tf.int64), seed)
    return list(keys.as_numpy_iterator())


def evaluation_images(dataset, split, decode, recipe):
    """All images (N, H, W, C) and label vectors (N, classes) of a split, without padding."""
    num_classes = len(dataset.class_names)
    batches = read_once(
        dataset.splits[split],
        lambda sample: sample | {"image": decode(sample["image"])},
        lambda sample: multi_hot(sample["label"], num_classes),
        recipe.fit.batch_size,
    )
    images, labels, is_real = map(np.concatenate, zip(*batches, strict=True))
    return images[is_real], labels[is_real]


def fitted(recipe, dataset=None, eagerly=False, run=None):
    """Runs a `Fitting` on one device. Without `run`, it writes no files. For a few steps, eager execution is faster."""
    fitting.seed(recipe)
    task = TASKS[recipe.task](recipe)
    fitted = fitting.Fitting(task, dataset or task.load(), Engine(recipe.distribution), run)
    fitted.trained.run_eagerly = eagerly
    assert fitted.run()
    return fitted


@functools.cache
def digits():
    """The images (1797, 8, 8, 1), pixels from 0 to 255, and label vectors (1797, 10) of scikit-learn's digits."""
    found = sklearn.datasets.load_digits()
    return (found.images[..., None] * (255 / 16)).astype("float32"), np.eye(10, dtype="float32")[found.target]


@contextlib.contextmanager
def array_pipeline(arrays=None):
    """Makes `Fitting` read images from arrays. A batch depends only on the seed and the step.

    Supports one device.

    Args:
        arrays: {split: images (N, H, W, C) and label vectors (N, classes)}. With `None`, as many digits as the data
            set has: the first ones for training, the last ones for validation.
    """

    def of_split(source, split):
        if arrays is not None:
            return arrays[split]
        return tuple(array[: source.size] if split == "train" else array[-source.size :] for array in digits())

    def training_batches(source, changes, read_label, recipe):
        images, labels = of_split(source, "train")
        shard = BatchShard(recipe.fit.batch_size)
        steps_per_epoch = shard.num_batches(len(images))

        def of_steps(steps):
            rows = []
            for step in steps:
                epoch, number = divmod(step, steps_per_epoch)
                order = np.random.default_rng([recipe.seed, epoch]).permutation(len(images))
                rows.append(order[number * shard.share : (number + 1) * shard.share])
            return lambda *share: _batches(images, labels, rows, shard.share)

        return of_steps

    def evaluation_batches(source, decode, read_label, batch_size, cache):
        images, labels = of_split(source, "validation")
        # `Fitting` passes the function that the replaced pipeline would read labels with.
        np.testing.assert_array_equal(read_label({"label": tf.constant(labels[0].argmax())}), labels[0])
        rows = np.array_split(np.arange(len(images)), range(batch_size, len(images), batch_size))
        return lambda *_: _batches(images, labels, rows, batch_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "training_batches", training_batches)
        patch.setattr(fitting, "evaluation_batches", evaluation_batches)
        yield


def _batches(images, labels, rows, size):
    """Batches of the images with these indices, filled up with images of zero weight."""
    padded = np.array([np.resize(some, size) for some in rows])  # (steps, B)
    weights = np.array([np.arange(size) < len(some) for some in rows], "float32")
    return tf.data.Dataset.from_tensor_slices((images[padded], labels[padded], weights))


@contextlib.contextmanager
def linear_model(eagerly=False):
    """Makes runs fit a linear classifier with dropout, whatever model the recipe has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainedModel, "compile", functools.partialmethod(TrainedModel.compile, run_eagerly=eagerly))
        patch.setattr(fitting, "build_model", build_linear_model)
        patch.setattr(train, "build_model", build_linear_model)
        yield


def build_linear_model(recipe, classes, with_logits=False, built=None):
    """Replaces the model builder within `linear_model`."""
    images = keras.Input(recipe.model.input_shape)
    size = recipe.model.input_shape[:2]
    architecture = RESNETS["R18"].to_dict()  # It is not a Vision Transformer.
    preprocessing = keras_vit.Preprocessing(
        resize=size, architecture=architecture, normalize=True, name="preprocessing"
    )
    pixels = preprocessing(images)
    features = keras.layers.Dropout(0.1)(keras.layers.Flatten()(pixels))
    activation = None if with_logits else "softmax"
    return keras.Model(images, keras.layers.Dense(classes, activation, name="predictions")(features))
