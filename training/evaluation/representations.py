"""What a frozen model makes of images. N images, D features."""

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import representation
from keras_vit.decoding import image_decoder
from training.data.pipeline import read_once
from training.errors import InputError


class _Representation(keras.Model):
    """The vector of each image that the classifier reads; of a model without a classifier, its output."""

    def __init__(self, model):
        super().__init__(name="representation")
        self.model = model
        if len(model.output_shape) != 2:
            raise InputError(
                f"The model gives no vector for an image, but an output of shape {model.output_shape}. Build it with a "
                f"pooling."
            )

    def call(self, images):
        return ops.cast(representation(self.model, images), "float32")


def features(model, source, recipe):
    """What a model's classifier would read, for each image of a source in its order: float32 (N, D).

    Args:
        model: A model of this package that takes pixels from 0 to 255, also nested in another.
        source: A source of `training.data.sources`.
        recipe: `training.recipe.config.Recipe`, of which the size of the batch is taken.

    Raises:
        InputError: If the model gives no vector for an image.
    """
    frozen = _Representation(model)
    batches = read_once(source, image_decoder(model), lambda label, image: 0, recipe.fit.batch_size)
    return np.concatenate([frozen.predict_on_batch(images)[is_real] for images, _, is_real in batches])
