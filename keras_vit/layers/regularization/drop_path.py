"""Stochastic depth. Shapes: B batch."""

import keras
from keras import ops

from keras_vit.layers.regularization.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(Dropout):
    """Drops the whole residual branch of some images in a batch.

    In training, each image's branch is set to zero with probability `rate`. Otherwise it is divided by `1 - rate`, so
    that its mean is unchanged ("Deep Networks with Stochastic Depth", arXiv 1603.09382). At inference, the layer does
    nothing.

    Args:
        rate: Probability of dropping a branch, in [0, 1).
        seed: Seed of the random numbers.

    Call arguments:
        values: (B, ...), a residual branch.
        training: Whether branches are dropped.

    Returns:
        Same shape as `values`.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.DropPath(rate=0.5)(keras.ops.ones((2, 7, 12)), training=True).shape)
    (2, 7, 12)
    """

    def _drop(self, values, seed):
        shape = (ops.shape(values)[0], *[1] * (len(values.shape) - 1))
        keep = keras.random.uniform(shape, seed=seed, dtype="float32") >= self.rate
        return values * ops.cast(ops.cast(keep, "float32") / (1.0 - self.rate), values.dtype)
