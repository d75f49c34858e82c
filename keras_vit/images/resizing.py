"""Resizes images as Pillow does."""

import tensorflow as tf


def resize_image(image, size, interpolation, crop=None):
    """Resizes an image to `size` (height, width), antialiased as in Pillow, and crops the centre: uint8 (H, W, C).

    The position of the centre is that of torchvision and timm. That of transformers and of Google's code is one pixel
    less if the margins of both sides together are 3, 7, 11, … pixels.

    Pillow resizes the width, rounds to 8 bits, and then resizes the height. (Pillow 13 resizes the height first for
    some sizes.) TensorFlow resizes both sides and rounds once. With bilinear interpolation, the results differ by at
    most one level. Bicubic interpolation overshoots at edges, and Pillow clips each pass to [0, 255], so one rounding
    would differ by more than 20 levels. So the bicubic resize has two passes here too.
    """
    if interpolation == "bicubic":
        height, width = tf.unstack(size)
        image = _resize_rows(tf.transpose(image, [1, 0, 2]), width, interpolation)
        image = _resize_rows(tf.transpose(image, [1, 0, 2]), height, interpolation)
    else:
        image = _to_uint8(tf.image.resize(image, size, interpolation, antialias=True))
    if crop is None:
        return image
    top, left = tf.unstack(tf.cast(tf.round((tf.shape(image)[:2] - crop) / 2), tf.int32))  # Halves become even.
    return tf.slice(image, [top, left, 0], [*crop, image.shape[-1]])


def _resize_rows(image, num_rows, interpolation):
    """Resizes the first axis of an image (H, W, C): uint8 (num_rows, W, C)."""
    rows, columns = tf.unstack(tf.shape(image)[:2])
    channels = image.shape[-1]
    # TensorFlow adds the values of a pixel together. It is fast if a row is one pixel with many channels.
    image = tf.reshape(image, [rows, 1, columns * channels])
    image = _to_uint8(tf.image.resize(image, tf.stack([num_rows, 1]), interpolation, antialias=True))
    return tf.reshape(image, [num_rows, columns, channels])


def _to_uint8(image):
    # Pillow rounds halves up.
    return tf.cast(tf.clip_by_value(tf.floor(image + 0.5), 0, 255), tf.uint8)
