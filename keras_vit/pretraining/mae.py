"""Masked autoencoders.

Shapes: B batch, N = h w patches of P x Q pixels, V of them visible, p prefix tokens, D hidden.
"""

import math
import typing

import keras
from keras import ops

from keras_vit import layers
from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.graph import fits
from keras_vit.layers.ops.patch_selection import select_patches, share_of
from keras_vit.pretraining import masking
from keras_vit.pretraining.pretrainer import Pretrainer


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedAutoencoder(Pretrainer):
    """Pre-trains a model to predict the hidden patches of an image from the visible patches.

    The method is from "Masked Autoencoders Are Scalable Vision Learners" (MAE, arXiv 2111.06377). The encoder runs on
    the visible patches only, which is several times as fast as running on all patches. A small decoder gets the
    encoder's outputs in the order of the patches, a learned mask token for each hidden patch, and fixed sine-cosine
    positions. The decoder predicts all pixels and is discarded after the pre-training. The loss is the mean squared
    error of the hidden patches.

    The model is trained in place. Afterwards, save it with `keras_vit.save_weights` and fine-tune it. `fit`, `evaluate`
    and `predict` take images as the model expects them. Labels are accepted but not used. Each call hides different
    patches. A `.keras` file contains the model, the decoder and the optimizer.

    Args:
        model: A model of `keras_vit.ViT` without a stem, with any input size, with or without a head. Its position
            embedding must be added once, before the first block, or be `"none"`. Rotary positions are not supported.
        mask_ratio: Share of the patches of each image that are hidden, between 0 and 1.
        decoder_layers: Number of blocks of the decoder.
        decoder_dim: Width of the decoder's tokens, a multiple of 4 and of `decoder_heads`. The decoder's MLPs are four
            times as wide. The kind of the MLPs and the epsilon of the LayerNorms are the same as in the encoder.
        decoder_heads: Number of attention heads of the decoder.
        normalize_targets: Whether the target pixels of each patch are normalised to mean 0 and standard deviation 1.
            Normalised targets give better representations.
        seed: Integer seed of the masks, or `None`.

    Call arguments:
        images: (B, H, W, C), as the model expects them.
        noise: (B, N), one value for each patch. The patches with the lowest values are visible. `None`: random values.
        training: Whether dropout and drop path are active.

    Returns:
        A dictionary: `"predictions"` and `"targets"`, (B, N, P Q C), pixels normalised as in the model; `"mask"`,
        (B, N), 1 for hidden patches.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If `model` is not a Vision Transformer of this package or cannot run on a subset of the patches, or
            if a value is invalid.

    Example:

    >>> import keras, keras_vit, numpy as np
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=1, include_preprocessing=True)
    >>> pretraining = keras_vit.pretraining.MaskedAutoencoder(model, decoder_layers=1, decoder_dim=32, decoder_heads=2)
    >>> pretraining.compile(keras.optimizers.AdamW(1.5e-4, beta_2=0.95, weight_decay=0.05))
    >>> images = np.random.default_rng(0).integers(0, 256, size=(2, 64, 96, 3))
    >>> history = pretraining.fit(images, verbose=0)  # doctest: +SKIP
    >>> pretraining.reconstruct(images).reconstructed.shape
    (2, 64, 96, 3)
    """

    ARGUMENTS = ("mask_ratio", "decoder_layers", "decoder_dim", "decoder_heads", "normalize_targets", "seed")

    def __init__(
        self,
        model: keras.Model,
        mask_ratio: float = 0.75,
        decoder_layers: int = 8,
        decoder_dim: int = 512,
        decoder_heads: int = 16,
        normalize_targets: bool = True,
        seed: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(model, **kwargs)
        config = self.architecture
        _check_architecture(config)
        self.mask_ratio = masking.check_share("mask_ratio", mask_ratio)
        self.decoder_layers = check_positive_integer("decoder_layers", decoder_layers)
        self.decoder_heads = check_positive_integer("decoder_heads", decoder_heads)
        self.decoder_dim = check_positive_integer("decoder_dim", decoder_dim)
        if decoder_dim % 4 or decoder_dim < 8 or decoder_dim % decoder_heads:
            raise ValueError(
                f"decoder_dim must be a multiple of 4, at least 8, and a multiple of decoder_heads. Received: "
                f"decoder_dim={decoder_dim}, decoder_heads={decoder_heads}"
            )
        self.normalize_targets = check_flag("normalize_targets", normalize_targets)
        num_values = math.prod(config.total_stride) * self.channels
        if normalize_targets and num_values == 1:
            raise ValueError("normalize_targets=True needs patches of more than one value. Set it to False.")
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        sizes = decoder_layers, decoder_dim, decoder_heads, num_values, config.num_prefix_tokens
        self.decoder = Decoder(*sizes, mlp=config.mlp, epsilon=config.layer_norm_epsilon, name="decoder")
        self.decoder.build((None, None, config.hidden_dim))
        self.built = True

    def call(self, images, noise=None, training=None):
        return self._predict_patches(images, noise)[0]

    def _predict_patches(self, images, noise):
        """Returns the result of `call`, and the normalised images, (B, H, W, C)."""
        num_prefix_tokens, ranks_and_mask = self.architecture.num_prefix_tokens, []

        def hide(tokens):
            batch_size, num_tokens, _ = ops.shape(tokens)
            num_patches = num_tokens - num_prefix_tokens
            num_visible = self._num_visible(num_patches)
            if noise is None:
                values = masking.draw(batch_size, num_patches, self.seed_generator)
            else:
                values = _check_noise(noise, (batch_size, num_patches))
            ranks = masking.ranks(values)
            ranks_and_mask.extend([ranks, ops.cast(ranks >= num_visible, "float32")])
            return select_patches(tokens, ranks, num_visible, num_prefix_tokens)

        tokens, images, patches = self.encode(images, {"position_dropout": hide})
        ranks, mask = ranks_and_mask
        targets = self._flat_patches(images)
        if self.normalize_targets:
            mean, deviation = _statistics(targets)
            targets = (targets - mean) / deviation
        return {"predictions": self.decoder(tokens, ranks, patches), "targets": targets, "mask": mask}, images

    def _num_visible(self, num_patches):
        num_visible = share_of(num_patches, 1 - self.mask_ratio)
        if isinstance(num_patches, int) and not 0 < num_visible < num_patches:
            raise ValueError(
                f"mask_ratio={self.mask_ratio} of {num_patches} patches leaves {num_visible} of them visible. At least "
                f"one must be visible and one hidden. Use larger images, smaller patches or another ratio."
            )
        return num_visible

    def reconstruct(self, images, noise=None):
        """Returns the masked images and the images that the model reconstructs from them.

        With `normalize_targets`, the model does not predict the mean and the standard deviation of a patch, so those of
        the original patch are used.

        Args:
            images: (B, H, W, C), as the model expects them.
            noise: As in the call arguments of `MaskedAutoencoder`.

        Returns:
            A `Reconstruction`: `masked` and `reconstructed`, (B, H, W, C) from 0 to 1. Rows and columns that do not
            fill a patch are cut off.
        """
        outputs, images = self._predict_patches(images, noise)
        predictions = outputs["predictions"]
        if self.normalize_targets:
            mean, deviation = _statistics(self._flat_patches(images))
            predictions = predictions * deviation + mean
        return self._reconstruction(images, self.to_pixels(self._image(predictions, images)), outputs["mask"])


@keras.saving.register_keras_serializable(package="keras_vit")
class Decoder(keras.layers.Layer):
    """The decoder of a masked autoencoder (arXiv 2111.06377, section 3). It predicts all pixels from visible tokens.

    Args:
        num_layers: Number of blocks.
        hidden_dim: Width of the tokens.
        num_heads: Number of attention heads.
        num_values: Number P Q C of values in a patch.
        num_prefix_tokens: Number p of tokens before the patch tokens.
        mlp: Activation of the MLP, as in `keras_vit.layers.MlpBlock`.
        epsilon: Epsilon of the LayerNorms.

    Call arguments:
        tokens: (B, p + V, D), the prefix tokens, and the tokens of the visible patches in the order of their ranks.
        patch_ranks: (B, N), the rank of each patch. The patches with the V lowest ranks are visible.
        patches: (B, h, w, D), the map of the patches. Only its size is used.

    Returns:
        (B, N, P Q C), float32.
    """

    def __init__(
        self,
        num_layers: int,
        hidden_dim: int,
        num_heads: int,
        num_values: int,
        num_prefix_tokens: int,
        mlp: str,
        epsilon: float,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.num_values = num_values
        self.num_prefix_tokens = num_prefix_tokens
        self.mlp = mlp
        self.epsilon = epsilon
        self.projection = keras.layers.Dense(hidden_dim, name="projection")
        # The layer's frequency i of n is `base ** (-i / (n - 1))`. With this base, it equals the authors' frequency,
        # `10000 ** (-i / n)`.
        num_frequencies = hidden_dim // 4
        self.position_embedding = layers.SincosPositionEmbedding(
            10_000.0 ** ((num_frequencies - 1) / num_frequencies), name="position_embedding"
        )
        self.blocks = [
            layers.EncoderBlock(
                layers.MultiHeadSelfAttention(num_heads, name="attention"),
                layers.MlpBlock(4 * hidden_dim, mlp, name="mlp"),
                epsilon,
                name=f"block_{i}",
            )
            for i in range(num_layers)
        ]
        self.norm = layers.LayerNormalization(epsilon=epsilon, name="norm")
        self.predictions = keras.layers.Dense(num_values, dtype="float32", name="predictions")

    def build(self, tokens_shape):
        self.mask_token = self.add_weight(
            name="mask_token", shape=(1, 1, self.hidden_dim), initializer=keras.initializers.RandomNormal(stddev=0.02)
        )
        self.projection.build(tokens_shape)
        shape = (None, None, self.hidden_dim)
        for layer in (*self.blocks, self.norm, self.predictions):
            layer.build(shape)
        self.position_embedding.build(shape, (None, None, None, self.hidden_dim))

    def call(self, tokens, patch_ranks, patches):
        tokens = self.projection(tokens)
        prefix, visible = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        batch_size, num_patches = ops.shape(patch_ranks)
        shape = (batch_size, num_patches - ops.shape(visible)[1], self.hidden_dim)
        hidden = ops.broadcast_to(ops.cast(self.mask_token, tokens.dtype), shape)
        by_rank = ops.concatenate([visible, hidden], axis=1)
        in_place = ops.take_along_axis(by_rank, patch_ranks[:, :, None], axis=1)
        tokens = self.position_embedding(ops.concatenate([prefix, in_place], axis=1), patches)
        for block in self.blocks:
            tokens = block(tokens)
        return self.predictions(self.norm(tokens[:, self.num_prefix_tokens :]))


def _statistics(patches):
    """The mean and the standard deviation of each patch, both (B, N, 1), computed as in the authors' code."""
    mean = ops.mean(patches, axis=-1, keepdims=True)
    variance = ops.sum(ops.square(patches - mean), axis=-1, keepdims=True) / (patches.shape[-1] - 1)
    return mean, ops.sqrt(variance + 1e-6)


def _check_noise(noise, shape):
    """Converts noise to a tensor. Checks all known sizes of its shape, which must be (B, N)."""
    noise = ops.convert_to_tensor(noise, "float32")
    if not fits(noise.shape, [size if isinstance(size, int) else None for size in shape]):
        raise ValueError(f"noise must be of shape (B, N) = {shape}. Received: shape {tuple(noise.shape)}")
    return noise


def _check_architecture(config):
    kind = config.position_embedding
    reasons = {
        "a stem": (config.stem is not None, "its convolutions need the hidden patches. Use stem=None"),
        "relative positions": (kind == "relative", "they need all tokens. Use position_embedding='learned_1d'"),
        "rotary positions": (
            config.rotary is not None,
            "the attention rotates the tokens of all patches. Use rotary=None",
        ),
        "positions in every layer": (
            config.position_placement != "stem",
            "they need all patches in every block. Use position_placement='stem'",
        ),
        "axial attention": (config.axial, "it needs whole rows and columns of patches. Use axial=False"),
    }
    for what, (has_it, why) in reasons.items():
        if has_it:
            raise ValueError(
                f"The encoder of a masked autoencoder only runs on the visible patches. A model with {what} cannot do "
                f"this: {why}, or pre-train with MaskedPatchPrediction."
            )
