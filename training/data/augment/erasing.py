"""Random erasing (Zhong et al., arXiv 1708.04896). Shapes: H W C image."""

import math

import tensorflow as tf

from training.data.augment.cropping import paste

AREAS = (0.02, 1 / 3)
ASPECT_RATIOS = (0.3, 1 / 0.3)
_ATTEMPTS = 10
# Means and standard deviations of ImageNet's pixels, per channel. After normalisation, noise with these values has a
# standard normal distribution, except that it is clipped.
_MEANS = {3: (123.675, 116.28, 103.53), 1: (114.495,)}
_DEVIATIONS = {3: (58.395, 57.12, 57.375), 1: (57.63,)}


def erase(image, seed, probability):
    """Replaces a random rectangle by noise, with a given probability.

    The rectangle's area is uniform from 2 % to 1/3 of the image. Its aspect ratio is log-uniform from 0.3 to 1/0.3. Its
    position is uniform. The noise has a normal distribution with the mean and standard deviation of ImageNet's pixels.
    It is rounded, and clipped to the range from 0 to 255.

    Args:
        image: uint8 (H, W, C)
        seed: (2,) integers.
        probability: Probability of erasing, from 0 to 1.

    Returns:
        uint8 (H, W, C)
    """
    draw_seed, noise_seed = tf.unstack(tf.random.split(seed, 2))
    draws = tf.random.stateless_uniform([1 + 4 * _ATTEMPTS], draw_seed)

    def erased():
        top, left, height, width = _rectangle(image.shape[:2].as_list(), tf.reshape(draws[1:], [4, _ATTEMPTS]))
        channels = image.shape[-1]
        noise = tf.random.stateless_normal([height, width, channels], noise_seed)
        noise = noise * _DEVIATIONS[channels] + _MEANS[channels]
        return paste(image, tf.saturate_cast(tf.round(noise), tf.uint8), top, left)

    return tf.cond(draws[0] < probability, erased, lambda: image)


def _rectangle(sides, draws):
    """(top, left, height, width) of the first rectangle that fits. If no rectangle fits, height and width are 0.

    The rows of `draws`, (4, attempts), are random numbers for the area, aspect ratio, top and left of each rectangle.
    """
    area = sides[0] * sides[1] * (AREAS[0] + draws[0] * (AREAS[1] - AREAS[0]))
    low, high = map(math.log, ASPECT_RATIOS)
    aspect_ratio = tf.exp(low + draws[1] * (high - low))
    extents = tf.round(tf.stack([tf.sqrt(area * aspect_ratio), tf.sqrt(area / aspect_ratio)], axis=1))
    fits = tf.reduce_all(extents < sides, axis=1)
    first = tf.argmax(fits)
    height, width = tf.unstack(tf.where(fits[first], tf.cast(extents[first], tf.int32), 0))
    top = tf.cast(draws[2, first] * tf.cast(sides[0] - height + 1, tf.float32), tf.int32)
    left = tf.cast(draws[3, first] * tf.cast(sides[1] - width + 1, tf.float32), tf.int32)
    return top, left, height, width
