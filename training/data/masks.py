"""Segmentation masks, which contain the class of each pixel of an image. Shapes: H W pixels.

A mask is stored as the bytes of a PNG file, gray or with a palette. Its values are class indices. 255 is void: the
pixel belongs to no class, or its class is unknown. The loss and the metrics ignore void pixels.
"""

import io

import numpy as np
import PIL.Image
import tensorflow as tf

VOID = 255
MAX_CLASSES = VOID  # A byte has 255 values besides void.


def read_png(content, modes, needed):
    """Reads the values of the pixels of a PNG file, (H, W) or (H, W, C), without converting them.

    Args:
        content: The bytes of the file.
        modes: Modes of Pillow that are accepted.
        needed: Description of an accepted file, for the message.

    Raises:
        ValueError: If the content has another mode, or too many pixels.
        OSError: If the content cannot be decoded.
    """
    try:
        opened = PIL.Image.open(io.BytesIO(content), formats=["PNG"])
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(f"it is too large: {error}") from None
    with opened as image:
        if image.mode not in modes:
            raise ValueError(f"its mode is {image.mode}, but {needed}")
        return np.asarray(image)


def read_values(content):
    """Reads the gray values or the palette indices of the pixels of a PNG file: uint8 (H, W).

    The errors are those of `read_png`, for files that do not have one channel of at most 8 bits.
    """
    needed = "a mask must have one channel of 8 bits, gray or with a palette"
    values = read_png(content, ("L", "P", "1"), needed).astype("uint8")
    bits, color = content[24:26]
    # Pillow scales gray values of two or four bits to eight bits. The division restores the stored values.
    return values // (255 // (2**bits - 1)) if color == 0 and bits in (2, 4) else values


def renumbered(content, offset, num_classes):
    """Subtracts `offset` from the values of an encoded mask. Results outside 0 to `num_classes - 1` become void."""
    values = read_values(content).astype(int) - offset
    values[(values < 0) | (values >= num_classes)] = VOID
    return encode_png(values.astype("uint8"))


def encode_png(pixels):
    """Encodes pixels, uint8 (H, W) or (H, W, 3), as the bytes of a PNG file."""
    file = io.BytesIO()
    # For images with noise, level 1 is faster than the default, and the file is no larger.
    PIL.Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()


def read_mask(content):
    """Decodes a mask in a `tf.data` pipeline: the bytes of a PNG file to uint8 (H, W, 1)."""
    # Pillow decodes the mask, because TensorFlow would convert palette indices to colours.
    # Outside a graph, the content is an array of one object.
    mask = tf.numpy_function(lambda file: read_values(np.asarray(file).item()), [content], tf.uint8, stateful=False)
    return tf.ensure_shape(mask, [None, None])[..., None]
