"""Random changes of images together with their masks. Shapes: H W C image."""

import tensorflow as tf

from keras_vit.decoding import decode_upright, image_decoder, resize_image
from keras_vit.preprocessing import input_preprocessing
from training.data.augment.affine import flip
from training.data.augment.building import Augmentation
from training.data.augment.cropping import paste
from training.data.augment.operations import brightness, color, contrast
from training.data.masks import VOID, decode_mask


def build_masked_augmentation(model, config):
    """Builds the random changes of training images and their masks: scaling, cropping or padding, flips, and colours.

    Args:
        model: A segmentation model of this package with a fixed input size.
        config: `training.recipe.config.Augment`. Its scale_range, flip and color_jitter are used.

    Returns:
        A `training.data.augment.Augmentation`. `decode(image_bytes, mask_bytes)` returns an image and a mask that can
        be cached. `change(image, mask, seed)` returns the image and mask for one epoch, uint8 (H, W, C) and (H, W).
        `mix` returns its images and masks unchanged.
    """
    preprocessing, size, channels = input_preprocessing(model)
    is_scaled = tuple(config.scale_range) != (1.0, 1.0)
    to_pixels = image_decoder(model)

    def decode(image_bytes, mask_bytes):
        # Images that are scaled anew in every epoch are cached in encoded form.
        return (image_bytes, mask_bytes) if is_scaled else (to_pixels(image_bytes), decode_mask(mask_bytes, size))

    def change(image, mask, seed):
        scale_seed, flip_seed, jitter_seed = tf.unstack(tf.random.split(tf.cast(seed, tf.int64), 3))
        if is_scaled:
            image = decode_upright(image, channels)
            image, mask = _scaled_window(image, mask, scale_seed, size, config.scale_range, preprocessing)
        if config.flip:
            image, mask = flip(image, flip_seed), flip(mask, flip_seed)
        if config.color_jitter:
            low, high = 1 - config.color_jitter, 1 + config.color_jitter
            factors = tf.unstack(tf.random.stateless_uniform([3], jitter_seed, low, high))
            for change_color, factor in zip((brightness, contrast, color), factors, strict=True):
                image = change_color(image, factor)
        return image, mask

    return Augmentation(decode, change, lambda images, masks, seed, num_real: (images, masks))


def _scaled_window(image, mask_bytes, seed, size, scale_range, preprocessing):
    """Scales an image and its mask at random, and crops or pads them to the model's size at a random position.

    The image is padded with the mean colour that the model's normalisation subtracts. The mask is padded with void.
    """
    draws = tf.random.stateless_uniform([3], seed)
    scale = scale_range[0] + draws[0] * (scale_range[1] - scale_range[0])
    scaled = tf.maximum(tf.cast(tf.round(scale * tf.cast(size, tf.float32)), tf.int32), 1)
    image, mask = resize_image(image, scaled, preprocessing.interpolation), decode_mask(mask_bytes, scaled)
    positions = tf.cast(draws[1:] * tf.cast(tf.abs(scaled - size) + 1, tf.float32), tf.int32)
    begin = tf.where(scaled > size, positions, 0)
    extent = tf.minimum(scaled, size)
    top, left = tf.unstack(tf.where(scaled < size, positions, 0))
    channels = image.shape[-1]
    mean = tf.cast(tf.round(255.0 * tf.constant(preprocessing.mean, tf.float32)), tf.uint8)
    ground = tf.broadcast_to(mean, [*size, channels])
    void = tf.fill([*size, 1], tf.constant(VOID, tf.uint8))
    image = tf.slice(image, [*tf.unstack(begin), 0], [*tf.unstack(extent), channels])
    mask = tf.slice(mask, begin, extent)[..., None]
    return paste(ground, image, top, left), paste(void, mask, top, left)[..., 0]
