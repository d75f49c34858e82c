"""A seed that is drawn once."""

import keras

from keras_vit.layers.ops.repeated_draws import RepeatedDraws


class DrawnSeed(keras.random.SeedGenerator):
    """The next seed of a generator, drawn once and returned by every call of `next`.

    It is passed where Keras takes a `keras.random.SeedGenerator`, and has no state of its own. Under a strategy of
    `tf.distribute` each replica gets a seed of its own: the replicas' copies of a generator have the same state, so
    that all of them would drop the same values. Inside `RepeatedDraws.replay` the seeds are those of the first time.

    Args:
        generator: `keras.random.SeedGenerator` to draw from; it advances by one.
    """

    def __init__(self, generator):
        # Not super().__init__(), which would make a variable.
        draws = RepeatedDraws.current()
        self._seed = _fold_in_replica(generator.next() if draws is None else draws.next(generator))
        # Keras on PyTorch reads this in its dropout: without a seed it uses PyTorch's own generator.
        self._initial_seed = generator.get_config()["seed"]

    def next(self, ordered=True):
        """The seed."""
        return self._seed


def _fold_in_replica(seed):
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    # As Keras makes an int32 of it, which XLA wants.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
    return tf.random.fold_in(seed, context.replica_id_in_sync_group)
