"""Random windows of encoded images."""

import io
import itertools

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from tests.pictures import encoded, exif_segment, picture
from training.data.augment.cropping import ASPECT_RATIOS, inception_crop, random_window, stored_window

# More than half of the size of the smaller pictures below, which are therefore decoded in full.
SIZE = [37, 45]
AREA = (0.2, 0.9)
assert ASPECT_RATIOS == (3 / 4, 4 / 3)


def _crop(image_bytes, seed, channels=3, size=SIZE, interpolation="bilinear"):
    return inception_crop({"image": image_bytes}, seed, size, channels, AREA, interpolation)["image"]


@pytest.fixture(scope="module")
def crop():
    """Runs `_crop` as a graph that is traced once. Eagerly, reading a file's header takes half a second."""
    graph = tf.function(_crop, input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([2], tf.int32)])
    return lambda file, seed: graph(file, seed).numpy()


def _window(sides, seed):
    """The window (left, top, right, bottom) that TensorFlow draws in an image (height, width)."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        [*sides, 3],
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=AREA,
        use_image_if_no_bounding_boxes=True,
    )
    (top, left, _), (height, width, _) = begin.numpy(), extent.numpy()
    return left, top, left + width, top + height


def _expected(image, seed, size=SIZE):
    part = image.crop(_window(image.size[::-1], seed))
    return np.asarray(part.resize(size[::-1], PIL.Image.Resampling.BILINEAR)).astype(int)


def test_cuts_and_resizes_as_pillow_does(crop):
    options = {"JPEG": {"subsampling": 0}, "WEBP": {"lossless": True}}
    for file_format in ("PNG", "BMP", "GIF", "WEBP", "JPEG"):
        file = encoded(picture(61, 97), file_format, **options.get(file_format, {}))
        for seed in [(0, 1), (0, 2)]:
            expected = _expected(PIL.Image.open(io.BytesIO(file)).convert("RGB"), seed)
            cropped = crop(file, seed)
            assert cropped.dtype == np.uint8
            # Pillow rounds after each of the two passes of a resize.
            assert np.abs(cropped - expected).max() <= 2, (file_format, seed)
        np.testing.assert_array_equal(_crop(file, seed), cropped)  # The eager result equals the graph's.
    for file_format in ("PNG", "JPEG"):
        tiny = encoded(PIL.Image.fromarray(np.full((1, 1, 3), 90, "uint8")), file_format)
        np.testing.assert_allclose(crop(tiny, (0, 1)), np.full((*SIZE, 3), 90), atol=1)


@pytest.mark.slow
def test_rotated_photographs_come_out_upright(crop):
    """Rotated photographs are upright, both decoded in full and decoded to a smaller size."""
    for sides, orientation in itertools.product([(61, 97), (610, 420)], range(1, 9)):
        exif = exif_segment(orientation, "<")
        file = encoded(picture(*sides), "JPEG", exif=exif, subsampling=0, quality=95)
        upright = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(file)))
        assert upright.size == (sides[::-1] if orientation < 5 else sides)
        for seed in ((1, 2), (1, 3)):
            difference = np.abs(crop(file, seed) - _expected(upright, seed)).max()
            # If the file is decoded to a smaller size, the window's edges are at whole pixels of it. Those pixels are
            # smaller than the result's pixels. The values go from 0 to 255 over 37 of the result's pixels.
            assert difference <= (2 if max(sides) < 100 else 255 / 37 + 2), (sides, orientation)


def test_windows_of_the_upright_image_are_found_in_the_file():
    for orientation in range(1, 9):
        stored = np.arange(7 * 11).reshape(7, 11)
        undone = {
            1: stored,
            2: stored[:, ::-1],
            3: stored[::-1, ::-1],
            4: stored[::-1],
            5: stored.T,
            6: stored.T[:, ::-1],
            7: stored.T[::-1, ::-1],
            8: stored.T[::-1],
        }
        top, left, height, width = 1, 2, 3, 4
        wanted = undone[orientation][top : top + height, left : left + width]
        window = stored_window(tf.constant([top, left, height, width]), tf.constant([7, 11]), tf.constant(orientation))
        top, left, height, width = window.numpy()
        assert sorted(stored[top : top + height, left : left + width].ravel()) == sorted(wanted.ravel())


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
def test_large_photographs_are_decoded_to_no_more_than_needed(divisor, monkeypatch):
    decode, ratios = tf.image.decode_and_crop_jpeg, []

    def counted(contents, window, channels, ratio, dct_method):
        ratios.append(ratio)
        part = decode(contents, window, channels, ratio=ratio, dct_method=dct_method)
        assert (part.shape[0] >= 8) & (part.shape[1] >= 8)
        return part

    monkeypatch.setattr(tf.image, "decode_and_crop_jpeg", counted)
    # The window has at least 0.96 of the area and 0.9 of each side, so it is 8 to 15 times the divisor.
    file = encoded(picture(12 * divisor, 12 * divisor), "JPEG", subsampling=0)
    inception_crop({"image": tf.constant(file)}, (0, 1), [8, 8], 3, (0.96, 1.0), "bilinear")
    assert ratios == [divisor]


def test_bicubic_and_gray():
    file = encoded(picture(61, 97), "JPEG", subsampling=0)
    bilinear, bicubic = (_crop(file, (0, 1), interpolation=way).numpy().astype(int) for way in ("bilinear", "bicubic"))
    assert 0 < np.abs(bilinear - bicubic).max() <= 8
    gray = _crop(file, (0, 1), channels=1)
    assert gray.shape == (*SIZE, 1)
    luma = bilinear @ [0.299, 0.587, 0.114]
    assert np.abs(gray[..., 0] - luma).max() <= 1.5  # Gray values are rounded before the resize.


@pytest.mark.slow
def test_random_window_is_anywhere_with_equal_probability():
    image = tf.constant(np.arange(4 * 6 * 2).reshape(4, 6, 2))
    seeds = tf.data.Dataset.from_tensor_slices([(8, i) for i in range(300)])
    counts = {}
    for window in seeds.map(lambda seed: random_window({"image": image}, seed, (3, 4))["image"]).as_numpy_iterator():
        top, left = divmod(int(window[0, 0, 0]) // 2, 6)
        np.testing.assert_array_equal(window, image[top : top + 3, left : left + 4])
        counts[top, left] = counts.get((top, left), 0) + 1
    assert sorted(counts) == [(top, left) for top in range(2) for left in range(3)]
    assert all(abs(count - 50) <= 4 * np.sqrt(300 * 5 / 36) for count in counts.values())
