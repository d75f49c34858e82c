"""Features are computed once, and the computation continues where it was interrupted."""

import os
import threading
import time

import filelock
import numpy as np
import pytest
import tensorflow as tf

from training.data import feature_cache
from training.data.feature_cache import cached_features
from training.data.sources import BatchShard, IndexedSource
from training.errors import InputError

COUNT, VIEWS = 7, 2
SOURCE = IndexedSource(COUNT, lambda index: {"image": tf.cast(index, tf.float32)})


def make_example(example, number):
    image = tf.fill([2, 3, 1], example["image"] + 100 * tf.cast(number // COUNT, tf.float32))
    return image, {"classes": tf.stack([number, -number])}


class Encoder:
    """Counts its images, and is interrupted after some batches."""

    def __init__(self, most_batches=1000):
        self.left, self.count = most_batches, 0

    def __call__(self, images):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left, self.count = self.left - 1, self.count + len(images)
        return {"tap_0": images[:, :, :, 0] / 2, "tap_1": images[:, 0] * 3}


def compute(folder, encoder, **changes):
    arguments = {"batch_size": 2, "num_views": VIEWS, "limit": 1e9, "title": "images"} | changes
    return cached_features(folder, SOURCE, make_example, encoder, **arguments)


def read(features, epoch):
    """The examples of an epoch, in the order of the source."""
    keys = features.epoch(tf.constant(epoch, tf.int64), BatchShard(1), tf.constant(0, tf.int64))
    return [features.read(key) for _, key in keys.as_numpy_iterator()]


def test_features_are_those_of_the_views(tmp_path):
    features = compute(tmp_path / "a", Encoder())
    assert features.size == COUNT
    for epoch in range(3):
        for index, example in zip(range(COUNT), read(features, epoch), strict=True):
            value, number = index + 100 * (epoch % VIEWS), index + COUNT * (epoch % VIEWS)
            taps = {"tap_0": np.full((2, 3), value / 2, "float16"), "tap_1": np.full((3, 1), 3 * value, "float16")}
            np.testing.assert_equal(example, {"image": taps, "label": {"classes": np.array([number, -number])}})


def test_an_interrupted_computation_continues(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        compute(tmp_path / "a", Encoder(4))  # The first batch shows the shapes.
    for count in (1 + COUNT * VIEWS - 3 * 2, 1):
        encoder = Encoder()
        found = compute(tmp_path / "a", encoder)
        assert encoder.count == count
    np.testing.assert_equal(found.arrays, compute(tmp_path / "b", Encoder()).arrays)


def test_the_size_is_limited(tmp_path, capsys):
    with pytest.raises(InputError, match=r"data\.cache_limit is 0.0001 MB. Choose fewer data\.views"):
        compute(tmp_path / "a", Encoder(), limit=100)
    for number, name in enumerate("bcdef"):
        compute(tmp_path / name, Encoder())
        os.utime(tmp_path / name, (number, number))
    compute(tmp_path / "b", Encoder())  # It is not the oldest one any more.
    size = sum(file.stat().st_size for file in (tmp_path / "d").iterdir())
    with filelock.FileLock(tmp_path / "d" / feature_cache._LOCK):  # Another process computes it.
        compute(tmp_path / "g", Encoder(), limit=4.5 * size, kept={tmp_path / "c"})
    assert {path.name for path in tmp_path.iterdir() if (path / "0.npy").exists()} == set("bcdg")
    assert "Removing older features" in capsys.readouterr().out
    with pytest.raises(InputError, match="cache_limit"):
        compute(tmp_path / "h", Encoder(), limit=1.5 * size, kept={tmp_path / "c"})


def test_two_processes_do_not_compute_the_same(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    is_held = threading.Event()

    def hold():
        with filelock.FileLock(tmp_path / "a" / feature_cache._LOCK):
            is_held.set()
            time.sleep(0.3)

    threading.Thread(target=hold).start()
    is_held.wait()
    compute(tmp_path / "a", Encoder())
    assert "Waiting for another process" in capsys.readouterr().out


def test_large_features_are_refused(tmp_path):
    with pytest.raises(InputError, match="too large to keep in float16"):
        compute(tmp_path / "a", lambda images: {"tap_0": images * 1e5})
