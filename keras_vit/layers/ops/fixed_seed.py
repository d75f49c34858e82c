"""A seed that is drawn once."""

import keras

from keras_vit.layers.ops.repeated_draws import RepeatedDraws


class FixedSeed(keras.random.SeedGenerator):
    """Draws one seed from a generator. Every call of `next` returns this seed.

    Keras accepts a `FixedSeed` in place of a `keras.random.SeedGenerator`. A `FixedSeed` has no variables. Each replica
    of a `tf.distribute` strategy gets a different seed. Otherwise all replicas would drop the same values, because
    their generators have the same state. Inside `RepeatedDraws.replay`, the seeds are the same as in the first run.

    Args:
        generator: `keras.random.SeedGenerator` to draw from. The generator advances by one, except inside
            `RepeatedDraws.replay`.
    """

    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        # super().__init__() is not called, because it would create a variable.
        draws = RepeatedDraws.current()
        self._seed = _fold_in_replica(generator.next() if draws is None else draws.next(generator))
        # Keras's dropout on PyTorch reads this attribute. If it is None, the dropout uses PyTorch's generator.
        self._initial_seed = generator.get_config()["seed"]

    def next(self, ordered=True):
        """Returns the seed."""
        return self._seed


def _fold_in_replica(seed):
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    # The seed is converted to int32 as in Keras, because XLA requires int32.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
    return tf.random.fold_in(seed, context.replica_id_in_sync_group)
