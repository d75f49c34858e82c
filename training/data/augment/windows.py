"""Pastes rectangles into images. Shapes: H W C image."""

import tensorflow as tf


def paste(images, patch, top, left):
    """Pastes a patch into images. Both have the same number of channels.

    Args:
        images: (..., H, W, C)
        patch: (..., h, w, C), within the images; h or w may be 0.
        top: Top row of the patch in the images, a scalar.
        left: Left column of the patch in the images, a scalar.

    Returns:
        (..., H, W, C)
    """
    # Concatenating five pieces is several times faster than choosing each pixel from one of two images.
    height, width = tf.unstack(tf.shape(patch)[-3:-1])
    bottom, right = top + height, left + width
    middle = images[..., top:bottom, :, :]
    middle = tf.concat([middle[..., :left, :], patch, middle[..., right:, :]], axis=-2)
    pasted = tf.concat([images[..., :top, :, :], middle, images[..., bottom:, :, :]], axis=-3)
    return tf.ensure_shape(pasted, images.shape)
