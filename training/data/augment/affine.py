"""Flips and affine transformations of samples. Shapes: H W C image."""

import math

import tensorflow as tf

from training.data.samples import move_sample


def flip(sample, seed):
    """Flips a sample left to right with probability 1/2.

    Args:
        sample: A sample of `training.data.samples` with a decoded image (H, W, C).
        seed: (2,) integers.

    Returns:
        The changed sample, of the same shapes and types.
    """
    height, width, _ = sample["image"].shape
    is_flipped = tf.random.stateless_uniform([], seed) < 0.5

    def reverse(pixels, _=None):
        return tf.cond(is_flipped, lambda: tf.reverse(pixels, [1]), lambda: pixels)

    def matrix():
        sign, shift = tf.where(is_flipped, -1.0, 1.0), tf.where(is_flipped, float(width), 0.0)
        return tf.stack([[sign, 0.0, shift], [0.0, 1.0, 0.0]])

    return move_sample(sample, reverse, reverse, matrix, (height, width))


def move(sample, seed, config):
    """Translates, rotates, scales and optionally flips a sample at random, with a single interpolation.

    A translation alone moves the image by whole pixels, so that nothing is blurred.

    Args:
        sample: A sample of `training.data.samples` with a decoded image, uint8 (H, W, C).
        seed: (2,) integers.
        config: `training.recipe.config.Augment`. Its flip, translation, rotation, scale and fill are used.

    Returns:
        The changed sample, of the same shapes and types.
    """
    height, width, _ = sample["image"].shape
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

    def transformed(pixels, outside, interpolation):
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=pixels[None],
            transforms=tf.stack([a, b, x, c, d, y, 0.0, 0.0])[None],
            output_shape=[height, width],
            fill_value=tf.cast(outside, tf.float32),
            interpolation=interpolation,
            fill_mode="CONSTANT" if config.fill == "black" else "REFLECT",
        )[0]

    def move_image(image):
        moved = transformed(tf.cast(image, tf.float32), 0.0, "BILINEAR")
        return tf.saturate_cast(tf.round(moved), tf.uint8)

    def matrix():  # The inverse of the map above, for coordinates from the corner of the image instead of a centre.
        inverse = tf.linalg.inv(tf.stack([[a, b], [c, d]]))
        half = tf.constant([[0.5], [0.5]])
        return tf.concat([inverse, half - inverse @ (half + tf.stack([[x], [y]]))], axis=1)

    return move_sample(
        sample, move_image, lambda raster, outside: transformed(raster, outside, "NEAREST"), matrix, (height, width)
    )
