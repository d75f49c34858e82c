"""Defines the UCI optical digits of scikit-learn as a data set of TFDS, so that they are read like other data sets."""

import numpy as np
import tensorflow_datasets as tfds


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
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")  # (1797, 8, 8, 1), from 0 to 255
        indices = np.arange(len(images))
        train, test = train_test_split(indices, test_size=0.2, random_state=0, stratify=digits.target)
        return {
            "train": self._generate_examples(train, images, digits.target),
            "test": self._generate_examples(test, images, digits.target),
        }

    def _generate_examples(self, indices, images, labels):
        for index in indices:
            yield int(index), {"image": images[index], "label": int(labels[index])}
