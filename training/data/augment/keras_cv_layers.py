"""Augmentation with the layers of KerasCV, which is no longer developed. Shapes: H W C image, B batch.

The layers use TensorFlow's global random generators. Changes therefore do not depend on the seed of the image, and a
resumed run differs from an uninterrupted run. The layers change images even with `training=False`, so evaluation
must not call them.
"""

import functools
import math

import tensorflow as tf

from keras_vit.decoding import decode_upright
from training.data.augment import erasing
from training.data.augment.cropping import ASPECT_RATIOS
from training.errors import InputError

_MAX_MAGNITUDE = 10  # KerasCV's magnitudes from 0 to 1 correspond to RandAugment's levels from 0 to 10.


def changes(config, size, channels, interpolation):
    """Builds the functions that change one image, as a config requests.

    Args:
        config: `training.recipe.config.Augment`
        size: (H, W) of the result.
        channels: C of the result, 1 or 3.
        interpolation: Interpolation of the resizing for crop=inception.

    Returns:
        List of functions. Each receives an image and a seed, and returns the changed image, uint8 (H, W, C). With
        crop=inception, the first function receives an encoded image.

    Raises:
        InputError: If KerasCV is not installed, or does not support the config.
    """
    layers = _layers()
    _check(config, channels)
    result = []
    if config.crop == "random":
        result.append(_change_with(layers.RandomCrop(*size)))
    elif config.crop == "inception":
        crop = layers.RandomCropAndResize(size, config.crop_area, ASPECT_RATIOS, interpolation=interpolation)
        result.append(lambda image_bytes, seed: _change_with(crop)(decode_upright(image_bytes, channels), seed))
    result += [_change_with(layer) for layer in _affine_layers(layers, config)]
    if config.randaugment_ops:
        magnitude = config.randaugment_magnitude / _MAX_MAGNITUDE
        result.append(_change_with(layers.RandAugment((0, 255), config.randaugment_ops, magnitude, 0.0)))
    if config.erasing:
        result.append(_eraser(layers, config.erasing))
    return result


def mixer(config):
    """Builds the function `mix` of a `training.data.augment.Augmentation`."""
    mixers = [_mixer_with(_layers().MixUp(config.mixup))] if config.mixup else []
    mixers += [_mixer_with(_layers().CutMix(config.cutmix))] if config.cutmix else []

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


def _check(config, channels):
    missing = None
    if config.autoaugment:
        missing = "AutoAugment. Set augment.autoaugment=false"
    elif config.randaugment_ops and config.randaugment_magnitude > _MAX_MAGNITUDE:
        missing = (
            f"RandAugment beyond magnitude {_MAX_MAGNITUDE}. Received: {config.randaugment_magnitude:g}. Lower "
            f"augment.randaugment_magnitude"
        )
    elif config.randaugment_ops and channels == 1:
        missing = "RandAugment for gray images. Set augment.randaugment_ops=0"
    if missing:
        raise InputError(f"KerasCV has no {missing}, or choose augment.library=tensorflow.")


def _affine_layers(layers, config):
    fill = {"fill_mode": "constant" if config.fill == "black" else "reflect", "fill_value": 0.0}
    if config.flip:
        yield layers.RandomFlip()
    if config.translation:
        yield layers.RandomTranslation(config.translation, config.translation, **fill)
    if config.rotation:
        yield layers.RandomRotation(config.rotation / 360, **fill)  # KerasCV expects fractions of a full turn.
    if config.scale:
        yield layers.RandomZoom(config.scale, **fill)


def _eraser(layers, probability):
    # RandomCutout differs from `erasing` in two points: it chooses height and width independently, and it scales the
    # noise to the range of the image's values.
    sides = tuple(math.sqrt(area) for area in erasing.AREAS)
    erase = _change_with(layers.RandomCutout(sides, sides, fill_mode="gaussian_noise"))

    def maybe_erase(image, seed):
        # KerasCV's RandomApply fails within tf.data.
        is_erased = tf.random.stateless_uniform([], seed) < probability
        return tf.cond(is_erased, lambda: erase(image, seed), lambda: image)

    return maybe_erase


def _change_with(layer):
    def change(image, seed):
        del seed
        return _to_uint8(layer(tf.cast(image, tf.float32), training=True))

    return change


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
