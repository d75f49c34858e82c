"""Masked patch prediction. Shapes: B batch, N patches, C channels, k predictions per patch."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_choice
from keras_vit.pretraining.masking import PatchCorruption, check_share
from keras_vit.pretraining.pretrainer import Pretrainer, mean_of_hidden

TARGETS = ("mean_color", "small_patch", "pixels")
_LEVELS = 8  # 3 bits.
_SMALL = 4  # Height and width of the small patch.
_MAX_CHANNELS = 4


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPrediction(Pretrainer):
    """Pre-trains a model to predict the content of hidden patches from the visible patches.

    The method is from ViT (arXiv 2010.11929), appendix B.1.2. Before positions are added, a share of the patches is
    corrupted. Most of these patches are replaced by a learned `[mask]` embedding (see `PatchCorruption`). A linear head
    predicts the original content of each corrupted patch from the encoder's output. The head's weights start at zero.

    The model is trained in place. Afterwards, save it with `keras_vit.save_weights` and fine-tune it. `fit`, `evaluate`
    and `predict` take images as the model expects them. Labels are accepted but not used. Each call corrupts different
    patches. A `.keras` file contains the model, the `[mask]` embedding, the head and the optimizer.

    Args:
        model: A model of `keras_vit.ViT` with any input size, stem and position embedding, with or without a head.
        corruption_rate: Share of the patches of each image that are corrupted, between 0 and 1.
        target: Prediction target of a patch. `"mean_color"`: the mean of each channel in 3 bits, one of 8^C classes
            (512 for RGB); `"small_patch"`: the mean color of each cell of a 4 x 4 grid in the patch; `"pixels"`: all
            pixels of the patch in [0, 1], for which the loss is the squared error. Targets are computed from the images
            that the model gets. If these images were augmented, the targets are augmented too.
        seed: Integer seed of the corruption, or `None`.

    Call arguments:
        images: (B, H, W, C), as the model expects them.
        training: Whether dropout and drop path are active.

    Returns:
        A dictionary: `"predictions"`, logits (B, N, k, classes) or pixels (B, N, P Q C); `"targets"`, classes (B, N, k)
        or pixels (B, N, P Q C); `"mask"`, (B, N), 1 for corrupted patches.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If `model` is not a Vision Transformer of this package, or if a value is invalid.

    Example:

    >>> import keras, keras_vit, numpy as np
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=1)
    >>> pretraining = keras_vit.pretraining.MaskedPatchPrediction(model, seed=0)
    >>> pretraining.compile(keras.optimizers.Adam(2e-4))
    >>> history = pretraining.fit(np.zeros((2, 64, 96, 3)), verbose=0)  # doctest: +SKIP
    """

    ARGUMENTS = ("corruption_rate", "target", "seed")

    def __init__(
        self,
        model: keras.Model,
        corruption_rate: float = 0.5,
        target: str = "mean_color",
        seed: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self.corruption_rate = check_share("corruption_rate", corruption_rate)
        self.target = check_choice("target", target, TARGETS)
        self.seed = seed
        stride, channels = self.architecture.total_stride, self.channels
        if target == "small_patch" and any(side % _SMALL for side in stride):
            raise ValueError(
                f"target='small_patch' divides each patch into {_SMALL} x {_SMALL} cells, so its sides must be "
                f"multiples of {_SMALL} pixels. Received: patches of {stride[0]} x {stride[1]}. Use 'mean_color' or "
                f"'pixels'."
            )
        if target != "pixels" and channels > _MAX_CHANNELS:
            raise ValueError(
                f"target={target!r} has {_LEVELS}^C classes, so images have at most {_MAX_CHANNELS} channels. "
                f"Received: {channels} channels. Use target='pixels'."
            )
        self.has_classes = target != "pixels"
        self.outputs_per_patch = _SMALL**2 if target == "small_patch" else 1
        size = self.outputs_per_patch * _LEVELS**channels if self.has_classes else math.prod(stride) * channels
        self.corruption = PatchCorruption(corruption_rate, seed, name="corruption")
        self.head = keras.layers.Dense(size, kernel_initializer="zeros", dtype="float32", name="head")
        self.corruption.build((None, None, None, self.architecture.hidden_dim))
        self.head.build((None, None, self.architecture.hidden_dim))
        if self.has_classes:
            self.accuracy_metric = keras.metrics.Mean(name="accuracy")
        self.built = True

    def call(self, images, training=None):
        return self._predict_patches(images)[0]

    def _predict_patches(self, images):
        """Returns the result of `call`, and the normalised images, (B, H, W, C)."""
        masks = []

        def corrupt(patches):
            patches, is_corrupted = self.corruption(patches)
            masks.append(is_corrupted)
            return patches

        tokens, images, _ = self.encode(images, {"patch_embedding": corrupt})
        predictions = self.head(tokens[:, self.architecture.num_prefix_tokens :])
        targets = self._targets(self.patches_of(self.to_pixels(images)))
        if self.has_classes:
            shape = (-1, ops.shape(predictions)[1], self.outputs_per_patch, _LEVELS ** images.shape[-1])
            predictions = ops.reshape(predictions, shape)
        return {"predictions": predictions, "targets": targets, "mask": masks[0]}, images

    def reconstruct(self, images):
        """Returns the images with gray corrupted patches, and the images with predicted patches.

        A color in 3 bits is shown as the middle of its range. A tenth of the corrupted patches does not change in the
        input of the encoder (see `PatchCorruption`), but is gray, too.

        Args:
            images: (B, H, W, C), as the model expects them.

        Returns:
            A `Reconstruction`: `masked` and `reconstructed`, (B, H, W, C) from 0 to 1. Rows and columns that do not
            fill a patch are cut off.
        """
        outputs, images = self._predict_patches(images)
        predictions = outputs["predictions"]
        pixels = self._colors(predictions) if self.has_classes else predictions
        return self._reconstruction(images, self._image(pixels, images), outputs["mask"])

    def _colors(self, predictions):
        """The pixels (B, N, P, Q, C) of the most probable classes, from logits (B, N, k, classes)."""
        levels = ops.argmax(predictions, axis=-1)[..., None] // self._place_values % _LEVELS  # (B, N, k, C)
        (height, width), side = self.architecture.total_stride, math.isqrt(self.outputs_per_patch)
        colors = (ops.cast(levels, "float32") + 0.5) / _LEVELS
        cells = ops.reshape(colors, (-1, levels.shape[1], side, 1, side, 1, self.channels))
        pixels = ops.tile(cells, (1, 1, 1, height // side, 1, width // side, 1))
        return ops.reshape(pixels, (-1, levels.shape[1], height, width, self.channels))

    def _patch_losses(self, outputs):
        if not self.has_classes:
            return super()._patch_losses(outputs)
        losses = ops.sparse_categorical_crossentropy(outputs["targets"], outputs["predictions"], from_logits=True)
        return ops.mean(losses, axis=-1)

    def image_accuracies(self, outputs):
        """The share of right predictions for the corrupted patches of each image, (B,). The targets are classes."""
        is_right = ops.equal(ops.argmax(outputs["predictions"], axis=-1), ops.cast(outputs["targets"], "int32"))
        return mean_of_hidden(ops.mean(ops.cast(is_right, "float32"), axis=-1), outputs["mask"])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self.has_classes:
            self.accuracy_metric.update_state(self.image_accuracies(y_pred), sample_weight)
        return self.get_metrics_result()

    def _targets(self, pixels):
        """Computes the targets of patches (B, N, P, Q, C) in [0, 1]: classes (B, N, k), or pixels (B, N, P Q C)."""
        _, num_patches, height, width, channels = ops.shape(pixels)
        if not self.has_classes:
            return ops.reshape(pixels, (-1, num_patches, height * width * channels))
        side = math.isqrt(self.outputs_per_patch)
        cells = ops.reshape(pixels, (-1, num_patches, side, height // side, side, width // side, channels))
        colors = ops.reshape(ops.mean(cells, axis=(3, 5)), (-1, num_patches, side * side, channels))
        levels = ops.cast(ops.clip(ops.floor(colors * _LEVELS), 0, _LEVELS - 1), "int32")
        return ops.sum(levels * self._place_values, axis=-1)

    @property
    def _place_values(self):
        """The factor of each channel's level in the number of a class, (C,)."""
        return ops.convert_to_tensor([_LEVELS**c for c in reversed(range(self.channels))], "int32")
