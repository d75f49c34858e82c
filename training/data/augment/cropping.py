"""Crops windows of samples, and pastes rectangles into images. Shapes: H W C image."""

import functools

import tensorflow as tf

from keras_vit.data.decoding import decode_upright, luma, read_orientation, resize_image, upright, upright_size
from training.data.samples import move_sample, resize_raster, scaling

ASPECT_RATIOS = (3 / 4, 4 / 3)
_DIVISORS = (1, 2, 4, 8)  # A JPEG file can be decoded with its sides divided by one of these numbers.


def random_window(sample, seed, size):
    """Cuts a window out of a sample, at a uniformly random position.

    Args:
        sample: A sample of `training.data.samples` with a decoded image (height, width, C).
        seed: (2,) integers.
        size: (H, W) of the window.

    Returns:
        The changed sample, with an image (H, W, C).
    """
    sides = tf.shape(sample["image"])[:2]
    num_positions = tf.cast(sides - size + 1, tf.float32)
    top_left = tf.cast(tf.random.stateless_uniform([2], seed) * num_positions, tf.int32)

    def cut(pixels, _=None):
        return tf.slice(pixels, [*tf.unstack(top_left), 0], [*size, pixels.shape[-1]])

    return move_sample(sample, cut, cut, lambda: scaling(sides, sides, -top_left), size)


def inception_crop(sample, seed, size, channels, area, interpolation):
    """Decodes a random part of an encoded image, and resizes it: the crop of Inception (arXiv 1409.4842, section 6).

    The part is a window of the upright image, which is the image after the rotation that EXIF requires. The window's
    aspect ratio is uniform from 3/4 to 4/3. The window's height is uniform over the heights for which a window of this
    aspect ratio fits into the image and has an allowed area. If none of a hundred random windows fits, the window is
    the whole image.

    In JPEG files, only the window is decoded. If the window is at least twice as high and twice as wide as the result,
    it is decoded at a reduced resolution.

    Args:
        sample: A sample of `training.data.samples`. Its image is the contents of a JPEG, PNG, GIF, BMP or WebP file.
        seed: (2,) integers.
        size: (H, W) of the result.
        channels: C of the result, 1 or 3.
        area: Pair of the smallest and largest fraction of the image's area that the window may cover.
        interpolation: Interpolation of the resizing.

    Returns:
        The changed sample, with an image, uint8 (H, W, C).
    """
    draw_window = functools.partial(_draw_window, seed=seed, area=area)

    def move_image(image_bytes):
        def from_other():
            image = decode_upright(image_bytes, 3)
            top, left, height, width = tf.unstack(draw_window(tf.shape(image)[:2]))
            return image[top : top + height, left : left + width]

        from_jpeg = functools.partial(_decode_jpeg_window, image_bytes, draw_window, size)
        window = tf.cond(tf.io.is_jpeg(image_bytes), from_jpeg, from_other)
        window.set_shape([None, None, 3])
        return resize_image(luma(window) if channels == 1 else window, size, interpolation)

    def move_raster(raster, _):
        top, left, height, width = tf.unstack(draw_window(tf.shape(raster)[:2]))
        return resize_raster(raster[top : top + height, left : left + width], size)

    def matrix():
        window = draw_window(tf.cast(upright_size(sample["image"]), tf.int32))
        scale = tf.cast(size, tf.float32) / tf.cast(window[2:], tf.float32)
        return scaling(window[2:], size, -scale * tf.cast(window[:2], tf.float32))

    return move_sample(sample, move_image, move_raster, matrix, size)


