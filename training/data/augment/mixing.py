"""Mixup (Zhang et al., arXiv 1710.09412) and CutMix (Yun et al., arXiv 1905.04899). Shapes: B batch, H W C image.

Each image is mixed with the previous image of the batch. The first image is mixed with the last. Padding is not mixed.
All images of a batch are mixed in the same proportion, the lambda of the papers.
"""

import functools

import tensorflow as tf

from training.data.augment.cropping import paste


def mix(images, labels, seed, num_real, config):
    """Mixes the images and labels of a batch by mixup or CutMix. If the config sets both, one is chosen at random.

    Args:
        images: uint8 (B, H, W, C)
        labels: Probabilities (B, classes), float.
        seed: (2,) integers.
        num_real: Number of real images, which are the first rows. The other rows are padding and stay unchanged.
        config: `training.recipe.config.Augment`. Its mixup and cutmix are used.

    Returns:
        Images, uint8 (B, H, W, C), and labels (B, classes).
    """
    if not config.mixup and not config.cutmix:
        return images, labels
    choice_seed, lambda_seed, place_seed = tf.unstack(tf.random.split(seed, 3))
    rows = tf.range(tf.shape(images)[0])
    partners = tf.where(rows < num_real, (rows - 1) % tf.maximum(num_real, 1), rows)
    by_mixup = functools.partial(_mixup, images, labels, partners, config.mixup, lambda_seed)
    by_cutmix = functools.partial(_cutmix, images, labels, partners, config.cutmix, lambda_seed, place_seed)
    if config.mixup and config.cutmix:
        return tf.cond(tf.random.stateless_uniform([], choice_seed) < 0.5, by_mixup, by_cutmix)
    return by_mixup() if config.mixup else by_cutmix()


def _mixup(images, labels, partners, concentration, seed):
    weight = beta(concentration, seed)
    weight = tf.maximum(weight, 1.0 - weight)  # At least half of each mixed image is the original image.
    partner_images = tf.gather(images, partners)
    mixed = weight * tf.cast(images, tf.float32) + (1.0 - weight) * tf.cast(partner_images, tf.float32)
    return tf.cast(tf.round(mixed), tf.uint8), _mix_labels(labels, partners, weight)


def _cutmix(images, labels, partners, concentration, lambda_seed, place_seed):
    height, width = images.shape[1:3]
    top, left, bottom, right = _box(height, width, beta(concentration, lambda_seed), place_seed)
    patches = tf.gather(images[:, top:bottom, left:right], partners)
    weight = 1.0 - tf.cast((bottom - top) * (right - left), tf.float32) / (height * width)
    return paste(images, patches, top, left), _mix_labels(labels, partners, weight)


def _mix_labels(labels, partners, weight):
    weight = tf.cast(weight, labels.dtype)
    return weight * labels + (1.0 - weight) * tf.gather(labels, partners)


def _box(height, width, weight, seed):
    """(top, left, bottom, right) of a box around a random pixel, clipped to the image.

    Before it is clipped, the box covers the fraction 1 - `weight` of the image.
    """
    sides = tf.constant([height, width])
    half = tf.cast(tf.cast(sides, tf.float32) * tf.sqrt(1.0 - weight), tf.int32) // 2
    centre = tf.cast(tf.random.stateless_uniform([2], seed) * tf.cast(sides, tf.float32), tf.int32)
    return (*tf.unstack(tf.maximum(centre - half, 0)), *tf.unstack(tf.minimum(centre + half, sides)))


def beta(concentration, seed):
    """Draws a random number from Beta(a, a), where a = `concentration`.

    The number is X / (X + Y), where X and Y are independent random numbers from Gamma(a, 1). For small a, X and Y
    underflow float32, so only their logarithms are computed. If G is from Gamma(a + 1, 1) and U is uniform in (0, 1],
    then G U^(1/a) has the distribution of X.
    """
    gamma_seed, uniform_seed = tf.unstack(tf.random.split(seed, 2))
    gammas = tf.random.stateless_gamma([2], gamma_seed, alpha=concentration + 1.0)
    uniforms = 1.0 - tf.random.stateless_uniform([2], uniform_seed)
    logarithms = tf.math.log(gammas) + tf.math.log(uniforms) / concentration
    return tf.sigmoid(logarithms[0] - logarithms[1])
