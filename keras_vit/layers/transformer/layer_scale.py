"""LayerScale. Shapes: B batch, T tokens, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(BaseLayer):
    """Multiplies each channel of a residual branch by a learned factor.

    The output is `diag(gamma) branch` ("Going deeper with Image Transformers", arXiv 2103.17239, section 2.1).

    Args:
        initial_value: Initial value of all factors, a positive number.

    Call arguments:
        branch: (B, T, D)

    Returns:
        (B, T, D)

    Raises:
        ValueError: If `initial_value` is not positive.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.LayerScale(initial_value=1e-5)(keras.ops.ones((2, 7, 12))).shape)
    (2, 7, 12)
    """

    def __init__(self, initial_value: float, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.initial_value = check_positive("initial_value", initial_value)

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial_value)
        self.gamma = self.add_weight(input_shape[-1:], initializer, name="gamma")

    def call(self, branch):
        return branch * ops.cast(self.gamma, branch.dtype)
