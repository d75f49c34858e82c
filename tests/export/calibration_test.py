import types

import numpy as np
import pytest

from keras_vit.export import calibration
from keras_vit.export.calibration import split_images


def test_every_fourth_image_is_kept_back():
    images = np.arange(11 * 2 * 3 * 1).reshape(11, 2, 3, 1).astype("float32")
    batches = [images[:6], np.swapaxes(images[6:10], 1, 2), images[10:]]
    calibrating, kept_back = split_images(batches)
    assert [batch[:, 0, 0, 0].tolist() for batch in calibrating] == [[0, 6, 12, 24, 30], [36, 48, 54], [60]]
    assert [batch[:, 0, 0, 0].tolist() for batch in kept_back] == [[18], [42]]
    assert [batch.shape[1:] for batch in kept_back] == [(2, 3, 1), (3, 2, 1)]


def test_equal_and_few_images(caplog):
    images = np.full((7, 2, 3, 1), 9.0)
    with pytest.raises(ValueError, match="All images are equal"):
        split_images([images[:3], images[3:]])
    images[4, 1, 2] = 8
    caplog.clear()
    split_images([images[:3], images[3:]])
    assert "only 7 images" in caplog.text
    caplog.clear()
    split_images([images] * 12)
    assert not caplog.text


def test_relative_speed(monkeypatch):
    now = [0.0]

    def wait(seconds):
        now[0] += seconds

    monkeypatch.setattr(calibration, "time", types.SimpleNamespace(perf_counter=lambda: now[0], sleep=wait))
    speed = calibration.relative_speed(lambda image: wait(0.25), lambda image: wait(0.125), np.zeros((1, 2, 3, 1)))
    assert speed == 2
