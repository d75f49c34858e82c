"""Class scores in windows. tests/peers/dense_test.py compares those without a stride with transformers."""

import numpy as np
import PIL.Image
import pytest

import keras_vit
from tests.export.dense_test import resized
from tests.pictures import noise
from tests.test_case import assert_close, randomize, to_numpy

CONFIG = keras_vit.ViTConfig(7, 12, num_layers=1, num_heads=3, mlp_dim=20)


def linear(side=21, **arguments):
    shape = {"input_shape": (side, side, 3), "classes": 4, "classifier_activation": None}
    return randomize(keras_vit.Segmenter(CONFIG, "linear", **shape | arguments), scale=0.4)


def test_a_window_every_stride_pixels(monkeypatch):
    """Windows of 18 pixels get a border of 1 and 2 pixels, as the patches have 7. They start at 0, 8, 16 and 23."""
    monkeypatch.setattr("keras_vit.heads.windows._BATCH_SIZE", 3)
    model, image = linear(None), np.asarray(noise(36, 82))
    small = np.asarray(PIL.Image.fromarray(image).resize((41, 18), PIL.Image.Resampling.BILINEAR))
    total, count = np.zeros((18, 41, 4)), np.zeros((1, 41, 1))
    for start in (0, 8, 16, 23):
        window = keras_vit.preprocess_input(small[None, :, start : start + 18], model)
        scores = to_numpy(model(np.pad(window, ((0, 0), (1, 2), (1, 2), (0, 0)))))[0, 1:-2, 1:-2]
        total[:, start : start + 18] += scores
        count[:, start : start + 18] += 1
    expected = resized((total / count).transpose(2, 0, 1), (36, 82)).transpose(1, 2, 0)
    found = keras_vit.class_scores(model, image, window=18, stride=8)
    assert np.ptp(found) > 0.5
    assert_close(found, expected, 0.02)  # Pillow's resize may differ by one level.
    assert np.abs(found - expected).mean() < 2e-3


def test_refused_arguments():
    model, image = linear(), np.zeros((30, 40, 3))
    for arguments, message in (
        ((model, image[None]), r"an image of shape \(1, 30, 40, 3\)"),
        ((model, image[:0]), r"an image of shape \(0, 40, 3\)"),
        ((model, image + np.nan), "Received: NaN or infinite values"),
        ((linear(input_shape=(21, 28, 3)), image), r"takes images of \(21, 28\) pixels. Pass window="),
        ((model, image, 22), "window must be at most 21.*Received: 22"),
        ((model, image, 21, 22), "stride must be at most 21"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.class_scores(*arguments)
