"""Trains a head on the features of a frozen encoder. Shapes: B batch, T tokens, D hidden."""

import dataclasses
import functools
import operator
import pathlib

import tensorflow as tf

import keras_vit
from keras_vit.inference import predictor
from keras_vit.models.dense import encoder_and_head
from keras_vit.weights.assign import canonical_arrays, checksum
from keras_vit.weights.paths import layer_of
from training.data.augment import Augmentation
from training.data.feature_cache import cached_features, fingerprint

UNCHANGED = Augmentation(dict, lambda sample, seed: sample, lambda images, labels, seed, num_real: (images, labels))
"""No changes: the features are those of images that are changed already."""
read_label = operator.itemgetter("label")
"""Reads the label of an example with features, which contains it."""


def without_cache(recipe):
    """The recipe without `data.cache`: features are read from the disk."""
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, cache=False))


class FrozenEncoder:
    """The encoder of a model, whose features are computed once for each image and kept beside the runs.

    Args:
        model: Model of `keras_vit.Segmenter` or `keras_vit.DepthEstimator`.
        task: The task of the run, with its recipe.
        dataset: `training.data.dataset.Dataset`
        run: `training.runs.folder.Run`

    Attributes:
        head: Model from the features, {name: tokens (B, T, D)}, to the outputs of `model`.
    """

    def __init__(self, model, task, dataset, run):
        self._model, self._task, self._dataset, self._run = model, task, dataset, run
        self._encoder, self.head = encoder_and_head(model)
        self._folders = set()

    def features(self, split, decode, change, num_views=1):
        """The source of the features and labels of a split.

        Args:
            split: Name of the split.
            decode: Function of an example that returns a decoded sample.
            change: Function of a decoded sample and a seed that returns the changed sample.
            num_views: Number of views of each image.
        """
        recipe, source = self._task.recipe, self._dataset.splits[split]
        label = functools.partial(self._task.read_label, num_classes=len(self._dataset.class_names))

        def make_example(example, number):
            sample = change(decode(example), tf.stack([tf.constant(recipe.seed, tf.int64), number]))
            return sample["image"], label(sample)

        folder = pathlib.Path(self._run.folder).parent / "features" / fingerprint(self._facts(split, num_views))
        title = f"{split} images" if num_views == 1 else f"views of {split} images"
        limits, compute = (num_views, recipe.data.cache_limit * 1e9), predictor(self._encoder)
        features = cached_features(
            folder, source, make_example, compute, recipe.fit.batch_size, *limits, title, self._folders
        )
        self._folders.add(folder)
        return features

    def _facts(self, split, num_views):
        """Everything on which the features and labels of a split depend."""
        recipe, layers = self._task.recipe, {layer.name for layer in self._encoder.layers}
        data = dataclasses.replace(recipe.data, views=1, cache_limit=1)  # They do not change the features of a view.
        weights = canonical_arrays(self._model).items()
        return {
            "version": keras_vit.__version__,
            "architecture": keras_vit.describe(self._model).config.to_dict(),
            "weights": checksum({path: array for path, array in weights if layer_of(path) in layers}),
            "pixels": keras_vit.describe(self._model).pixels,
            "image": self._model.input_shape,
            "precision": recipe.fit.precision,
            "data": [recipe.task, data, self._dataset.class_names, self._dataset.splits[split].size, split, num_views],
            "contents": [(item.digest, item.label) for item in self._dataset.contents.items.get(split, ())],
            "changes": [recipe.augment, recipe.seed] if split == "train" else None,
        }
