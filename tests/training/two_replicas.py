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


def recipe(*assignments):
    common = ["fit.epochs=none", f"fit.steps={2 * NUM_STEPS}", "schedule.warmup=1 steps", "schedule.start=0.05"]
    changes = ["optimizer.learning_rate=0.1", "optimizer.clip_norm=0.1", "optimizer.ema=0.7"]
    return override(recipes.load("digits"), [*common, *changes, *assignments])


def batch(step):
    """Images and labels. Each replica gets half of them, and the gradients of the halves differ strongly."""
    generator = np.random.default_rng(step)
    images, targets = generator.normal(size=(8, 5)), generator.normal(size=(8, CLASSES))
    return images.astype("float32"), np.concatenate([5 * targets[:4], targets[4:]]).astype("float32")


def run(strategy, make_optimizer, factors=(1.0, 1.0)):
    """Weights, moving averages and the optimizer after some steps. Each replica's loss is multiplied by its factor."""
    with strategy.scope():
        model = build_model()
        optimizer = make_optimizer(model)

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

    factors = np.array(factors[: strategy.num_replicas_in_sync], "float32")
    for number in range(NUM_STEPS):
        images, targets = batch(number)
        strategy.run(step, (per_replica(images), per_replica(targets), per_replica(factors)))
    averages = [average.numpy() for average in getattr(optimizer, "averages", [])]
    return model.get_weights(), averages, optimizer


def difference(first, second):
    return max((float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)), default=0.0)


def compare(strategy, make_optimizer):
    """The largest differences of the weights and of their moving averages, and the largest change of a weight."""
    one, two = run(tf.distribute.get_strategy(), make_optimizer), run(strategy, make_optimizer)
    return {
        "weights": difference(one[0], two[0]),
        "averages": difference(one[1], two[1]),
        "change": difference(one[0], build_model().get_weights()),
    }


def overflow(strategy, make_optimizer):
    """The weights and the loss scales after steps in which the second replica's gradients are not finite."""
    weights, _, optimizer = run(strategy, make_optimizer, (1.0, np.inf))
    return {
        "finite": all(bool(np.isfinite(weight).all()) for weight in weights),
        "change": difference(weights, build_model().get_weights()),
        "scales": [
            float(scale) / optimizer.initial_scale
            for scale in strategy.experimental_local_results(optimizer.dynamic_scale.value)
        ],
    }


def main(*cases):
    tf.config.set_visible_devices([], "GPU")
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())

    def ours(*assignments):
        return lambda model: build_optimizer(recipe(*assignments), model, 1)

    def keras_clipping(model):
        return keras.optimizers.SGD(0.1, global_clipnorm=0.1)

    def keras_scaling(model):
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))

    scaled = ours("optimizer.kind=sgd", "fit.precision=mixed_float16")
    compared = {
        "adamw": (compare, ours("optimizer.kind=adamw", "optimizer.layer_decay=0.5")),
        "muon": (compare, ours("optimizer.kind=muon")),
        "scaled_sgd": (compare, scaled),
        "keras_clipping": (compare, keras_clipping),
        "overflow": (overflow, scaled),
        "keras_overflow": (overflow, keras_scaling),
    }
    results = {case: compared[case][0](strategy, compared[case][1]) for case in cases}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
