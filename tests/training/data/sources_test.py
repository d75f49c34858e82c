"""Random subsets of the training images, for every kind of source."""

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.test_case import slow_except
from tests.training.fitting import keys_of
from tests.training.tiny_sets import TinySet
from training.data.loading import load_dataset
from training.data.sets.records import write_records
from training.data.sources import BatchShard, IndexedSource, StreamedSource, random_runs
from training.errors import InputError
from training.recipe.assignments import override

TOTAL = 37


class Numbered(TinySet):
    """Images with all pixels equal to the image's index."""

    features = {"image": tfds.features.Image(shape=(4, 4, 1)), "label": tfds.features.ClassLabel(num_classes=3)}  # noqa: RUF012
    numbers = {"train": range(TOTAL), "test": range(3)}  # noqa: RUF012

    def example(self, i):
        return {"image": np.full((4, 4, 1), i, "uint8"), "label": i % 3}


@pytest.fixture(scope="module", params=slow_except(["tfrecord"], ["tfrecord", "array_record", "folder", "records"]))
def recipe(request, tmp_path_factory, brief_recipe):
    """A recipe of `TOTAL` training images."""
    directory = tmp_path_factory.mktemp(request.param)
    of_tfds = ["data.dataset=numbered", f"data.tfds_directory={directory}", "data.validation_fraction=0"]
    if request.param in ("tfrecord", "array_record"):
        tfds.builder("numbered", data_dir=directory, file_format=request.param).download_and_prepare()
        return override(brief_recipe, of_tfds)
    if request.param == "folder":
        for i in range(TOTAL + 3):
            place = directory / ("train" if i < TOTAL else "test") / f"class{i % 3}"
            place.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("L", (4, 4), i).save(place / f"{i}.png")
    else:
        Numbered(data_dir=directory).download_and_prepare()
        write_records(load_dataset(override(brief_recipe, of_tfds).data), str(directory / "shards"), images_per_shard=8)
        directory = directory / "shards"
    changes = [f"data.dataset={request.param}", f"data.directory={directory}", "data.tfds_directory=none"]
    return override(brief_recipe, [*changes, "data.validation_fraction=0"])


def numbers(source, shard=None, seed=None):
    """The indices of an epoch's images, without padding."""
    keys = keys_of(source, shard or BatchShard(batch_size=1), seed=seed)
    images = (tf.constant(source.read(key)["image"]) for position, key in keys if position >= 0)
    return [int(tf.io.decode_image(image)[0, 0, 0]) for image in images]


def drawn(recipe, count, seed=0):
    return load_dataset(override(recipe, [f"data.train_images={count}", f"data.train_images_seed={seed}"]).data)


def test_so_many_images_are_drawn_once(recipe):
    for count in (2, TOTAL - 1):
        source = drawn(recipe, count).splits["train"]
        found = numbers(source)
        assert source.size == len(found) == len(set(found)) == count
        assert numbers(drawn(recipe, count).splits["train"]) == found
        # A shuffled epoch that is shared by two processes has the same images.
        shares = [numbers(source, BatchShard(batch_size=4, index=index, count=2), seed=5) for index in range(2)]
        assert sorted(shares[0] + shares[1]) == sorted(found)
    # The last batch is filled up with other images.
    source = load_dataset(recipe.data).splits["train"]
    keys = keys_of(source, BatchShard(batch_size=16), seed=5)
    padding = [int(tf.io.decode_image(tf.constant(source.read(key)["image"]))[0, 0, 0]) for at, key in keys if at < 0]
    assert len(padding) == len(set(padding)) == 48 - TOTAL
    with pytest.raises(InputError, match=r"data\.train_images=38, but .* has 37 images for training\. Choose fewer"):
        drawn(recipe, TOTAL + 1)


def test_a_seed_without_a_number_is_refused(brief_recipe):
    with pytest.raises(InputError, match=r"train_images_seed is only used with data\.train_images"):
        override(brief_recipe, ["data.train_images_seed=3"])


def test_more_indexed_images_hold_all_of_fewer():
    source = IndexedSource(TOTAL, lambda index: {"image": index})
    fewer, more = ({int(source.draw(count, 7).read(i)["image"]) for i in range(count)} for count in (9, 20))
    assert fewer < more


def test_runs_are_apart_and_together_as_many():
    for size, count in ((5, 1), (1293, 646), (1293, 647), (1293, 1290), (9000, 2500), (300, 300)):
        runs = random_runs(size, count, seed=0)
        found = [number for first, end in runs for number in range(first, end)]
        assert len(found) == len(set(found)) == count
        assert found == sorted(found)
        assert 0 <= found[0] <= found[-1] < size
        assert len(runs) <= 257


def test_runs_are_spread_evenly():
    """Every index is equally likely, within 5 standard deviations of the binomial distribution."""
    draws = 400
    times = np.zeros(100)
    for seed in range(draws):
        for first, end in random_runs(100, 30, seed):
            times[first:end] += 1
    assert np.abs(times - 0.3 * draws).max() < 5 * np.sqrt(0.3 * 0.7 * draws)


def test_a_part_of_a_stream_keeps_its_shuffle_buffer():
    source = StreamedSource(50, stream=None, shuffle_buffer=7).draw(20, seed=1)
    assert (source.size, source.shuffle_buffer) == (20, 7)
