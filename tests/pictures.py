"""Image files in which every flip, rotation and resize is visible."""

import io
import struct

import numpy as np
import PIL.Image


def picture(height, width, mode="RGB"):
    """A smooth asymmetric picture: JPEG hardly changes it, and every flip or rotation is visible."""
    rows, columns = np.mgrid[:height, :width] / [[[height]], [[width]]]
    channels = [255 * rows, 255 * columns, 120 + 100 * np.sin(3 * rows + 2 * columns), 90 + 60 * rows]
    array = np.stack(channels[: len(mode)], axis=-1).round().astype("uint8")
    return PIL.Image.fromarray(array[..., 0] if mode == "L" else array)


FILTERS = {"bilinear": (PIL.Image.Resampling.BILINEAR, 1), "bicubic": (PIL.Image.Resampling.BICUBIC, 2)}
"""{interpolation: (Pillow's filter, largest difference from Pillow)}"""


def resized_by_pillow(image, size, interpolation):
    """Resizes with Pillow to `size` (height, width). Pillow 13 resizes the height first for some sizes."""
    filter, _ = FILTERS[interpolation]
    return image.resize((size[1], image.height), filter).resize(size[::-1], filter)


def noise(height, width):
    """Independent pixels from 64 to 191, which show whether a downsized picture uses all of them."""
    return PIL.Image.fromarray(np.random.default_rng(0).integers(64, 192, (height, width, 3)).astype("uint8"))


def encoded(image, file_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def exif_segment(orientation, order, before=()):
    """An EXIF block of one directory: the tags `before`, then the orientation (0x0112, one SHORT)."""
    tags = [*before, (0x0112, orientation)]
    entries = b"".join(struct.pack(order + "HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    mark = b"II" if order == "<" else b"MM"
    header = mark + struct.pack(order + "HI", 42, 8)
    return b"Exif\0\0" + header + struct.pack(order + "H", len(tags)) + entries + struct.pack(order + "I", 0)
