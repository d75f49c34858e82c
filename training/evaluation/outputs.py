"""Outputs and features of a model for the images of a data set. Shapes: B batch, H W C image, N images, D features."""

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import representation
from keras_vit.inference import predictor
from training.data.pipeline import read_once, read_splits
from training.data.samples import sample_decoder
from training.data.subsets import select
from training.errors import InputError
from training.evaluation.metrics import evenly_spaced


class Predictions:
    """The predictions of a model for all images of one split or several, computed once while they are iterated.

    Iterating yields tuples: the index of the first image of a batch, images (B, H, W, C), labels (B, ...) and outputs
    (B, ...), as NumPy arrays or structures of them. `total` is the number of images, and `count` the number of those
    that were computed. `examples` is {index: (image, label, output)} of evenly spaced images.

    Args:
        model: A model of this package.
        dataset: `training.data.dataset.Dataset`
        splits: Name of the split, or a list of names.
        read_label: TensorFlow function that returns the label of a decoded sample.
        recipe: `training.recipe.config.Recipe` with the batch size.
        num_examples: Number of examples.
        outputs: Model that computes the outputs, if they are not those of `model`.
    """

    def __init__(self, model, dataset, splits, read_label, recipe, num_examples=0, outputs=None):
        self._compute = predictor(outputs or model)
        decode, size = sample_decoder(model), recipe.fit.batch_size
        self.total, self._batches = read_splits(dataset, splits, decode, read_label, size)
        self._chosen = evenly_spaced(num_examples, self.total)
        self.count, self.examples = 0, {}

    def __iter__(self):
        for images, labels, is_real in self._batches:
            # Padding is removed only after the prediction, because Keras would compile the model for a smaller batch.
            batch = _rows((images, labels, self._compute(images)), np.flatnonzero(is_real))
            first, self.count = self.count, self.count + int(is_real.sum())
            for index in sorted(self._chosen.intersection(range(first, self.count))):
                self.examples[index] = _rows(batch, index - first)
            yield first, *batch


def _rows(arrays, rows):
    """Copies rows of arrays, by index. A view would keep the whole batch in memory."""
    return keras.tree.map_structure(lambda array: np.asarray(array).take(rows, axis=0), arrays)


class Pictures:
    """The images that a report shows: `examples`, evenly spaced, and `worst`, with the largest errors, largest first.

    Both are {index: (error, array, ...)}.

    Args:
        most: Number of examples and of worst images.
        total: Number of images.
    """

    def __init__(self, most, total):
        self._most, self._chosen = most, evenly_spaced(most, total)
        self.examples, self.worst = {}, {}

    def add(self, index, error, *arrays):
        """Adds an image, by its index in the split, with its error and arrays or structures of arrays."""
        # A view would keep the whole batch in memory.
        shown = error, *keras.tree.map_structure(np.array, arrays)
        if index in self._chosen:
            self.examples[index] = shown
        ranked = sorted([*self.worst.items(), (index, shown)], key=lambda item: -item[1][0])
        self.worst = dict(ranked[: self._most])


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
