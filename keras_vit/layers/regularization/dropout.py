"""Dropout. Shapes: B batch."""

import typing

import keras

from keras_vit.checks import check_rate
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.fixed_seed import FixedSeed


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(BaseLayer):
    """Drops single values at random.

    In training, each value is set to zero with probability `rate` and otherwise divided by `1 - rate`
    (arXiv 1207.0580). At inference, the layer does nothing. Unlike `keras.layers.Dropout`, this layer drops different
    values on each replica of a `tf.distribute` strategy, and `keras_vit.rematerialize` can repeat its random numbers.

    Args:
        rate: Probability of dropping a value. In [0, 1).
        seed: Seed of the random numbers.

    Call arguments:
        values: (B, ...)
        training: Whether values are dropped.

    Returns:
        Same shape as `values`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.Dropout(rate=0.5)(keras.ops.ones((2, 7, 12)), training=True).shape)
    (2, 7, 12)
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate)
        self.seed = seed
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, values, training=None):
        if not training or self.rate == 0:
            return values
        return self._drop(values, FixedSeed(self.seed_generator))

    def _drop(self, values, seed):
        return keras.random.dropout(values, self.rate, seed=seed)
