"""Flips and affine transformations. Shapes: H W C image."""

import math

import tensorflow as tf


def flip(image, seed):
    """Flips an image left to right with probability 1/2.

    Args:
        image: (H, W, C)
        seed: (2,) integers.

    Returns:
        (H, W, C), of the same type.
    """
    return tf.cond(tf.random.stateless_uniform([], seed) < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def move(image, seed, config):
    """Translates, rotates, scales and optionally flips an image at random, with a single interpolation.

    A translation alone moves the image by whole pixels, so that nothing is blurred.

    Args:
        image: uint8 (H, W, C)
        seed: (2,) integers.
        config: `training.recipe.config.Augment`. Its flip, translation, rotation, scale and fill are used.

    Returns:
        uint8 (H, W, C)
    """
    height, width, _ = image.shape
    draws = tf.random.stateless_uniform([5], seed, -1.0, 1.0)
    angle = draws[0] * math.radians(config.rotation)
    zoom = 1.0 + draws[1] * config.scale
    mirror = tf.where(config.flip and draws[2] > 0, -1.0, 1.0)
    shift_x, shift_y = draws[3] * config.translation * width, draws[4] * config.translation * height
    if not (config.rotation or config.scale):
        shift_x, shift_y = tf.round(shift_x), tf.round(shift_y)
    # Pixel p = (x, y) of the result is read from the image at M (p - centre) + centre + shift. M is [[a, b], [c, d]].
    cos, sin = tf.cos(angle) / zoom, tf.sin(angle) / zoom
    a, b, c, d = cos * mirror, -sin, sin * mirror, cos
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    x = centre_x + shift_x - a * centre_x - b * centre_y
    y = centre_y + shift_y - c * centre_x - d * centre_y
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[None],
        transforms=tf.stack([a, b, x, c, d, y, 0.0, 0.0])[None],
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT" if config.fill == "black" else "REFLECT",
    )[0]
    return tf.saturate_cast(tf.round(moved), tf.uint8)
