"""Rectangles of images. B batch, H W C image."""

import tensorflow as tf


def paste(images, patch, top, left):
    """Images with a patch of the same number of channels laid upon them.

    Args:
        images: (..., H, W, C)
        patch: (..., h, w, C), within the images; h or w may be 0.
        top: Row of the patch's first row, a scalar.
        left: Column of its first column.

    Returns:
        (..., H, W, C)
    """
    # Copying the five pieces is several times faster than choosing between two images pixel by pixel.
    height, width = tf.unstack(tf.shape(patch)[-3:-1])
    bottom, right = top + height, left + width
    middle = images[..., top:bottom, :, :]
    middle = tf.concat([middle[..., :left, :], patch, middle[..., right:, :]], axis=-2)
    pasted = tf.concat([images[..., :top, :, :], middle, images[..., bottom:, :, :]], axis=-3)
    return tf.ensure_shape(pasted, images.shape)
