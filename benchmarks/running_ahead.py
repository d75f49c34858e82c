"""Measures training steps with Keras's list of callbacks, which reads the metrics after each step, and with ours.

Command: KERAS_BACKEND=jax python -m benchmarks.running_ahead

Reading a metric waits for the step, so the host prepares the next batch only after it. Without reading, the host
prepares it during the step. A pause before each batch simulates the work of the host. The steps are those of
`training.engine`. JAX computes them asynchronously on every device, TensorFlow on accelerators only.

Each round measures the device alone (no pause) and both lists in turns. The program prints medians over the rounds. It
takes a minute. Use a quiet machine.
"""

import argparse
import statistics
import sys
import time

import keras
import numpy as np

import keras_vit
from benchmarks.provenance import in_words
from training.engine.events import Callbacks
from training.engine.step import TrainedModel

BATCH, SIZE, CLASSES = 8, 64, 10


def build_model():
    """A small Vision Transformer with the training step of a run."""
    config = keras_vit.ViTConfig(patch_size=16, hidden_dim=192, num_layers=6, num_heads=3, mlp_dim=768)
    model = keras_vit.ViT(config, input_shape=(SIZE, SIZE, 3), classes=CLASSES, classifier_activation=None)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)
    trained = TrainedModel(model.inputs[0], model.outputs[0], loss)
    trained.compile(keras.optimizers.AdamW(1e-4))
    return trained


def seconds_per_step(model, callbacks, pause, steps):
    """Trains for some steps, with a pause in seconds before each batch."""
    random = np.random.default_rng(0)
    images = random.uniform(0, 255, (BATCH, SIZE, SIZE, 3)).astype("float32")
    labels = np.eye(CLASSES, dtype="float32")[random.integers(CLASSES, size=BATCH)]

    def batches():
        while True:
            time.sleep(pause)
            yield images, labels, np.ones(BATCH, "float32")

    begun = time.perf_counter()
    model.fit(batches(), steps_per_epoch=steps, shuffle=False, callbacks=callbacks, verbose=0)
    return (time.perf_counter() - begun) / steps


def measure(pause, steps, rounds):
    """{name: seconds of a step in each round}"""
    model = build_model()
    seconds_per_step(model, None, 0, 1)  # Compiles the step.
    times = {"device alone": [], "metrics are read": [], "metrics are not read": []}
    for _ in range(rounds):
        times["device alone"].append(seconds_per_step(model, Callbacks([], model), 0, steps))
        times["metrics are read"].append(seconds_per_step(model, [Reader()], pause, steps))
        times["metrics are not read"].append(seconds_per_step(model, Callbacks([], model), pause, steps))
    return times


class Reader(keras.callbacks.Callback):
    """A callback that runs after each batch. Without such a callback, Keras reads the metrics in another thread."""

    def on_train_batch_end(self, batch, logs=None):
        pass


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.running_ahead", description=__doc__.partition("\n")[0])
    parser.add_argument("--pause", type=float, default=20, help="work of the host before each step, in ms (20)")
    parser.add_argument("--steps", type=int, default=100, help="steps of a measurement (100)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    times = measure(options.pause / 1e3, options.steps, options.rounds)
    print(f"Milliseconds of a step, {options.rounds} rounds; {in_words()}")
    print(f"host alone: {options.pause:.1f}")
    for name, seconds in times.items():
        low, middle, high = (1e3 * pick(seconds) for pick in (min, statistics.median, max))
        print(f"{name}: {middle:.1f} ({low:.1f}-{high:.1f})")
    read, unread = times["metrics are read"], times["metrics are not read"]
    ratio = statistics.median(before / after for before, after in zip(read, unread, strict=True))
    print(f"{ratio:.2f} times as many steps a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
