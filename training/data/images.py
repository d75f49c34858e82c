"""Image files that the user names, of which any may be damaged or made to cost much."""

import re

import tensorflow as tf

from keras_vit.decoding import check_bounds
from training.files import read_file

_FRAMED = r"^{{.*?}} |\n.*|\s*\[Op:.*\]$"
"""What TensorFlow puts around its messages."""
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"GI": ".gif", b"BM": ".bmp", b"RI": ".webp"}


def read_image(path, decode):
    """The contents of an image file, and its pixels.

    Args:
        path: Of the file.
        decode: Function from the contents to the pixels, as `keras_vit.decoding` makes them.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no image that is decoded; the message says why.
    """
    content = read_file(path)
    check_bounds(content)
    try:
        return content, decode(content)
    # If a loop runs while decoding fails, TensorFlow may report that it was cancelled.
    except (tf.errors.InvalidArgumentError, tf.errors.CancelledError) as error:
        raise ValueError(re.sub(_FRAMED, "", error.message)) from None


def image_suffix(content):
    """How the name of a file with these bytes of an image ends."""
    return _SUFFIXES.get(content[:2], "")
