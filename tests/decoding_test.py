"""Encoded images, read as a model expects them."""

import io
import struct

import keras
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

import keras_vit
from keras_vit.decoding import image_decoder
from tests.pictures import encoded, exif_segment, noise, picture
from tests.test_case import TENSORFLOW

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="encoded images are read by TensorFlow")


def _decoder(size, channels=3, **protocol):
    """The decoder of a model that is nothing but its protocol."""
    layer = keras_vit.Preprocessing(**({"resize": size} | protocol))
    return image_decoder(keras.Sequential([keras.Input((*size, channels)), layer]))


def _decode(image_bytes, size, **protocol):
    return _decoder(size, **protocol)(image_bytes).numpy()


@pytest.mark.parametrize(
    ("file_format", "mode"),
    [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "L"), ("BMP", "RGB"), ("WEBP", "RGB"), ("JPEG", "RGB"), ("JPEG", "L")],
)
def test_decodes_as_pillow_does(file_format, mode):
    image = picture(24, 33, mode)
    file = encoded(image, file_format)
    expected = np.atleast_3d(np.asarray(PIL.Image.open(io.BytesIO(file))))[..., :3]
    decoded = _decode(file, (24, 33))
    assert decoded.dtype == "uint8"
    np.testing.assert_array_equal(decoded, np.broadcast_to(expected, (24, 33, 3)))


def test_decodes_the_first_frame_of_an_animation():
    frames = [picture(24, 33).quantize(64), PIL.Image.new("P", (33, 24))]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(_decode(gif, (24, 33)), np.asarray(frames[0].convert("RGB")))


def test_decodes_to_gray():
    for mode in ("RGB", "L"):
        image = picture(24, 33, mode)
        decoded = _decode(encoded(image, "PNG"), (24, 33), channels=1)
        assert decoded.shape == (24, 33, 1)
        assert np.abs(decoded[..., 0].astype(int) - np.asarray(image.convert("L"))).max() <= (mode == "RGB")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(61, 97), (97, 61), (20, 31)])
def test_resizes_like_pillow(size, interpolation):
    image = noise(*size)
    filters = {"bilinear": PIL.Image.Resampling.BILINEAR, "bicubic": PIL.Image.Resampling.BICUBIC}
    expected = np.asarray(image.resize((30, 22), filters[interpolation])).astype(int)
    decoded = _decode(encoded(image, "PNG"), (22, 30), interpolation=interpolation)
    assert np.abs(decoded - expected).max() <= 2


@pytest.mark.parametrize("size", [(61, 97), (97, 61), (32, 32), (29, 40)])
def test_resizes_the_short_side_and_crops_the_centre(size):
    image = noise(*size)
    short = min(size)
    height, width = (round(side * 32 / short) for side in size)
    top, left = (height - 24) // 2, (width - 30) // 2
    resized = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 30, top + 24))).astype(int)
    decoded = _decode(encoded(image, "PNG"), (24, 30), resize=32, crop=(24, 30))
    assert np.abs(decoded - expected).max() <= 2


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_applies_the_exif_orientation(orientation, order):
    before = [(0x0100, 33), (0x0101, 24)] if orientation % 2 else []
    jpeg = encoded(picture(24, 33), "JPEG", exif=exif_segment(orientation, order, before))
    expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(jpeg)))).astype(int)
    assert expected.shape[:2] == ((24, 33) if orientation < 5 else (33, 24))
    np.testing.assert_array_equal(_decode(jpeg, expected.shape[:2]), expected)


def test_exif_behind_another_segment():
    jpeg = encoded(picture(24, 33), "JPEG", exif=exif_segment(6, ">"))
    comment = b"\xff\xfe" + struct.pack(">H", 300) + bytes(298)
    expected = _decode(jpeg, (33, 24))
    np.testing.assert_array_equal(_decode(jpeg[:2] + comment + jpeg[2:], (33, 24)), expected)


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0II",
        b"Exif\0\0XX" + bytes(40),
        b"Exif\0\0MM\0*" + b"\xff" * 8,
        b"Exif\0\0II*\0" + b"\xff\xff\xff\x7f" + b"\xff" * 30,
        b"Exif\0\0II*\0\x08\0\0\0" + b"\xff\xff" + b"\xff" * 12,
        exif_segment(0, "<"),
        exif_segment(9, ">"),
        exif_segment(65535, "<"),
        exif_segment(6, "<")[:20],
    ],
)
def test_damaged_exif_is_ignored(exif):
    plain = encoded(picture(24, 33), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    np.testing.assert_array_equal(_decode(plain[:2] + segment + plain[2:], (24, 33)), _decode(plain, (24, 33)))


def test_decoder_needs_a_fixed_size_and_one_or_three_channels():
    for shape, protocol, message in (
        ((None, None, 3), {}, "needs a model of fixed size"),
        ((8, 12, 4), {}, "have 1 or 3 channels here. Received: a model for 4"),
        ((8, 12, 3), {"resize": None}, "does not lead to that size: resize=None, crop=None"),
        ((8, 12, 3), {"resize": 8}, "does not lead to that size: resize=8, crop=None"),
        ((8, 12, 3), {"resize": 8, "crop": (8, 12)}, r"does not lead to that size: resize=8, crop=\[8, 12\]"),
        ((8, 12, 3), {"resize": (12, 8)}, r"8 x 12 pixels.*resize=\[12, 8\]"),
        ((8, 12, 3), {"resize": (8, 12), "crop": (4, 4)}, r"crop=\[4, 4\]"),
    ):
        layer = keras_vit.Preprocessing(**({"resize": (8, 12)} | protocol))
        with pytest.raises(ValueError, match=message):
            image_decoder(keras.Sequential([keras.Input(shape), layer]))
