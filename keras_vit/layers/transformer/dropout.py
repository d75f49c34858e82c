"""Dropout whose seed can be drawn beforehand. B batch."""

import keras

from keras_vit.checks import check_rate
from keras_vit.layers.transformer.drawn_seed import DrawnSeed


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Layer):
    """Drops single values.

    In training, each value is set to zero with probability `rate` and otherwise divided by `1 - rate` (arXiv 1207.0580;
    scaled in training, so that inference does nothing). It differs from `keras.layers.Dropout` in two things: the seed
    of a call can be drawn before it, so that the same call can be made again; and the replicas of a `tf.distribute`
    strategy do not all drop the same values.

    Args:
        rate: Probability of dropping. In [0, 1).
        seed: Seed of the draws.

    Call arguments:
        values: (B, ...)
        seed: What `draw_seed` returned; `None`: drawn in this call.
        training: Whether values are dropped.

    Returns:
        Same shape as `values`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.Dropout(rate=0.5)(keras.ops.ones((2, 7, 12)), training=True).shape)
    (2, 7, 12)
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.seed = seed
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def draw_seed(self):
        """The seed of one call in training; `None` if nothing is ever dropped."""
        return DrawnSeed(self.seed_generator) if self.rate > 0 else None

    def call(self, values, seed=None, training=None):
        if not training or self.rate == 0:
            return values
        return self._drop(values, seed or self.draw_seed())

    def _drop(self, values, seed):
        return keras.random.dropout(values, self.rate, seed=seed)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
