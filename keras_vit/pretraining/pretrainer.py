"""Base class of models that pre-train an encoder.

Shapes: B batch, H W C image, h w grid, N = h w patches of P x Q pixels.
"""

import math
import typing

import keras
import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.architectures import read_architecture
from keras_vit.preprocessing import preprocessing_layer, vision_model


class Reconstruction(typing.NamedTuple):
    """Result of `reconstruct`: NumPy arrays of images (B, H, W, C) in [0, 1]."""

    masked: np.ndarray
    """The images, in which the patches to predict are gray."""
    reconstructed: np.ndarray
    """The images, in which these patches are replaced by what the model predicts."""


class Pretrainer(keras.Model):
    """Trains the encoder of a model on images, with a loss that the subclass defines.

    The model runs up to its final LayerNorm, or to its last block if no LayerNorm precedes the pooling. A subclass can
    change the outputs of layers. The pooling and the head are neither run nor trained.

    Args:
        model: A model of this package.
        **kwargs: Arguments of `keras.Model`.

    Class attributes:
        ARGUMENTS: Names of the further arguments of a subclass. The attributes have the same names.
    """

    ARGUMENTS: tuple[str, ...] = ()

    def __init__(self, model: keras.Model, **kwargs: typing.Any) -> None:
        super().__init__(autocast=False, **kwargs)  # Casting to half precision would round the pixels.
        if vision_model(model) is not model:
            raise ValueError(
                f"{model.name!r} contains a model of keras_vit. Pass the inner model, {vision_model(model).name!r}."
            )
        missing = {"patch_embedding", "position_dropout"} - {layer.name for layer in model.layers}
        if missing:
            raise ValueError(
                f"A Vision Transformer is needed, and {model.name!r} has no layer {min(missing)!r}. Build the model "
                f"with keras_vit.ViT."
            )
        self.model = model
        layer = preprocessing_layer(model)
        self.architecture = read_architecture(layer.architecture)
        if self.architecture.token_merging:
            raise ValueError(
                f"Each patch is predicted from its own token, but a model with "
                f"token_merging={self.architecture.token_merging} merges tokens. Pre-train the model with "
                f"token_merging=0, and load the weights into a model with merging."
            )
        if self.architecture.patch_dropout_rate:
            raise ValueError(
                f"Each patch is predicted, but a model with patch_dropout_rate={self.architecture.patch_dropout_rate} "
                f"removes patches in training. Pre-train the model with patch_dropout_rate=0."
            )
        self.channels = layer.output.shape[-1]
        last_block = f"encoder_block_{self.architecture.num_layers - 1}"
        last = "encoder_norm" if self.architecture.has_encoder_norm else last_block
        self.encoder = keras.Model(model.inputs[0], model.get_layer(last).output, name="encoder")

    @property
    def trainable_variables(self):
        # The head does not run and has no gradients, but weight decay would still shrink it.
        unused = {id(variable) for variable in self.model.variables}
        unused -= {id(variable) for variable in self.encoder.variables}
        return [variable for variable in super().trainable_variables if id(variable) not in unused]

    @property
    def trainable_weights(self):
        return self.trainable_variables

    def compile(self, optimizer, **options):
        """Configures the training like `keras.Model.compile`. The loss and the metrics are fixed.

        Args:
            optimizer: A Keras optimizer, or the name of an optimizer.
            **options: Arguments of `keras.Model.compile`, except the arguments for the loss and the metrics.

        Raises:
            ValueError: If a loss or metrics are given.
        """
        own = ("loss", "loss_weights", "metrics", "weighted_metrics")
        given = [name for name in own if options.get(name) is not None]
        if given:
            raise ValueError(
                f"{type(self).__name__} defines its own loss and metrics. Received: {', '.join(given)}. Leave out "
                f"these arguments."
            )
        super().compile(optimizer=optimizer, **options)

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        if not self.optimizer.built:  # Otherwise the step creates variables, and TensorFlow traces it twice.
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def encode(self, images, changes):
        """Runs the encoder on images.

        Args:
            images: (B, H, W, C), as the model expects them.
            changes: {name of a layer: function that gets the layer's output and returns its replacement}

        Returns:
            The tokens (B, T, D); the normalised images (B, H, W, C); and the map of the patches, (B, h, w, D).
        """
        outputs = {}

        def change(layer, _, output):
            if layer.name in ("preprocessing", "patch_embedding"):
                outputs[layer.name] = output
            return changes[layer.name](output) if layer.name in changes else output

        tokens = graph.run(self.encoder, images, change)
        # Targets get no gradient, even if layers with weights precede the preprocessing.
        return tokens, ops.stop_gradient(outputs["preprocessing"]), outputs["patch_embedding"]

    def _reconstruction(self, images, predicted, mask):
        """A `Reconstruction`.

        Args:
            images: The normalised images, (B, H, W, C).
            predicted: The predictions of all patches as images in [0, 1], without the rows and columns that fill no
                patch.
            mask: (B, N), 1 for the patches to predict.
        """
        patches = self._flat_patches(images)
        original = self.to_pixels(self._image(patches, images))
        is_hidden = self._image(ops.broadcast_to(mask[:, :, None], ops.shape(patches)), images) > 0
        pictures = ops.where(is_hidden, 0.5, original), ops.where(is_hidden, predicted, original)
        return Reconstruction(*(graph.to_array(ops.clip(picture, 0, 1)) for picture in pictures))

    def _flat_patches(self, images):
        """Cuts images (B, H, W, C) into patches (B, N, P Q C)."""
        patches = self.patches_of(images)
        return ops.reshape(patches, (-1, ops.shape(patches)[1], math.prod(patches.shape[2:])))

    def _image(self, patches, images):
        """Assembles patches (B, N, P Q C) to images of the same size as `images`, (B, H, W, C)."""
        height, width = self.architecture.total_stride
        rows, columns, channels = images.shape[1] // height, images.shape[2] // width, images.shape[3]
        cut = ops.reshape(patches, (-1, rows, columns, height, width, channels))
        return ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, rows * height, columns * width, channels))

    def to_pixels(self, images):
        """Converts normalised images (..., C) to pixels in [0, 1]."""
        return preprocessing_layer(self.model).to_pixels(images)

    def patches_of(self, images):
        """Cuts images (B, H, W, C) into one patch for each patch token, (B, N, P, Q, C), row by row."""
        height, width = self.architecture.total_stride
        sizes = zip(images.shape[1:3], (height, width), strict=True)
        # If the stride does not divide a side, a stem pads the image, and the last tokens may only contain padding.
        if self.architecture.stem and any(isinstance(size, int) and size % side for size, side in sizes):
            raise ValueError(
                f"With a stem, the sides of images must be multiples of {height} x {width} pixels. Otherwise the stem "
                f"pads them, and some tokens have no patch. Received: images of {images.shape[1]} x {images.shape[2]}"
            )
        _, rows, columns, channels = ops.shape(images)
        rows, columns = rows // height, columns // width
        images = images[:, : rows * height, : columns * width]
        cut = ops.reshape(images, (-1, rows, height, columns, width, channels))
        cut = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
        return ops.reshape(cut, (-1, rows * columns, height, width, channels))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The mean loss of the hidden patches plus the losses of layers, such as regularizers.

        Labels `y` are not used. `sample_weight`, (B,), contains a factor for each image.
        """
        losses = self.image_losses(y_pred)
        weights = ops.ones_like(losses) if sample_weight is None else ops.cast(sample_weight, losses.dtype)
        weights = ops.reshape(weights, (-1,))
        return sum(self.losses, ops.divide_no_nan(ops.sum(weights * losses), ops.sum(weights)))

    def image_losses(self, outputs):
        """The mean loss of the hidden patches of each image, (B,), from the outputs of the model."""
        return mean_of_hidden(self._patch_losses(outputs), outputs["mask"])

    def _patch_losses(self, outputs):
        """The loss of each patch, (B, N)."""
        return ops.mean(ops.square(outputs["predictions"] - outputs["targets"]), axis=-1)

    def get_config(self):
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model, **{name: getattr(self, name) for name in self.ARGUMENTS}}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})


def mean_of_hidden(values, mask):
    """The mean over the hidden patches of each image, (B,), of values (B, N)."""
    return ops.sum(mask * values, axis=1) / ops.sum(mask, axis=1)
