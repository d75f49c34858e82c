"""Stochastic depth. B batch."""

import keras
from keras import ops

from keras_vit.config import check_rate
from keras_vit.layers.drawn_seed import DrawnSeed


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(keras.layers.Layer):
    """Drops a whole residual branch for some images of a batch.

    In training, each image's branch is set to zero with probability `rate` and otherwise divided by `1 - rate`, so that
    its expectation stays ("Deep Networks with Stochastic Depth", arXiv 1603.09382). At inference it does nothing.

    Args:
        rate: Probability of dropping. In [0, 1).
        seed: Seed of the draws.

    Call arguments:
        branch: (B, ...)
        seed: What `draw_seed` returned; `None`: drawn in this call.
        training: Whether branches are dropped.

    Returns:
        Same shape as `branch`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.DropPath(rate=0.5)(keras.ops.ones((2, 7, 12)), training=True).shape)
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

    def call(self, branch, seed=None, training=None):
        if not training or self.rate == 0:
            return branch
        shape = (ops.shape(branch)[0], *[1] * (len(branch.shape) - 1))
        keep = keras.random.uniform(shape, seed=seed or self.seed_generator, dtype="float32") >= self.rate
        return branch * ops.cast(ops.cast(keep, "float32") / (1.0 - self.rate), branch.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
