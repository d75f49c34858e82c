"""Random selection and masking of patches.

Shapes: B batch, N = h w patches, p prefix tokens, T = p + N tokens, D hidden.
"""

import typing

import keras
from keras import ops

from keras_vit.layers.ops.fixed_seed import FixedSeed
from keras_vit.layers.ops.patch_selection import share_of


def draw(batch_size, num_patches, generator):
    """Draws a random number in [0, 1) for each patch, (B, N). Replicas of a model draw different numbers."""
    return keras.random.uniform((batch_size, num_patches), dtype="float32", seed=FixedSeed(generator))


def ranks(noise):
    """The ranks of the patches by their noise, (B, N). The patch with the lowest noise has rank 0."""
    return ops.argsort(ops.argsort(noise, axis=1), axis=1)


def check_share(name, value):
    """Checks that a value is a number between 0 and 1, and returns it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded. Received: {value!r}")
    return value


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCorruption(keras.layers.Layer):
    """Corrupts a share of the patches, for masked patch prediction.

    The same number of patches is corrupted in each image. A corrupted patch is replaced by the learned `[mask]`
    embedding (with probability 0.8) or by a random other patch of the same image (0.1), or does not change (0.1). The
    choice is independent for each patch (ViT, arXiv 2010.11929, appendix B.1.2, following BERT, arXiv 1810.04805).

    Args:
        rate: Share of the patches that are corrupted, between 0 and 1. The number of these patches is rounded down.
        seed: Integer seed of the random choices, or `None`.

    Call arguments:
        patches: (B, h, w, D), at least two patches per image.

    Returns:
        The patches (B, h, w, D), and a float32 mask (B, N), 1 for corrupted patches and 0 for the others.

    Example:

    >>> import keras
    >>> from keras_vit.pretraining.masking import PatchCorruption
    >>> patches, is_corrupted = PatchCorruption(rate=0.5, seed=0)(keras.ops.ones((5, 2, 3, 8)))
    >>> tuple(patches.shape), [int(count) for count in keras.ops.sum(is_corrupted, axis=1)]
    ((5, 2, 3, 8), [3, 3, 3, 3, 3])
    """

    def __init__(self, rate: float = 0.5, seed: int | None = None, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_share("rate", rate)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, patches_shape):
        self.mask_embedding = self.add_weight(
            name="mask_embedding",
            shape=(patches_shape[-1],),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def call(self, patches):
        batch_size, height, width, hidden_dim = ops.shape(patches)
        num_patches = height * width
        if isinstance(num_patches, int) and (num_patches < 2 or not share_of(num_patches, self.rate)):
            raise ValueError(
                f"There must be at least two patches, and at least one of them must be corrupted. Received: rate="
                f"{self.rate}, {num_patches} patches. Use larger images, smaller patches or a higher rate."
            )
        tokens = ops.reshape(patches, (batch_size, num_patches, hidden_dim))
        order, change, source = (draw(batch_size, num_patches, self.seed_generator) for _ in range(3))
        is_corrupted = ranks(order) < share_of(num_patches, self.rate)  # (B, N)
        corrupted = ops.where(change[:, :, None] < _MASKED, ops.cast(self.mask_embedding, tokens.dtype), tokens)
        is_other = ops.logical_and(change >= _MASKED, change < _MASKED + _OTHER)
        corrupted = ops.where(is_other[:, :, None], _other_tokens(tokens, source), corrupted)
        tokens = ops.where(is_corrupted[:, :, None], corrupted, tokens)
        return ops.reshape(tokens, ops.shape(patches)), ops.cast(is_corrupted, "float32")

    def compute_output_shape(self, patches_shape):
        batch_size, height, width, _ = patches_shape
        return tuple(patches_shape), (batch_size, height and width and height * width)

    def compute_output_spec(self, patches):
        shape, corrupted_shape = self.compute_output_shape(patches.shape)
        return keras.KerasTensor(shape, patches.dtype), keras.KerasTensor(corrupted_shape, "float32")


_MASKED, _OTHER = 0.8, 0.1  # Probabilities.


def _other_tokens(tokens, noise):
    """For each token, a random other token of the same image, (B, N, D)."""
    num_tokens = ops.shape(tokens)[1]
    steps = 1 + ops.cast(ops.floor(noise * ops.cast(num_tokens - 1, "float32")), "int32")  # From 1 to N - 1.
    indices = (ops.arange(num_tokens, dtype="int32") + steps) % num_tokens
    return ops.take_along_axis(tokens, indices[:, :, None], axis=1)
