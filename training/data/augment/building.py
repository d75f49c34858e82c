"""Builds the augmentation that a recipe's section `augment` requests. Shapes: H W C image, B batch."""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from keras_vit.decoding import decode_upright, image_decoder, resize_image
from keras_vit.preprocessing import input_preprocessing
from training.data.augment.affine import flip, move
from training.data.augment.cropping import inception_crop, random_window
from training.data.augment.erasing import erase
from training.data.augment.mixing import mix
from training.data.augment.policies import autoaugment, randaugment
from training.errors import InputError


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The functions that decode, change and mix training images. All images are uint8.

    `decode(image_bytes)` returns data that is the same in every epoch and can be cached: the pixels, or the encoded
    image if crop=inception. `change(decoded, seed)` returns the image (H, W, C) for one epoch.
    `mix(images, labels, seed, num_real)` returns the images (B, H, W, C) and labels (B, classes) of one batch. The rows
    from `num_real` on are padding and stay unchanged. Seeds are (2,) integers.
    """

    decode: Callable
    change: Callable
    mix: Callable


def build_augmentation(model, config):
    """Builds the random changes that a recipe requests, for training only.

    Args:
        model: A model of this package with a fixed input size.
        config: `training.recipe.config.Augment`

    Returns:
        An `Augmentation`.

    Raises:
        InputError: If the config does not fit the image size, if `config.library` is not installed, or if this
            library lacks a change that the config requests.
    """
    operations, magnitude = config.randaugment_ops, config.randaugment_magnitude
    policies: list[Callable] = []
    if config.library == "keras_cv":
        # keras-cv is optional, and its import is slow.
        from training.data.augment import keras_cv_layers

        mix_batch = keras_cv_layers.mixer(config)
        if operations or config.autoaugment:
            policies.append(keras_cv_layers.randaugment(config, model.input_shape[-1]))
    else:
        mix_batch = functools.partial(mix, config=config)
        if operations:
            policies.append(functools.partial(randaugment, num_operations=operations, magnitude=magnitude))
        if config.autoaugment:
            policies.append(autoaugment)
    changes = _changes(model, config, policies)

    def change(decoded, seed):
        # The result of `tf.random.split` depends on the integer type of the seed, so the type is fixed. At least one
        # seed is made, even if there are no changes.
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int64), len(changes) or 1))
        for one_change, one_seed in zip(changes, seeds, strict=False):
            decoded = one_change(decoded, one_seed)
        return decoded

    def mix_seeded(images, labels, seed, num_real):
        return mix_batch(images, labels, tf.cast(seed, tf.int64), num_real)

    return Augmentation(_decoder(model, config), change, mix_seeded)


def _decoder(model, config):
    layer, size, channels = input_preprocessing(model)
    if config.crop == "none":
        return image_decoder(model)
    if config.crop == "inception":
        return tf.identity
    if config.crop_from < max(size):
        raise InputError(
            f"augment.crop_from={config.crop_from} is smaller than the model's images, {size[0]} x {size[1]} pixels. "
            f"Choose at least {max(size)}."
        )
    side = config.crop_from
    return lambda image_bytes: resize_image(decode_upright(image_bytes, channels), [side, side], layer.interpolation)


def _changes(model, config, policies):
    layer, size, channels = input_preprocessing(model)
    changes: list[Callable] = []
    if config.crop == "random":
        changes.append(functools.partial(random_window, size=size))
    elif config.crop == "inception":
        options = {"size": size, "channels": channels, "area": config.crop_area}
        changes.append(functools.partial(inception_crop, **options, interpolation=layer.interpolation))
    if config.translation or config.rotation or config.scale:
        changes.append(functools.partial(move, config=config))
    elif config.flip:
        changes.append(flip)
    changes += policies
    if config.erasing:
        changes.append(functools.partial(erase, probability=config.erasing))
    return changes
