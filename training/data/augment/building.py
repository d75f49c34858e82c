"""Builds the augmentation that a recipe's section `augment` requests. Shapes: H W C image, B batch."""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.decoding import decode_upright, resize_image, upright_size
from keras_vit.preprocessing import input_preprocessing
from training.data.augment.affine import flip, move
from training.data.augment.cropping import inception_crop, random_window, scaled_window
from training.data.augment.erasing import erase
from training.data.augment.mixing import mix
from training.data.augment.operations import color_jitter
from training.data.augment.policies import autoaugment, randaugment
from training.data.samples import is_spatial, move_sample, resize_raster, sample_decoder, scaling
from training.errors import InputError


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The functions that decode, change and mix samples (`training.data.samples`) for training. Images are uint8.

    `decode(sample)` returns a sample that is the same in every epoch and can be cached: with a decoded image, or
    unchanged if the part of the image that is decoded differs in each epoch. `change(decoded, seed)` returns the sample
    with an image (H, W, C) for one epoch. `mix(images, labels, seed, num_real)` returns the images (B, H, W, C) and
    labels (B, classes) of one batch. The rows from `num_real` on are padding and stay unchanged. Seeds are (2,)
    integers.
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
    size_changes, other_changes = _size_changes(model, config), _other_changes(config, policies)

    def change(sample, seed):
        # The first seed of samples with masks or boxes is that of their scale, also if they are not scaled.
        unchanged = [lambda sample, _: sample] if is_spatial(sample) and not size_changes else []
        changes = [*size_changes, *unchanged, *other_changes]
        # The result of `tf.random.split` depends on the integer type of the seed, so the type is fixed. At least one
        # seed is made, even if there are no changes.
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int64), len(changes) or 1))
        for one_change, one_seed in zip(changes, seeds, strict=False):
            sample = one_change(sample, one_seed)
        return sample

    def mix_seeded(images, labels, seed, num_real):
        return mix_batch(images, labels, tf.cast(seed, tf.int64), num_real)

    return Augmentation(_decoder(model, config), change, mix_seeded)


def _decoder(model, config):
    layer, size, channels = input_preprocessing(model)
    if config.crop == "inception" or _is_scaled(config):
        return dict
    if config.crop == "none":
        return sample_decoder(model)
    if config.crop_from < max(size):
        raise InputError(
            f"augment.crop_from={config.crop_from} is smaller than the model's images, {size[0]} x {size[1]} pixels. "
            f"Choose at least {max(size)}."
        )
    square = [config.crop_from, config.crop_from]

    def decode(sample):
        return move_sample(
            sample,
            lambda image_bytes: resize_image(decode_upright(image_bytes, channels), square, layer.interpolation),
            lambda raster, _: resize_raster(raster, square),
            lambda: scaling(upright_size(sample["image"]), square, [0, 0]),
            square,
        )

    return decode


def _is_scaled(config):
    return tuple(config.scale_range) != (1.0, 1.0)


def _size_changes(model, config):
    """The change that makes images of the model's input size, as a list. Empty if they already have it."""
    layer, size, channels = input_preprocessing(model)
    if config.crop == "random":
        return [functools.partial(random_window, size=size)]
    if config.crop == "inception":
        options = {"area": config.crop_area, "interpolation": layer.interpolation}
        return [functools.partial(inception_crop, size=size, channels=channels, **options)]
    if _is_scaled(config):
        options = {"scale_range": config.scale_range, "preprocessing": layer}
        return [functools.partial(scaled_window, size=size, channels=channels, **options)]
    return []


def _other_changes(config, policies):
    changes: list[Callable] = []
    if config.translation or config.rotation or config.scale:
        changes.append(functools.partial(move, config=config))
    elif config.flip:
        changes.append(flip)
    if config.color_jitter:
        changes.append(_of_image(functools.partial(color_jitter, most=config.color_jitter)))
    changes += map(_of_image, policies)
    if config.erasing:
        changes.append(_of_image(functools.partial(erase, probability=config.erasing)))
    return changes


def _of_image(change):
    """A change of samples that only changes the image."""
    return lambda sample, seed: sample | {"image": change(sample["image"], seed)}
