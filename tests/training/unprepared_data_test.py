"""If a TFDS data set is not on the machine, an error soon explains how to get it."""

import time

import pytest
import tensorflow_datasets as tfds

from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.config import Data


class OutOfReach(tfds.core.GeneratorBasedBuilder):
    """A data set with one file on a server that does not answer."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        dl_manager.download("http://127.0.0.1:9/images.tar")

    def _generate_examples(self):
        raise NotImplementedError


def test_a_machine_without_a_network_says_so_within_seconds(tmp_path):
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"out_of_reach cannot be prepared .*On a machine with a network"):
        load_dataset(Data(dataset="out_of_reach", tfds_directory=str(tmp_path)))
    assert time.monotonic() - begin < 30  # With the default number of retries in TFDS, it takes more than 200 seconds.


def test_files_that_must_be_put_there_by_hand_are_named(tmp_path):
    expected = rf"(?s){tmp_path}/downloads/manual .*ILSVRC2012_img_train\.tar.* Put them into that folder yourself"
    with pytest.raises(InputError, match=expected):
        load_dataset(Data(dataset="imagenet2012", tfds_directory=str(tmp_path)))
