"""Masks: which class each pixel of an image belongs to. H W pixels.

A mask is kept as the bytes of a PNG file, gray or with a palette, whose values are indices of classes. 255 is void: a
pixel that belongs to none, or of which it is not known. It is neither learned nor counted.
"""

import io

import numpy as np
import PIL.Image
import tensorflow as tf

VOID = 255
MOST_CLASSES = VOID  # Such as a byte can count beside it.


def read_values(content):
    """The values of a PNG file's pixels, of one with a palette its indices: uint8 (H, W).

    Raises:
        ValueError: If it is no PNG file of one channel of at most 8 bits.
        OSError: If it cannot be decoded.
    """
    file = io.BytesIO(content)
    with _opened(file) as image:
        if image.mode not in ("L", "P", "1"):
            raise ValueError(f"its pixels are {image.mode}; a mask has one channel of 8 bits, gray or with a palette")
        values = np.asarray(image).astype("uint8")
    bits, color = file.getvalue()[24:26]
    # Pillow stretches gray of two or four bits over all of a byte.
    return values // (255 // (2**bits - 1)) if color == 0 and bits in (2, 4) else values


def _opened(file):
    try:
        return PIL.Image.open(file, formats=["PNG"])
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(f"it is too large: {error}") from None


def renumbered(content, offset, num_classes):
    """The bytes of a mask whose classes are counted from `offset`, counted from 0; other values become void."""
    values = read_values(content).astype(int) - offset
    values[(values < 0) | (values >= num_classes)] = VOID
    return as_png(values.astype("uint8"))


def as_png(pixels):
    """The bytes of a PNG file of pixels, uint8 (H, W) or (H, W, 3)."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def decode_mask(content, size):
    """A mask at another size, each pixel as the nearest one: PNG bytes to uint8 (H, W), in a `tf.data` pipeline.

    Args:
        content: Scalar string.
        size: (H, W), or a tensor of them.
    """
    # By Pillow: TensorFlow makes colours of the indices of a palette.
    mask = tf.numpy_function(read_values, [content], tf.uint8, stateful=False)
    return resize_mask(tf.ensure_shape(mask, [None, None]), size)


def resize_mask(mask, size):
    """A mask at another size, each pixel as the nearest one: uint8 (h, w) to (H, W)."""
    return tf.image.resize(mask[..., None], size, "nearest")[..., 0]
