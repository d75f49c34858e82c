import types

import numpy as np
import PIL.Image
import pytest
import sklearn.datasets

from keras_vit.export import calibration
from keras_vit.export.calibration import split_images, warn_of_few_classes
from keras_vit.export.parity import PHOTOGRAPHS


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
    images[:, 1] = 209
    images[4, 1, 2] = 8
    caplog.clear()
    split_images([images[:3], images[3:]])
    assert "only 7 images" in caplog.text
    caplog.clear()
    split_images([images] * 12)
    assert not caplog.text


def _photographs():
    """84 images (24, 32, 3): the photographs of the package, shifted."""
    pictures = [PIL.Image.open(path).convert("RGB").resize((32, 24)) for path in sorted(PHOTOGRAPHS.glob("*.jpg"))]
    return np.stack([np.roll(picture, i, axis=1) for picture in pictures for i in range(21)]).astype("float32")


def _digits():
    """84 gray digits (32, 32, 1) on black, as in MNIST."""
    return np.kron(sklearn.datasets.load_digits().images[:84], np.ones((4, 4)))[..., None] * (255 / 16)


UNSUITABLE = {
    "nearly black": lambda: _photographs() // 64,
    "gray surfaces": lambda: np.random.default_rng(0).normal(120, 5, (84, 24, 32, 3)),
    "gray surfaces of different brightness": lambda: np.linspace(20, 235, 84)[:, None, None, None] + [[[[0], [9]]]],
    "a quarter of the contrast": lambda: 100 + _photographs() / 4,
}


@pytest.mark.combination("int8: nearly black images or images with little contrast", "a warning")
@pytest.mark.parametrize("name", UNSUITABLE)
def test_little_contrast(name, caplog):
    split_images([UNSUITABLE[name]()])
    assert "have little contrast: the standard deviation" in caplog.text


@pytest.mark.combination("int8: images of one color each", "refused")
def test_images_of_one_color_are_refused():
    surfaces = np.arange(84)[:, None, None, None] + np.full((84, 24, 32, 3), [0, 80, 160])
    with pytest.raises(ValueError, match="More than half of the images have one color each"):
        split_images([surfaces])


@pytest.mark.combination("int8: photographs in color or gray, digits on black", "no warning")
def test_enough_contrast(caplog):
    for images in (_photographs(), _photographs().mean(axis=-1, keepdims=True), _digits()):
        split_images([images])
    assert not caplog.text


@pytest.mark.combination(
    "int8: images for which the model predicts few classes", "a warning, and the number in the report"
)
@pytest.mark.parametrize(
    ("predicted", "num_images", "num_classes", "is_few"),
    [
        (7, 50, 1000, True),
        (3, 12, 1000, True),
        (4, 12, 1000, False),
        (42, 80, 1000, False),
        (2, 75, 10, True),
        (3, 75, 10, False),
        (1, 75, 2, True),
        (1, 75, 1, False),
        (2, 75, 2, False),
        (1, 1, 5, True),
    ],
)
def test_few_classes(predicted, num_images, num_classes, is_few, caplog):
    warn_of_few_classes(predicted, num_images, num_classes)
    message = f"predicts only {predicted} of its {num_classes} classes for the {num_images} images"
    assert (message in caplog.text) == is_few


def test_relative_speed(monkeypatch):
    now = [0.0]

    def wait(seconds):
        now[0] += seconds

    monkeypatch.setattr(calibration, "time", types.SimpleNamespace(perf_counter=lambda: now[0], sleep=wait))
    speed = calibration.relative_speed(lambda image: wait(0.25), lambda image: wait(0.125), np.zeros((1, 2, 3, 1)))
    assert speed == 2


@pytest.mark.combination(
    "int8 file that is slower than float32, processor without VNNI", "the export says so, with the reason"
)
def test_slower_files_cause_a_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(calibration, "_CPUINFO", tmp_path / "cpuinfo")
    calibration.warn_if_slower("a.onnx", 1.5, "onnx")
    assert not caplog.records
    slower = "One image takes 1.25 times as long as with the float32 file on this processor"
    for flags, format, reason in (
        (None, "onnx", ""),
        ("flags : fpu sse2 avx2 avx512f", "onnx", ", which has no VNNI instructions for products of 8-bit integers"),
        ("flags : fpu sse2 avx2 avx512f", "litert", ""),
        ("flags : fpu sse2 avx2 avx_vnni", "onnx", ""),
        ("Features : fp asimd asimddp", "openvino", ""),
    ):
        if flags:
            (tmp_path / "cpuinfo").write_text(flags)
        calibration.warn_if_slower("a.onnx", 0.8, format)
        assert caplog.messages[-1].startswith(f"a.onnx: {slower}{reason}. Use a float32 file")
