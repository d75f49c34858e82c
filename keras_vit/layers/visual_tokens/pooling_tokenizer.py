"""Tokens from a resized map. Shapes: B batch, H W C map, h w grid of L tokens with CT channels."""

import math
import typing

import keras

from keras_vit.checks import check_flag, check_grid_size, check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.pointwise_convolution import build_projection
from keras_vit.layers.ops.maps import as_pixels, shrink


@keras.saving.register_keras_serializable(package="keras_vit")
class PoolingTokenizer(BaseLayer):
    """Resizes a map bilinearly to a small grid. The pixels of this grid are the tokens. No attention is learned.

    This is an ablation of Visual Transformers (arXiv 2006.03677, Table 3). If `token_dim` is not the map's number
    of channels, a learned linear projection follows.

    Args:
        grid_size: Size (h, w) of the grid.
        token_dim: Number CT of channels of a token. `None`: C, without a projection.
        use_batch_norm: Whether a batch norm follows the projection.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        (B, h w, CT), row by row.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PoolingTokenizer(grid_size=(2, 3))(keras.ops.ones((2, 5, 7, 6))).shape)
    (2, 6, 6)
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        token_dim: int | None = None,
        use_batch_norm: bool = False,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grid_size = check_grid_size("grid_size", grid_size)
        self.token_dim = token_dim if token_dim is None else check_positive_integer("token_dim", token_dim)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)

    def build(self, input_shape):
        channels = input_shape[-1]
        is_same = self.token_dim in (None, channels)
        self.projection = None if is_same else build_projection(self, "projection", channels, self.token_dim)

    def call(self, maps, training=None):
        tokens = as_pixels(shrink(maps, self.grid_size))
        return tokens if self.projection is None else self.projection(tokens, training=training)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], math.prod(self.grid_size), self.token_dim or input_shape[-1])

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        shrunk = (None, math.prod(self.grid_size), input_shape[-1])
        return 0 if self.projection is None else self.projection.macs(shrunk)
