"""Dropout of whole patches. Shapes: B batch, p prefix tokens, N patches, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_count
from keras_vit.layers.ops.patch_selection import select_patches, share_of
from keras_vit.layers.regularization.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(Dropout):
    """Removes the tokens of random patches in training, so that a step takes less time and memory.

    In training, each image keeps `N - floor(rate * N)` of its N patch tokens, in random order (PatchDropout,
    arXiv 2208.07220). Tokens before the patch tokens always stay. The layer comes after the position embedding, so the
    order of the tokens does not matter. At inference, the layer does nothing.

    Args:
        rate: Share of the patches that are removed. In [0, 1).
        num_prefix_tokens: Number p of tokens before the patch tokens.
        seed: Seed of the random numbers.

    Call arguments:
        values: (B, p + N, D)
        training: Whether patches are removed.

    Returns:
        (B, p + N', D), where N' is the number of patches that remain in training, and N at inference.

    Example:

    >>> import keras, keras_vit
    >>> dropout = keras_vit.layers.PatchDropout(rate=0.5, num_prefix_tokens=1)
    >>> tuple(dropout(keras.ops.ones((2, 1 + 9, 12)), training=True).shape)
    (2, 6, 12)
    """

    def __init__(self, rate: float, num_prefix_tokens: int = 0, seed: int | None = None, **kwargs: typing.Any) -> None:
        super().__init__(rate, seed, **kwargs)
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens)

    def _drop(self, values, seed):
        num_images, num_tokens, _ = ops.shape(values)
        num_patches = num_tokens - self.num_prefix_tokens
        noise = keras.random.uniform((num_images, num_patches), seed=seed, dtype="float32")
        return select_patches(values, noise, num_patches - share_of(num_patches, self.rate), self.num_prefix_tokens)
