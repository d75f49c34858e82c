"""Steps of training."""

import keras
import numpy as np

from tests.test_case import canonical_weights, random_inputs


def train(model, shape, optimizer="sgd", batch=2, steps=1):
    """Trains a model of five classes on random images; returns the paths of the weights that are changed."""
    # TensorFlow takes longer to compile a step than to run it; JAX to run it without.
    run_eagerly = keras.backend.backend() == "tensorflow"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, run_eagerly=run_eagerly)
    before = canonical_weights(model)
    [images] = random_inputs(shape, batch=batch)
    for _ in range(steps):
        assert np.isfinite(model.train_on_batch(images, (1 + 2 * np.arange(batch)) % 5))
    return {path for path, value in canonical_weights(model).items() if (value != before[path]).any()}
