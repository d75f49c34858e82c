"""A seed that is drawn before the layer runs that uses it."""

import keras


class DrawnSeed(keras.random.SeedGenerator):
    """The next seed of a generator, drawn now; whoever asks it for seeds is given this one, however often.

    For whatever is computed twice and has to be random in the same way both times, as in rematerialisation. It stands
    where a `keras.random.SeedGenerator` does, and has no state of its own.

    Args:
        generator: `keras.random.SeedGenerator` to draw from; it advances by one.
    """

    def __init__(self, generator):
        # Not super().__init__(), which would make a variable.
        self._seed = generator.next()
        # Read by the dropout of Keras on PyTorch, which leaves an unseeded generator for PyTorch's own.
        self._initial_seed = generator.get_config()["seed"]

    def next(self, ordered=True):
        """The seed."""
        return self._seed
