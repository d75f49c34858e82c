"""Mask files: their values are read exactly, and classes are never mixed."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from training.data.masks import VOID, encode_png, read_mask, read_values, renumbered
from training.data.samples import resize_raster

MASK = np.random.default_rng(0).choice([0, 1, 2, 7, VOID], (9, 14)).astype("uint8")


def with_palette(mask):
    picture = PIL.Image.fromarray(mask, "P")
    # Brightness falls as the index rises, so a reader that decodes colors gets other values.
    picture.putpalette([255 - value // 3 for value in range(768)])
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("content", [encode_png(MASK), with_palette(MASK)], ids=["gray", "palette"])
def test_values_are_indices(content):
    np.testing.assert_array_equal(read_values(content), MASK)
    np.testing.assert_array_equal(read_mask(content)[..., 0], MASK)


def test_two_classes_may_take_a_bit():
    file = io.BytesIO()
    PIL.Image.fromarray(MASK > 1).save(file, "png")
    np.testing.assert_array_equal(read_values(file.getvalue()), MASK > 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_gray_of_fewer_bits_keeps_its_values(bits):
    """The file is written by hand, because Pillow cannot write it. Its single row packs all values into bytes."""
    values = list(range(2 ** min(bits, 4)))
    row = int("".join(f"{value:0{bits}b}" for value in values).ljust(8, "0"), 2)
    row = row.to_bytes(max(len(values) * bits, 8) // 8, "big")
    header = struct.pack(">IIBBBBB", len(values), 1, bits, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    np.testing.assert_array_equal(read_values(b"\x89PNG\r\n\x1a\n" + b"".join(packed)), [values])


@pytest.mark.parametrize("size", [(5, 7), (18, 28), (4, 30)])
def test_a_mask_is_resized_by_its_nearest_pixels(size):
    expected = PIL.Image.fromarray(MASK).resize(size[::-1], PIL.Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resize_raster(MASK[..., None], size)[..., 0], expected)


def test_colours_and_more_bits_are_refused():
    with pytest.raises(ValueError, match="its mode is RGB, but a mask must have one channel of 8 bits"):
        read_values(encode_png(np.zeros((3, 4, 3), "uint8")))
    with pytest.raises(ValueError, match="its mode is I;16"):
        read_values(encode_png(np.full((3, 4), 700, "uint16")))
    with pytest.raises(OSError, match="cannot identify"):
        read_values(b"no file of an image")


def test_classes_are_counted_from_the_offset():
    values = np.array([[0, 1, 2, 3, 4, 255]], "uint8")
    np.testing.assert_array_equal(read_values(renumbered(encode_png(values), 1, 3)), [[VOID, 0, 1, 2, VOID, VOID]])
