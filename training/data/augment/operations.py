"""The 16 operations of RandAugment and AutoAugment, on uint8 images. Shapes: H W C image, C 1 or 3.

Operations that change values give exactly the results of Pillow, unless a docstring states otherwise. Operations that
move pixels interpolate by nearest neighbour. Pixels from outside the image are gray (128).
"""

import math

import tensorflow as tf

from keras_vit.data.decoding import luma
from training.data.augment.cropping import paste

GRAY = 128


def auto_contrast(image):
    """Stretches each channel so that its darkest value becomes 0 and its brightest 255."""
    low, high = tf.reduce_min(image, axis=[0, 1]), tf.reduce_max(image, axis=[0, 1])
    # For a channel with only one value, `low` is 0 and `high` is 255, so that the channel stays unchanged.
    is_plain = low == high
    low = tf.where(is_plain, tf.zeros_like(low), low)
    high = tf.where(is_plain, 255 * tf.ones_like(high), high)
    low, span = tf.cast(low, tf.float32), tf.cast(high - low, tf.float32)
    rows = tf.cast(_as_rows(image), tf.float32) - _for_rows(low, image)
    # The multiplication is first, so that the numerator is an integer and rounding down is exact.
    return tf.reshape(tf.cast(rows * 255.0 / _for_rows(span, image), tf.uint8), image.shape)


