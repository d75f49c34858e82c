"""Features of a frozen model. Shapes: N images, D features."""

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import representation
from keras_vit.inference import predictor
from training.data.pipeline import read_once
from training.data.samples import sample_decoder
from training.data.subsets import select
from training.errors import InputError


class _Representation(keras.Model):
    """Computes the input of the classifier, or the output of a model without a classifier."""

    def __init__(self, model):
        super().__init__(name="representation")
        self.model = model
        if len(model.output_shape) != 2:
            raise InputError(
                f"The model must output one vector per image. Received: a model with output shape "
                f"{model.output_shape}. Build it with a pooling."
            )

    def call(self, images):
        return ops.cast(representation(self.model, images), "float32")


def features(model, source, recipe):
    """The input of the model's classifier for all images of a source, in order, float32 (N, D).

    Args:
        model: A model of this package that accepts pixels from 0 to 255. It may be nested in another model.
        source: A source of `training.data.sources`.
        recipe: `training.recipe.config.Recipe` with the batch size.

    Raises:
        InputError: If the model does not output one vector per image.
    """
    compute = predictor(_Representation(model))
    batches = read_once(source, sample_decoder(model), lambda sample: 0, recipe.fit.batch_size)
    return np.concatenate([compute(images)[is_real] for images, _, is_real in batches])


def features_of_some(model, source, recipe, indices):
    """The features of some images of a source, as rows of an array for all of its images, float32 (N, D).

    Args:
        model, source, recipe: As in `features`.
        indices: Indices of the images, integers in ascending order. The other rows must not be read.
    """
    found = features(model, select(source, indices), recipe)
    # Rows of other images are never written, so the operating system allocates no memory for them.
    rows = np.zeros((source.size, found.shape[1]), "float32")
    rows[indices] = found
    return rows
