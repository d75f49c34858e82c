"""ObjectNet: photographs of household objects in unusual places, for classifiers of ImageNet-1k. Shapes: C classes.

Barbu et al., "ObjectNet: A large-scale bias-controlled dataset for pushing the limits of object recognition models",
NeurIPS 2019. Its licence forbids training. 113 of the 313 classes are also in ImageNet-1k. Some of the 113 correspond
to several ImageNet classes. `objectnet_classes.csv` contains the folders and their ImageNet classes, from
`folder_to_objectnet_label.json` and `folder_to_imagenet_1k.json` in github.com/abarbu/objectnet-template-tensorflow.
"""

import csv
import dataclasses
import functools
import pathlib

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding import decode_upright
from keras_vit.label_spaces import imagenet1k_classes
from training.data.dataset import Dataset
from training.data.subsets import read_labels, select

_TABLE = pathlib.Path(__file__).with_name("objectnet_classes.csv")
_BORDER = 2  # Width in pixels of the red frame around each image. The authors' programs also cut off this width.


@functools.cache
def imagenet_classes():
    """{folder of ObjectNet: tuple of the indices of its ImageNet-1k classes}. The tuple may be empty."""
    indices = {wnid: index for index, (wnid, _) in enumerate(imagenet1k_classes())}
    with _TABLE.open() as file:
        return {row["folder"]: tuple(indices[wnid] for wnid in row["wnids"].split()) for row in csv.DictReader(file)}


def is_objectnet(class_names):
    """Whether all classes are folders of ObjectNet, and at least one of them is also in ImageNet-1k."""
    known = imagenet_classes()
    return set(class_names) <= known.keys() and any(known[name] for name in class_names)


@dataclasses.dataclass(frozen=True)
class Shared:
    """The part of ObjectNet with classes that are also in ImageNet-1k.

    `dataset` has only these classes. `num_left_out` is the number of images of other classes.
    """

    dataset: Dataset
    num_left_out: int

    def restrict(self, probabilities, has_sigmoids=False):
        """Restricts probabilities of ImageNet-1k's classes to the shared classes.

        This follows Kolesnikov et al. (BiT, arXiv 1912.11370). If several ImageNet classes correspond to one class of
        ObjectNet, this class gets the largest of their probabilities. The most probable shared ImageNet class thus
        determines the prediction.

        Args:
            probabilities: (B, 1000)
            has_sigmoids: Whether each probability is the output of a sigmoid, instead of a softmax over all classes.

        Returns:
            (B, C). If `has_sigmoids` is false, the probabilities of an image add up to 1.
        """
        known = imagenet_classes()
        columns = [probabilities[:, list(known[name])].max(axis=1) for name in self.dataset.class_names]
        best = np.stack(columns, axis=1)
        return best if has_sigmoids else best / np.maximum(best.sum(axis=1, keepdims=True), 1e-30)


def shared_part(dataset, splits):
    """Selects the images of shared classes from the given splits, and removes their red frames. Returns a `Shared`."""
    known = imagenet_classes()
    names = tuple(name for name in dataset.class_names if known[name])
    new_labels = np.array([names.index(name) if name in names else -1 for name in dataset.class_names])

    def change(example):
        image = decode_upright(example["image"], 3)[_BORDER:-_BORDER, _BORDER:-_BORDER]
        label = tf.gather(tf.constant(new_labels, tf.int64), example["label"])
        return {"image": tf.io.encode_png(image, compression=0), "label": label}

    sources, num_left_out = {}, 0
    for split in splits:
        source = dataset.splits[split]
        is_shared = new_labels[read_labels(source, f"the {split} split")] >= 0
        num_left_out += int((~is_shared).sum())
        sources[split] = select(source, np.flatnonzero(is_shared)).map(change)
    return Shared(Dataset(names, sources), num_left_out)