def equalize(image):
    """Makes all values of each channel about equally frequent."""
    channels = image.shape[-1]
    offsets = 256 * tf.range(channels)
    values = tf.cast(_as_rows(image), tf.int32) + _for_rows(offsets, image)
    counts = tf.math.bincount(values, minlength=256 * channels, maxlength=256 * channels)
    counts = tf.reshape(counts, [channels, 256])
    brightest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1)
    step = (tf.reduce_sum(counts, axis=1) - tf.gather(counts, brightest, batch_dims=1)) // 255
    step = step[:, None]
    table = (tf.cumsum(counts, axis=1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.minimum(table, 255), tf.range(256))
    return tf.reshape(tf.gather(tf.reshape(tf.cast(table, tf.uint8), [-1]), values), image.shape)


def invert(image):
    """Inverts all values."""
    return 255 - image


def posterize(image, bits):
    """Keeps the `bits` most significant bits of each value. `bits` is from 1 to 8."""
    mask = 256 - tf.bitwise.left_shift(1, 8 - tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(image, tf.cast(mask, tf.uint8))


def solarize(image, threshold):
    """Inverts all values that are at least the threshold, an integer from 0 to 256."""
    values = tf.cast(image, tf.float32)
    return tf.cast(values + tf.cast(values >= threshold, tf.float32) * (255.0 - 2.0 * values), tf.uint8)


def solarize_add(image, addition):
    """Adds an integer from 0 to 255 to all values below 128. Results are clipped to 255."""
    values = tf.cast(image, tf.float32)
    return tf.cast(tf.minimum(values + addition * tf.cast(values < 128, tf.float32), 255.0), tf.uint8)


def color(image, factor):
    """Changes the saturation. Factor 0 gives a gray image, factor 1 the image itself."""
    if image.shape[-1] == 1:
        return image
    return _blend(tf.cast(tf.tile(luma(image), [1, 1, 3]), tf.float32), image, factor)


def contrast(image, factor):
    """Changes the contrast. Factor 0 gives a uniform image with the mean luma, factor 1 the image itself.

    The mean luma is computed as in Pillow. In place of the mean, Google's code uses the number of pixels divided by
    256.
    """
    gray = image if image.shape[-1] == 1 else luma(image)
    num_pixels = image.shape[0] * image.shape[1]
    mean = (2 * tf.reduce_sum(tf.cast(gray, tf.int64)) + num_pixels) // (2 * num_pixels)
    return _blend(tf.cast(mean, tf.float32), image, factor)


def brightness(image, factor):
    """Changes the brightness. Factor 0 gives a black image, factor 1 the image itself."""
    return _blend(0.0, image, factor)


def color_jitter(image, seed, most):
    """Changes brightness, contrast and saturation at random, each by a factor from `1 - most` to `1 + most`.

    Args:
        image: uint8 (H, W, C)
        seed: (2,) integers.
        most: Maximum change, from 0 to 1.
    """
    factors = tf.unstack(tf.random.stateless_uniform([3], seed, 1 - most, 1 + most))
    for change, factor in zip((brightness, contrast, color), factors, strict=True):
        image = change(image, factor)
    return image


def sharpness(image, factor):
    """Smooths the image (factor below 1) or sharpens it (factor above 1). The outermost pixels stay unchanged."""
    height, width, channels = image.shape
    if min(height, width) < 3:
        return image
    rows = tf.cast(_as_rows(image), tf.float32)
    sums = rows[:-2] + rows[1:-1] + rows[2:]
    sums = sums[:, : -2 * channels] + sums[:, channels:-channels] + sums[:, 2 * channels :]
    inner = rows[1:-1, channels:-channels]
    smooth = tf.floor((sums + 4.0 * inner) / 13.0 + 0.5)
    sharpened = tf.reshape(_blend(smooth, inner, factor), [height - 2, width - 2, channels])
    return paste(image, sharpened, 1, 1)


def rotate(image, degrees):
    """Rotates the image counterclockwise around its centre."""
    height, width, _ = image.shape
    angle = degrees * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    x = centre_x - cos * centre_x + sin * centre_y
    y = centre_y - sin * centre_x - cos * centre_y
    return _transform(image, [cos, -sin, x, sin, cos, y])


def shear_x(image, slope):
    """Moves each row to the left, by `slope` times the row's index."""
    return _transform(image, [1.0, slope, 0.0, 0.0, 1.0, 0.0])


def shear_y(image, slope):
    """Moves each column up, by `slope` times the column's index."""
    return _transform(image, [1.0, 0.0, 0.0, slope, 1.0, 0.0])


def translate_x(image, fraction):
    """Moves the image to the left by a fraction of its width. The distance is rounded to whole pixels."""
    return _shift(image, fraction, axis=1)


def translate_y(image, fraction):
    """Moves the image up by a fraction of its height. The distance is rounded to whole pixels."""
    return _shift(image, fraction, axis=0)


def cutout(image, fraction, place):
    """Covers a square of the image with gray (arXiv 1708.04552). The square is clipped at the border.

    Args:
        image: uint8 (H, W, C)
        fraction: Half of the square's side, as a fraction of the image's shorter side. The half is rounded to pixels.
        place: (2,) uniform random numbers from 0 to 1: the square's centre, as fractions of the height and the width.

    Returns:
        uint8 (H, W, C)
    """
    *sides, channels = image.shape
    half = tf.cast(tf.round(fraction * min(sides)), tf.int32)
    centre = tf.cast(place * tf.constant(sides, tf.float32), tf.int32)
    begin, end = tf.maximum(centre - half, 0), tf.minimum(centre + half, sides)
    square = tf.fill([*tf.unstack(end - begin), channels], tf.constant(GRAY, tf.uint8))
    return paste(image, square, begin[0], begin[1])


def _as_rows(image):
    """Reshapes (H, W, C) to (H, W·C). TensorFlow is many times faster if the last axis is long."""
    height, width, channels = image.shape
    return tf.reshape(image, [height, width * channels])


def _for_rows(values, image):
    """Repeats the values of the channels, (C,), for each pixel of a row: (W·C,)."""
    return tf.tile(values, [image.shape[1]])


def _blend(degenerate, image, factor):
    """Interpolates between a degenerate image (factor 0) and the image (factor 1), or extrapolates. Rounds down."""
    pixels = tf.cast(image, tf.float32)
    return tf.saturate_cast(degenerate + factor * (pixels - degenerate), tf.uint8)


def _transform(image, matrix):
    """Pixel (x, y) of the result is the image's pixel nearest to (a x + b y + c, d x + e y + f). `matrix`: a to f."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([*matrix, 0.0, 0.0])[None],
        output_shape=image.shape[:2],
        fill_value=float(GRAY),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def _shift(image, fraction, axis):
    pixels = tf.cast(tf.round(fraction * image.shape[axis]), tf.int32)
    begin, paddings = [0, 0, 0], [[0, 0], [0, 0], [0, 0]]
    paddings[axis] = [tf.abs(pixels)] * 2
    begin[axis] = tf.abs(pixels) + pixels
    return tf.slice(tf.pad(image, paddings, constant_values=GRAY), begin, image.shape)
