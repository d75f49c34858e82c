"""Compares consecutive steps on two replicas with the same steps on one device.

    python -m tests.training.two_replicas CASE …

It is a separate program, because TensorFlow can only split a CPU into devices at the start. It prints the results
that `distribution_test.py` checks, as JSON.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from training import recipes
from training.engine.optimizers import build_optimizer
from training.recipe.assignments import override

NUM_STEPS = 3
CLASSES = 3
LAYERS = ("patch_embedding", "encoder_block_0", "predictions")


def build_model():
    """Dense layers with the layer names of a Vision Transformer."""
    keras.utils.set_random_seed(0)
    units = dict.fromkeys(LAYERS, 6) | {"predictions": CLASSES}
    layers = [
        keras.layers.Dense(size, activation="tanh", use_bias=name == "predictions", name=name)
        for name, size in units.items()
    ]
    return keras.Sequential([keras.Input((5,)), *layers])


def batch(step):
    """Images and labels. Each replica gets half of them, and the gradients of the halves differ strongly."""
    generator = np.random.default_rng(step)
    images, targets = generator.normal(size=(8, 5)), generator.normal(size=(8, CLASSES))
    return images.astype("float32"), np.concatenate([5 * targets[:4], targets[4:]]).astype("float32")


def run(strategy, recipe):
    """Weights and moving averages after some steps, weights after more steps that overflow, and the optimizer.

    Only optimizers that scale the loss take the additional steps. In these, the second replica's loss is infinite.
    """
    with strategy.scope():
        model = build_model()
        optimizer = build_optimizer(recipe, model, 1)

    @tf.function(autograph=False)
    def step(images, targets, factor):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(factor * tf.reduce_sum((model(images) - targets) ** 2) / 8)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
        )

    def per_replica(array):
        parts = np.split(array, strategy.num_replicas_in_sync)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def take_steps(factors):
        factors = np.array(factors[: strategy.num_replicas_in_sync], "float32")
        for number in range(NUM_STEPS):
            images, targets = batch(number)
            strategy.run(step, (per_replica(images), per_replica(targets), per_replica(factors)))
        return model.get_weights()

    weights = take_steps([1, 1])
    averages = [average.numpy() for average in optimizer.averages]
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    after = take_steps([1, np.inf]) if is_scaled and strategy.num_replicas_in_sync == 2 else weights
    return weights, averages, after, optimizer


def difference(first, second):
    return max((float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)), default=0.0)


def compare(strategy, assignments):
    """Differences between one and two devices, the largest change of a weight, and the effects of overflows."""
    common = ["fit.epochs=none", f"fit.steps={2 * NUM_STEPS}", "schedule.warmup=1 steps", "schedule.start=0.05"]
    changes = ["optimizer.learning_rate=0.1", "optimizer.clip_norm=0.1", "optimizer.ema=0.7"]
    recipe = override(recipes.load("digits"), [*common, *changes, *assignments])
    one, two = (run(one_strategy, recipe) for one_strategy in (tf.distribute.get_strategy(), strategy))
    scaled = isinstance(two[3], keras.optimizers.LossScaleOptimizer)
    scales = strategy.experimental_local_results(two[3].dynamic_scale.value) if scaled else []
    return {
        "weights": difference(one[0], two[0]),
        "averages": difference(one[1], two[1]),
        "change": difference(one[0], build_model().get_weights()),
        "finite": all(bool(np.isfinite(weight).all()) for weight in two[2]),
        "change in overflows": difference(two[0], two[2]),
        "scales": [float(scale) / two[3].initial_scale for scale in scales],
    }


def main(*cases):
    tf.config.set_visible_devices([], "GPU")
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())

    assignments = {
        "scaled_sgd": ["optimizer.kind=sgd", "fit.precision=mixed_float16"],
        "muon": ["optimizer.kind=muon", "optimizer.layer_decay=0.5"],
    }
    print(json.dumps({case: compare(strategy, assignments[case]) for case in cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
