"""A seed that is drawn before the layer runs that uses it."""

import keras


class DrawnSeed(keras.random.SeedGenerator):
    """The next seed of a generator, drawn now; whoever asks it for seeds is given this one, however often.

    For whatever is computed twice and has to be random in the same way both times, as in rematerialisation. It stands
    where a `keras.random.SeedGenerator` does, and has no state of its own.

    Under a strategy of `tf.distribute` each replica is given a seed of its own: their copies of the generator are in
    the same state, so they would all drop the same values.

    Args:
        generator: `keras.random.SeedGenerator` to draw from; it advances by one.
    """

    def __init__(self, generator):
        # Not super().__init__(), which would make a variable.
        self._seed = _of_replica(generator.next())
        # Read by the dropout of Keras on PyTorch, which leaves an unseeded generator for PyTorch's own.
        self._initial_seed = generator.get_config()["seed"]

    def next(self, ordered=True):
        """The seed."""
        return self._seed


def _of_replica(seed):
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    # As Keras makes an int32 of it, which XLA wants.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
    return tf.random.fold_in(seed, context.replica_id_in_sync_group)
