"""What models that pre-train an encoder share. B batch, H W C image, h w grid, N = h w patches of P x Q pixels."""

import keras
import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.architectures import read_architecture
from keras_vit.preprocessing import preprocessing_layer, vision_model


class Pretrainer(keras.Model):
    """Trains the encoder of a model on images, with a loss of its own.

    The model's own graph is run, up to the last LayerNorm before the pooling, and changed where a subclass wants it.
    What comes behind, pooling and head, is neither run nor trained.

    Args:
        model: A model of this package.
        **kwargs: Those of `keras.Model`.
    """

    def __init__(self, model, **kwargs):
        super().__init__(autocast=False, **kwargs)  # Images are pixels, which half the precision would spoil.
        _check_model(model)
        self.model = model
        layer = preprocessing_layer(model)
        self.architecture = read_architecture(layer.architecture)
        _check_unmerged(self.architecture)
        self.channels = layer.output.shape[-1]
        has_norm = self.architecture.norm_placement == "before_pooling"
        last = "encoder_norm" if has_norm else f"encoder_block_{self.architecture.num_layers - 1}"
        self.encoder = keras.Model(model.inputs[0], model.get_layer(last).output, name="encoder")

    @property
    def trainable_variables(self):
        # A head that is not run has no gradients, but weight decay would still shrink it.
        behind = {id(variable) for variable in self.model.variables}
        behind -= {id(variable) for variable in self.encoder.variables}
        return [variable for variable in super().trainable_variables if id(variable) not in behind]

    @property
    def trainable_weights(self):
        return self.trainable_variables

    def compile(self, optimizer, **options):
        """Configures the training, as `keras.Model.compile` does. There is no loss or metric to give.

        Args:
            optimizer: A Keras optimizer, or the name of one.
            **options: Those of `keras.Model.compile` that do not concern loss and metrics.

        Raises:
            ValueError: If a loss or metrics are given.
        """
        own = ("loss", "loss_weights", "metrics", "weighted_metrics")
        given = [name for name in own if options.get(name) is not None]
        if given:
            raise ValueError(
                f"{type(self).__name__} has a loss and metrics of its own. Received: {', '.join(given)}. Leave out "
                f"what concerns loss and metrics."
            )
        super().compile(optimizer=optimizer, **options)

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        if not self.optimizer.built:  # If the step made the optimizer's variables, TensorFlow would trace it twice.
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def encode(self, images, changes):
        """Runs the encoder on images (B, H, W, C).

        Args:
            images: As the model takes them.
            changes: {name of a layer: function of its output to what goes on in its place}

        Returns:
            The tokens (B, T, D); the images normalised, (B, H, W, C); and the map of the patches, (B, h, w, D).
        """
        found = {}

        def change(layer, _, output):
            if layer.name in ("preprocessing", "patch_embedding"):
                found[layer.name] = output
            return changes[layer.name](output) if layer.name in changes else output

        tokens = graph.run(self.encoder, images, change)
        # What is predicted depends on no weights, even of layers in front of the model's own.
        return tokens, ops.stop_gradient(found["preprocessing"]), found["patch_embedding"]

    def to_pixels(self, images):
        """Normalised images (..., C) as pixels in [0, 1]."""
        layer = preprocessing_layer(self.model)
        mean, std = (ops.convert_to_tensor(np.asarray(values), images.dtype) for values in (layer.mean, layer.std))
        return images * std + mean

    def patches_of(self, images):
        """Cuts images (B, H, W, C) into what the tokens of the patches come from, (B, N, P, Q, C), row by row."""
        height, width = self.architecture.total_stride
        if self.architecture.stem is not None:
            _check_covered(images.shape[1:3], (height, width))
        _, rows, columns, channels = ops.shape(images)
        rows, columns = rows // height, columns // width
        images = images[:, : rows * height, : columns * width]
        cut = ops.reshape(images, (-1, rows, height, columns, width, channels))
        cut = ops.transpose(cut, (0, 1, 3, 2, 4, 5))
        return ops.reshape(cut, (-1, rows * columns, height, width, channels))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The mean loss of the hidden patches, and what layers add, such as regularizers.

        Labels `y` are not read; `sample_weight` (B,) weights the images.
        """
        weights = self.weights_of(y_pred, sample_weight)
        loss = self.loss_function(y_pred["targets"], y_pred["predictions"], sample_weight=weights)
        return sum(self.losses, loss)

    def weights_of(self, outputs, sample_weight=None):
        """The weight of each patch, (B, N): 0 for one that is not hidden, otherwise that of its image, by default 1."""
        weights = outputs["mask"]
        if sample_weight is None:
            return weights
        return weights * ops.reshape(ops.cast(sample_weight, weights.dtype), (-1, 1))

    def get_config(self):
        return {**super().get_config(), "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})


def _check_model(model):
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a model of keras_vit. Received: {model!r}")
    if vision_model(model) is not model:
        raise ValueError(
            f"{model.name!r} is a model around one of keras_vit: pass {vision_model(model).name!r}, which is inside it."
        )
    missing = {"patch_embedding", "position_dropout"} - {layer.name for layer in model.layers}
    if missing:
        raise ValueError(
            f"Patches are predicted by a Vision Transformer; {model.name!r} has no layer {min(missing)!r}. Build the "
            f"model with keras_vit.ViT."
        )


def _check_unmerged(config):
    if config.token_merging:
        raise ValueError(
            f"Each patch is predicted from a token of its own, and a model with token_merging={config.token_merging} "
            f"merges them. Pre-train the model with token_merging=0, and load the weights into one with merging."
        )


def _check_covered(sizes, stride):
    """Refuses images that a stem pads: their last tokens come from beyond the edge."""
    if any(isinstance(size, int) and size % side for size, side in zip(sizes, stride, strict=True)):
        raise ValueError(
            f"A model with a stem takes images that are multiples of {stride[0]} x {stride[1]} pixels here: others it "
            f"pads, and its last tokens have no patch to predict. Received: images of {sizes[0]} x {sizes[1]}"
        )
