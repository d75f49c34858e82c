"""Training steps."""

import keras
import numpy as np

from tests.test_case import canonical_weights, random_inputs


def train(model, shape, optimizer="sgd", batch=2, steps=1):
    """Trains a model of five classes on random images. Returns the paths of the weights that change."""
    # On TensorFlow, compiling a step takes longer than running it. On JAX, running it uncompiled takes longer.
    run_eagerly = keras.backend.backend() == "tensorflow"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, run_eagerly=run_eagerly)
    before = canonical_weights(model)
    [images] = random_inputs(shape, batch=batch)
    for _ in range(steps):
        assert np.isfinite(model.train_on_batch(images, (1 + 2 * np.arange(batch)) % 5))
    return {path for path, value in canonical_weights(model).items() if (value != before[path]).any()}
