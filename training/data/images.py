"""Reads image files of users. Such files may be damaged, or crafted to exhaust the memory."""

import re

import tensorflow as tf

from keras_vit.decoding import check_decoding_cost
from training.files import read_file

_MESSAGE_FRAME = r"^{{.*?}} |\n.*|\s*\[Op:.*\]$"
"""The text that TensorFlow adds before and after the reason for an error."""
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"GI": ".gif", b"BM": ".bmp", b"RI": ".webp"}


def read_image(path, decode):
    """Reads an image file. Returns the contents of the file and the pixels of the image.

    Args:
        path: Path of the file.
        decode: Function of `keras_vit.decoding` that decodes the contents to pixels.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file cannot be decoded. The message contains the reason.
    """
    content = read_file(path)
    return content, decoded(content, decode)


def decoded(content, decode):
    """Decodes the contents of an image file. Raises a `ValueError`, with the reason, if this is not possible."""
    check_decoding_cost(content)
    try:
        return decode(content)
    # The EXIF data are read in a loop. If decoding fails during this loop, TensorFlow may raise a CancelledError.
    except (tf.errors.InvalidArgumentError, tf.errors.CancelledError) as error:
        raise ValueError(re.sub(_MESSAGE_FRAME, "", error.message)) from None


def image_suffix(content):
    """The suffix for an image file with these contents, such as ".jpg", or an empty string if the format is unknown."""
    return _SUFFIXES.get(content[:2], "")
