"""RandAugment, MixUp and CutMix of KerasCV, which is no longer developed. Shapes: H W C image, B batch.

The layers use TensorFlow's global random generators. Changes therefore do not depend on the seed of the image, and a
resumed run differs from an uninterrupted run. The layers change images even with `training=False`, so evaluation
must not call them.
"""

import functools

import tensorflow as tf

from training.errors import InputError

_MAX_MAGNITUDE = 10  # KerasCV's magnitudes from 0 to 1 correspond to RandAugment's levels from 0 to 10.


def randaugment(config, channels):
    """Builds the function that changes an image, uint8 (H, W, C), by RandAugment. It also gets a seed.

    Args:
        config: `training.recipe.config.Augment`
        channels: C of the images, 1 or 3.

    Raises:
        InputError: If KerasCV is not installed, or does not support the config.
    """
    if config.autoaugment:
        raise _missing("AutoAugment. Set augment.autoaugment=false")
    if config.randaugment_magnitude > _MAX_MAGNITUDE:
        raise _missing(
            f"RandAugment beyond magnitude {_MAX_MAGNITUDE}. Received: {config.randaugment_magnitude:g}. Lower "
            f"augment.randaugment_magnitude"
        )
    if channels == 1:
        raise _missing("RandAugment for gray images. Set augment.randaugment_ops=0")
    layer = _layers().RandAugment((0, 255), config.randaugment_ops, config.randaugment_magnitude / _MAX_MAGNITUDE, 0.0)
    return lambda image, seed: _to_uint8(layer(tf.cast(image, tf.float32), training=True))


def _missing(what):
    return InputError(f"KerasCV has no {what}, or choose augment.library=tensorflow.")


def mixer(config):
    """Builds the function `mix` of a `training.data.augment.Augmentation`. Raises InputError without KerasCV."""
    layers = _layers()
    mixers = [_mixer_with(layers.MixUp(config.mixup))] if config.mixup else []
    mixers += [_mixer_with(layers.CutMix(config.cutmix))] if config.cutmix else []

    def mix(images, labels, seed, num_real):
        # There are 0, 1 or 2 mixers. With two mixers, the seed chooses one of them with equal probability.
        calls = [functools.partial(one_mixer, images, labels, num_real) for one_mixer in mixers]
        if len(calls) == 2:
            return tf.cond(tf.random.stateless_uniform([], seed) < 0.5, *calls)
        return calls[0]() if calls else (images, labels)

    return mix


@functools.cache
def _layers():
    try:
        import keras_cv
    except ImportError as error:
        raise InputError(
            f"augment.library=keras_cv needs KerasCV, which cannot be imported: {error}. Install it with "
            f"pip install keras-cv, or choose augment.library=tensorflow."
        ) from error
    # In deterministic mode, TensorFlow does not create a global generator, so it is created here. It is on the CPU,
    # because the layers run in tf.data.
    with tf.device("CPU:0"):
        seed = tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32)
        tf.random.set_global_generator(tf.random.Generator.from_seed(int(seed)))
    return keras_cv.layers


def _mixer_with(layer):
    def mix(images, labels, num_real):
        batch = {"images": tf.cast(images[:num_real], tf.float32), "labels": labels[:num_real]}
        mixed = layer(batch, training=True)
        pixels = tf.concat([_to_uint8(mixed["images"]), images[num_real:]], axis=0)
        targets = tf.concat([tf.cast(mixed["labels"], labels.dtype), labels[num_real:]], axis=0)
        return tf.ensure_shape(pixels, images.shape), tf.ensure_shape(targets, labels.shape)

    return mix


def _to_uint8(pixels):
    return tf.saturate_cast(tf.round(pixels), tf.uint8)
