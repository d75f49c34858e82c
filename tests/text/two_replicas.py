"""Trains an image-text model with TensorFlow on one device and on two virtual CPUs, and prints the differences.

    python -m tests.text.two_replicas

It must be a process of its own, because devices are configured before TensorFlow starts.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from tests.test_case import randomize
from tests.text.models import CONTEXT, SHAPE, random_model


def weights_after_a_step(strategy, activation):
    """The weights before and after a step of gradient descent, and the loss. Large steps keep gradients exact."""
    random = np.random.default_rng(0)
    pairs = {
        "images": random.normal(size=(6, *SHAPE)).astype("float32"),
        "token_ids": random.integers(1, 500, (6, CONTEXT)).astype("int32"),
    }
    with strategy.scope():
        model = randomize(random_model(activation), scale=1.0)
        model.compile(keras.optimizers.SGD(1e4))
    before = model.get_weights()
    [loss] = model.fit(tf.data.Dataset.from_tensor_slices(pairs).batch(6), verbose=0).history["loss"]
    return before, model.get_weights(), loss


def differences(strategy, activation):
    """{loss, gradients: difference of one and two devices relative to the largest, change: largest step}"""
    one, two = (weights_after_a_step(each, activation) for each in (tf.distribute.get_strategy(), strategy))
    gradients = [np.concatenate([(a - b).ravel() for a, b in zip(*each[:2], strict=True)]) for each in (one, two)]
    largest = float(np.abs(gradients[0]).max())
    return {
        "loss": abs(one[2] - two[2]) / one[2],
        "gradients": float(np.abs(gradients[0] - gradients[1]).max()) / largest,
        "change": largest,
    }


def main():
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    print(json.dumps({activation: differences(strategy, activation) for activation in ("softmax", "sigmoid")}))


if __name__ == "__main__":
    main()
