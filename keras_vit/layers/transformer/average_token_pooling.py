"""Pooling by averaging the patch tokens. Shapes: B batch, T tokens, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_count
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class AverageTokenPooling(BaseLayer):
    """Averages the patch tokens, but not the prefix tokens (ViT, arXiv 2010.11929, appendix D.3).

    If tokens were merged, each token is weighted by the number of its patches, as in ToMe's code for MAE models (arXiv
    2210.09461). For timm's models, ToMe's code computes the unweighted mean instead. The layer computes its mean in
    float32 under any precision policy.

    Args:
        num_prefix_tokens: Number of tokens before the patch tokens.

    Call arguments:
        tokens: (B, T, D)
        sizes: (B, T), number of patches that each token represents. `None`: all sizes are 1.

    Returns:
        (B, D)

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.AverageTokenPooling(num_prefix_tokens=1)(keras.ops.ones((2, 7, 12))).shape)
    (2, 12)
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

    def call(self, tokens, sizes=None):
        patches = ops.cast(tokens[:, self.num_prefix_tokens :], "float32")
        if sizes is None:
            return ops.cast(ops.mean(patches, axis=1), tokens.dtype)
        sizes = ops.cast(sizes[:, self.num_prefix_tokens :], "float32")
        shares = sizes / ops.sum(sizes, axis=1, keepdims=True)
        return ops.cast(ops.sum(patches * shares[:, :, None], axis=1), tokens.dtype)

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        return (tokens_shape[0], tokens_shape[-1])
