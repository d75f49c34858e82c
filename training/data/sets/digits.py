"""The UCI optical digits of scikit-learn, as a data set of TFDS, and generated pictures of three digits.

A picture depends only on its split and number. Scans of the test split are only in pictures of the split "test".
"""

import functools

import numpy as np
import tensorflow_datasets as tfds

NUM_PICTURES = {"train": 8000, "test": 1000}
PICTURE_SHAPE = (10, 30, 1)  # Height, width and channels.
_SIDE, _CELL = 8, 10  # Sides of a scan, and of the square in which it has a random position, in pixels.
_FIRST = {"train": 0, "test": 1_000_000}  # Seed of each split's first picture. The splits have no seed in common.


class Digits(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """1,797 scans of handwritten digits, 8 x 8 pixels, 16 levels of gray; a stratified fifth is the test split.

    Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
    (https://doi.org/10.24432/C50P49), as distributed with scikit-learn.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(shape=(8, 8, 1)), "label": tfds.features.ClassLabel(num_classes=10)}
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://doi.org/10.24432/C50P49",
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(*scans) for split, scans in load_scans().items()}

    def _generate_examples(self, indices, images, labels):
        for index, image, label in zip(indices, images, labels, strict=True):
            yield int(index), {"image": image, "label": int(label)}


@functools.cache
def load_scans():
    """Reads the scans of scikit-learn: {split: (indices (N,), images, uint8 (N, 8, 8, 1), digits, int64 (N,))}."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")  # From 0 to 255.
    indices = np.arange(len(images))
    train, test = train_test_split(indices, test_size=0.2, random_state=0, stratify=digits.target)
    splits = {"train": train, "test": test}
    return {split: (chosen, images[chosen], digits.target[chosen]) for split, chosen in splits.items()}


def draw_triple(split, index):
    """Draws a picture of three digits beside each other.

    Args:
        split: "train" or "test".
        index: Number of the picture, from 0.

    Returns:
        Pixels, uint8 (10, 30, 1), and the digits from left to right, int64 (3,).
    """
    rng, (_, scans, labels) = np.random.default_rng(_FIRST[split] + index), load_scans()[split]
    chosen = rng.integers(len(scans), size=PICTURE_SHAPE[1] // _CELL)
    image = np.zeros(PICTURE_SHAPE, "uint8")
    for number, scan in enumerate(scans[chosen]):
        top, left = rng.integers(_CELL - _SIDE + 1, size=2)
        left += number * _CELL
        image[top : top + _SIDE, left : left + _SIDE] = scan
    return image, labels[chosen]