def scaled_window(sample, seed, size, channels, scale_range, preprocessing):
    """Decodes and scales a sample at random, and crops or pads it to `size` at a random position.

    The image is padded with the mean colour that the model's normalisation subtracts.

    Args:
        sample: A sample of `training.data.samples` with an encoded image.
        seed: (2,) integers.
        size: (H, W) of the result.
        channels: C of the result, 1 or 3.
        scale_range: Smallest and largest scale. At scale 1, the whole image is resized to `size`.
        preprocessing: The `preprocessing` layer of the model.

    Returns:
        The changed sample, with an image, uint8 (H, W, C).
    """
    draws = tf.random.stateless_uniform([3], seed)
    scale = scale_range[0] + draws[0] * (scale_range[1] - scale_range[0])
    scaled = tf.maximum(tf.cast(tf.round(scale * tf.cast(size, tf.float32)), tf.int32), 1)
    positions = tf.cast(draws[1:] * tf.cast(tf.abs(scaled - size) + 1, tf.float32), tf.int32)
    begin, corner = tf.where(scaled > size, positions, 0), tf.where(scaled < size, positions, 0)
    extent = tf.minimum(scaled, size)

    def place(pixels, outside):
        depth = pixels.shape[-1]
        window = tf.slice(pixels, [*tf.unstack(begin), 0], [*tf.unstack(extent), depth])
        return paste(tf.broadcast_to(outside, [*size, depth]), window, *tf.unstack(corner))

    def move_image(image_bytes):
        mean = tf.cast(tf.round(255.0 * tf.constant(preprocessing.mean, tf.float32)), tf.uint8)
        image = resize_image(decode_upright(image_bytes, channels), scaled, preprocessing.interpolation)
        return place(image, mean)

    def move_raster(raster, outside):
        return place(resize_raster(raster, scaled), outside)

    def matrix():
        return scaling(upright_size(sample["image"]), scaled, corner - begin)

    return move_sample(sample, move_image, move_raster, matrix, size)


def _draw_window(sides, seed, area):
    """Draws a random window in an image with the given sides: (top, left, height, width)."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([sides, [3]], axis=0),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=area,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], axis=0)


def _decode_jpeg_window(image_bytes, draw_window, size):
    """Decodes a window of the upright image in a JPEG file. If possible, the result is at least as large as `size`."""
    orientation = read_orientation(image_bytes)
    sides = tf.image.extract_jpeg_shape(image_bytes)[:2]
    window = draw_window(tf.where(orientation > 4, sides[::-1], sides))
    stored_size = tf.where(orientation > 4, size[::-1], size)
    window = stored_window(window, sides, orientation)
    # The divisor is the largest one that leaves the window at least as large as the result.
    max_divisor = tf.reduce_min(window[2:] // stored_size)
    index = tf.searchsorted(_DIVISORS, [max_divisor], side="right")[0] - 1
    branches = [_window_decoder(image_bytes, window, sides, divisor) for divisor in _DIVISORS]
    return upright(tf.switch_case(tf.maximum(index, 0), branches), orientation)


def stored_window(window, sides, orientation):
    """Converts a window of the upright image to a window of the image as stored.

    Args:
        window: (top, left, height, width) in the upright image.
        sides: (height, width) of the image as stored.
        orientation: The EXIF orientation, from 1 to 8.

    Returns:
        (top, left, height, width)
    """
    top, left, height, width = tf.unstack(window)
    upright_height, upright_width = tf.unstack(tf.where(orientation > 4, sides[::-1], sides))
    # Undoes the steps of `upright`, in reverse order.
    top = tf.where(tf.reduce_any(orientation == (3, 4, 7, 8)), upright_height - top - height, top)
    left = tf.where(tf.reduce_any(orientation == (2, 3, 6, 7)), upright_width - left - width, left)
    return tf.where(orientation > 4, [left, top, width, height], [top, left, height, width])


def _window_decoder(image_bytes, window, sides, divisor):
    def decode():
        # libjpeg rounds up the sides of the smaller image.
        smaller_sides = (sides + divisor - 1) // divisor
        begin = tf.minimum(window[:2] // divisor, smaller_sides - 1)
        extent = tf.clip_by_value(window[2:] // divisor, 1, smaller_sides - begin)
        return tf.image.decode_and_crop_jpeg(
            image_bytes, tf.concat([begin, extent], axis=0), 3, ratio=divisor, dct_method="INTEGER_ACCURATE"
        )

    return decode


def paste(images, patch, top, left):
    """Pastes a patch into images. Both have the same number of channels.

    Args:
        images: (..., H, W, C)
        patch: (..., h, w, C), within the images; h or w may be 0.
        top: Top row of the patch in the images, a scalar.
        left: Left column of the patch in the images, a scalar.

    Returns:
        (..., H, W, C)
    """
    # Concatenating five pieces is several times faster than choosing each pixel from one of two images.
    height, width = tf.unstack(tf.shape(patch)[-3:-1])
    bottom, right = top + height, left + width
    middle = images[..., top:bottom, :, :]
    middle = tf.concat([middle[..., :left, :], patch, middle[..., right:, :]], axis=-2)
    pasted = tf.concat([images[..., :top, :, :], middle, images[..., bottom:, :, :]], axis=-3)
    return tf.ensure_shape(pasted, images.shape)
