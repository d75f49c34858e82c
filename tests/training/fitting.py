"""What tests read from data sets, and fit to them."""

import numpy as np
import tensorflow as tf

from training.distribution import Engine
from training.pipeline import evaluation_batches
from training.tasks import task_of
from training.train import Fitting, seed


def keys_of(source, part, epoch=0, skip=0, seed=None):
    """(position, key) of one epoch of a source, as Python and NumPy values."""
    keys = source.epoch(tf.constant(epoch, tf.int64), part, tf.constant(skip, tf.int64), seed)
    return list(keys.as_numpy_iterator())


def evaluation_images(dataset, split, decode, recipe):
    """All images (N, H, W, C) and label vectors (N, classes) of a split, without padding."""
    batches = evaluation_batches(dataset, split, decode, recipe)(0, 1, recipe.fit.batch_size)
    images, labels, weights = map(np.concatenate, zip(*batches.as_numpy_iterator(), strict=True))
    return images[weights > 0], labels[weights > 0]


def fitted(recipe, dataset=None):
    """A `training.train.Fitting` on one device that has run, and written nothing."""
    seed(recipe)
    fitting = Fitting(recipe, dataset or task_of(recipe).load(), Engine(recipe.distribution))
    assert fitting.run()
    return fitting
