"""Mixup (Zhang et al., arXiv 1710.09412) and CutMix (Yun et al., arXiv 1905.04899). B batch, H W C image.

The partner of a batch's image is the one before it, of the first the last: no row of padding is anybody's partner. One
lambda for a batch.
"""

import functools

import tensorflow as tf

from training.data.augment.windows import paste


def mix(images, labels, seed, num_real, config):
    """Mixes the images and labels of a batch, as the config says. With both ways, each batch takes one or the other.

    Args:
        images: uint8 (B, H, W, C)
        labels: Probabilities (B, classes), float.
        seed: (2,) integers.
        num_real: Number of rows, from the first, that are images. The rest is padding, and stays as it is.
        config: `training.recipe.config.Augment`: its mixup and cutmix.

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
    own = beta(concentration, seed)
    own = tf.maximum(own, 1.0 - own)  # Most of an image is itself: with a partner for each, nothing is lost.
    others = tf.gather(images, partners)
    mixed = own * tf.cast(images, tf.float32) + (1.0 - own) * tf.cast(others, tf.float32)
    return tf.cast(tf.round(mixed), tf.uint8), _mix_labels(labels, partners, own)


def _cutmix(images, labels, partners, concentration, lambda_seed, place_seed):
    height, width = images.shape[1:3]
    top, left, bottom, right = _box(height, width, beta(concentration, lambda_seed), place_seed)
    patches = tf.gather(images[:, top:bottom, left:right], partners)
    own = 1.0 - tf.cast((bottom - top) * (right - left), tf.float32) / (height * width)
    return paste(images, patches, top, left), _mix_labels(labels, partners, own)


def _mix_labels(labels, partners, own):
    own = tf.cast(own, labels.dtype)
    return own * labels + (1.0 - own) * tf.gather(labels, partners)


def _box(height, width, own, seed):
    """(top, left, bottom, right) of a box of 1 - `own` of the area, around any pixel, clipped at the border."""
    sides = tf.constant([height, width])
    half = tf.cast(tf.cast(sides, tf.float32) * tf.sqrt(1.0 - own), tf.int32) // 2
    centre = tf.cast(tf.random.stateless_uniform([2], seed) * tf.cast(sides, tf.float32), tf.int32)
    return (*tf.unstack(tf.maximum(centre - half, 0)), *tf.unstack(tf.minimum(centre + half, sides)))


def beta(concentration, seed):
    """A draw from Beta(a, a): X / (X + Y) for X and Y from Gamma(a, 1).

    With logarithms, since for small `a` both gammas are too small for float32: Gamma(a) is Gamma(a + 1) U^(1/a).
    """
    gamma_seed, uniform_seed = tf.unstack(tf.random.split(seed, 2))
    gammas = tf.random.stateless_gamma([2], gamma_seed, alpha=concentration + 1.0)
    uniforms = 1.0 - tf.random.stateless_uniform([2], uniform_seed)
    logarithms = tf.math.log(gammas) + tf.math.log(uniforms) / concentration
    return tf.sigmoid(logarithms[0] - logarithms[1])
