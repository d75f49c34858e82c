"""Decodes images to the pixels that a model expects, for training, evaluation and serving.

Shapes: B batch, H W C image.
"""

import functools

import numpy as np
import tensorflow as tf

from keras_vit.architectures import read_architecture
from keras_vit.checks import MAX_PIXELS, check_positive_integer
from keras_vit.data import headers
from keras_vit.layers.transformer.naflex_patches import largest_grid
from keras_vit.preprocessing import input_preprocessing, preprocessing_layer, vision_model

_SCANS_AT_MAX_PIXELS = 12  # Maximum number of scans of a JPEG file with MAX_PIXELS pixels. Progressive files have 10.
_LARGE_SIDE = 512  # `check_decoding_cost` gets no model, so it assumes a resize of the short side to this length.
_FILE = tf.TensorSpec([], tf.string)


def image_decoder(model, size=None):
    """Makes a function that decodes the contents of an image file to the pixels that a model expects.

    The pixels are the same as from Pillow, except for rounding. The conversion of CMYK and a bilinear resize may each
    change them by one level. A bicubic resize may change them by two levels, but changes fewer than 1 % of the values.
    Pillow 13 resizes the height first for some sizes, which changes pixels by up to 7 levels in photographs of this
    package. These files can be decoded:

    * JPEG: gray, color, CMYK, progressive.
    * PNG: gray, color, palette, interlaced; 16 bits (the upper 8 are used); animations (the still image is used).
    * GIF: the first frame, padded with black if it is smaller than the canvas of the GIF.
    * BMP: 8, 24 and 32 bits per pixel, with or without palette, not compressed.
    * WebP: lossy and lossless, no animations.

    Transparency is ignored. Transparent pixels keep their color. The EXIF orientation of JPEG, PNG and WebP files is
    applied. In PNG and WebP files, it must be in the first or last 64 KB.

    Args:
        model: A model of this package for images of C channels, 1 or 3.
        size: (height, width) of the result, for a model of variable input size. By default, the `preprocessing` layer
            defines it. If `size` differs from the size that this layer defines, the layer's resize and crop are scaled
            in proportion. For example, if `size` is 320, a resize to 248 and a crop to 224 become a resize to 354 and a
            crop to 320.

    Returns:
        A TensorFlow function that converts the contents of a file, a scalar string, to pixels, uint8 (H, W, C). It
        resizes and crops the image as the model's `preprocessing` layer defines.

    Raises:
        ValueError: If no size is known, if the model does not take images of `size`, if its `preprocessing` layer
            produces images of another size, or if C is neither 1 nor 3.
    """
    decode = _row_decoder(_decode_any, *input_preprocessing(model, size))
    # AutoGraph has nothing to convert here, but would take a second.
    return tf.autograph.experimental.do_not_convert(lambda image: decode(image, read_orientation(image)))


def batch_decoder(model, size=None, max_pixels=MAX_PIXELS):
    """Makes a function that decodes a batch of image files, any of which may be damaged or malicious.

    Args:
        model: Same as in `image_decoder`.
        size: Same as in `image_decoder`.
        max_pixels: Maximum number of pixels of an image. The limit applies to the image in the file and to the resized
            image before the crop. Larger images are not decoded. For images above the default limit, Pillow warns of a
            decompression bomb. Decoding takes up to 12 bytes of memory per pixel, and as many images are decoded at the
            same time as there are CPU cores. The time to decode a JPEG file grows with its number of scans. So a JPEG
            file is not decoded if it has more than 100 scans, or if its scans together have more than 12 times
            `max_pixels` pixels.

    Returns:
        A `tf.function` that takes strings (B,) and returns pixels, uint8 (B, H, W, C), and whether each image could be
        decoded, bool (B,). The pixels are the same as from `image_decoder` and do not depend on the other images. If an
        image could not be decoded, its pixels are zeros. No file raises an error, whatever it contains.

    Raises:
        ValueError: Same as in `image_decoder`.
    """
    preprocessing, size, channels = input_preprocessing(model, size)
    decode_batch = _batch_decoder(
        lambda read: _row_decoder(read, preprocessing, size, channels),
        [*size, channels],
        lambda sizes, _: (_most_pixels(sizes, preprocessing.resize),),
        max_pixels,
    )
    return lambda image_bytes: decode_batch(image_bytes)[:2]


def naflex_decoder(model, max_patches, max_pixels=MAX_PIXELS):
    """Makes a function that decodes a batch of image files to the patches that a `keras_vit.naflex_model` expects.

    Args:
        model: A model of this package for images of C channels, 1 or 3.
        max_patches: Largest number N of patches of an image.
        max_pixels: As in `batch_decoder`.

    Returns:
        A `tf.function` that takes strings (B,) and returns patches, uint8 (B, N, P, Q, C), whether each image could be
        decoded, bool (B,), and the rows and columns of patches, int32 (B, 2). The patches are those of
        `keras_vit.layers.NaFlexPatches`, except for rounding. If an image could not be decoded, its patches are zeros.
    """
    layer = preprocessing_layer(model)
    patch_shape, interpolation = read_architecture(layer.architecture).patch_shape, layer.interpolation
    shape = [max_patches, *patch_shape, vision_model(model).input_shape[-1]]

    def decoder_of(read):
        def decode(image_bytes, orientation, grid):
            image = _apply_orientation(read(image_bytes), orientation, shape[-1])
            image = resize_image(image, grid * patch_shape, interpolation)
            image = tf.reshape(image, [grid[0], patch_shape[0], grid[1], *shape[2:]])
            patches = tf.reshape(tf.transpose(image, [0, 2, 1, 3, 4]), [-1, *shape[1:]])
            return tf.pad(patches, [[0, max_patches - tf.shape(patches)[0]], *[[0, 0]] * 3])

        return decode

    def plan(sizes, orientations):
        """The largest number of pixels of each image before, during or after the resize, and its grid."""
        sides = tf.maximum(_upright(sizes, orientations), 1)
        grids = largest_grid(sides, patch_shape, max_patches, tf.experimental.numpy)
        new, sides = grids * np.array(patch_shape, "float64"), tf.cast(sides, tf.float64)
        pixels = tf.reduce_max([tf.reduce_prod(sides, -1), *tf.unstack(sides * new[..., ::-1], axis=-1)], axis=0)
        return tf.where(tf.reduce_all(sizes > 0, axis=-1), pixels, 0), tf.cast(grids, tf.int32)

    return _batch_decoder(decoder_of, shape, plan, max_pixels)


def _batch_decoder(decoder_of, shape, plan, max_pixels):
    """Makes the functions of `batch_decoder` and `naflex_decoder`.

    Args:
        decoder_of: Function that receives one that decodes a file, and returns the decoder of an image.
        shape: Shape of a decoded image.
        plan: Function of the sizes (B, 2) and orientations (B,) of images. It returns the largest number of pixels of
            each image, and further arguments of the decoder. The latter are returned with the images.
        max_pixels: As in `batch_decoder`.
    """
    max_pixels = check_positive_integer("max_pixels", max_pixels)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False

    def decode_some(read, are_chosen, *rows):
        """Returns the index and pixels of each chosen image that can be decoded, and of a black image with index B."""
        signature = [tf.TensorSpec(row.shape[1:], row.dtype) for row in rows]
        decode = tf.function(decoder_of(read), signature, autograph=False)
        chosen = tf.where(are_chosen)[:, 0]
        # Inside a graph, only a data set can continue after an operation fails. The data set leaves out damaged images.
        data = tf.data.Dataset.from_tensor_slices((chosen, *(tf.gather(row, chosen) for row in rows)))
        data = data.map(lambda index, *row: (index, decode(*row)), tf.data.AUTOTUNE, deterministic=False)
        batch_size = tf.size(rows[0], tf.int64)
        data = data.ignore_errors().concatenate(tf.data.Dataset.from_tensors((batch_size, tf.zeros(shape, tf.uint8))))
        return data.batch(batch_size + 1).with_options(options).get_single_element()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def decode_batch(image_bytes):
        sizes, orientations = headers.read_header(image_bytes)
        most, *further = plan(sizes, orientations)
        are_safe = (
            (most > 0) & (most <= max_pixels) & ~headers.has_too_many_scans(image_bytes, _most_scans(sizes, max_pixels))
        )
        are_common, rows = _is_common(image_bytes), (image_bytes, orientations, *further)
        common = decode_some(_decode_common, are_safe & are_common, *rows)
        are_other = are_safe & ~are_common
        decode_others = headers.as_operation(lambda *inputs: decode_some(_decode_other, *inputs))

        def with_others():
            others = decode_others(are_other, *rows)
            return tuple(tf.concat(parts, axis=0) for parts in zip(common, others, strict=True))

        # The data set for other formats takes time in each call, so it is only made if the batch has such images.
        indices, pixels = tf.cond(tf.reduce_any(are_other), with_others, lambda: common)
        # Images that were left out get the black image. It would take ten times as long to scatter pixels, not indices.
        zeros = tf.size(indices) - 1
        rows = tf.fill(tf.shape(image_bytes) + 1, zeros)
        rows = tf.tensor_scatter_nd_update(rows, indices[:, None], tf.range(zeros + 1))[:-1]
        return tf.gather(pixels, rows), rows < zeros, *further

    return decode_batch


def check_decoding_cost(image_bytes):
    """Checks that an image can be decoded at a reasonable cost. Only its headers are read.

    Args:
        image_bytes: Contents of a file.

    Raises:
        ValueError: If the image has more than `MAX_PIXELS` pixels, or would have more after its short side is resized;
            if it has too many scans; or if its size cannot be read.
    """
    size, most_pixels, has_many = (tensor.numpy() for tensor in _bounds_reader()(image_bytes))
    if not image_bytes:
        raise ValueError("Input is empty.")
    if not size.all():
        raise ValueError(
            "Unknown image file format, or a variant that is not supported (animated WebP, compressed BMP). Accepted "
            "are JPEG, PNG, GIF, BMP and WebP."
        )
    if most_pixels > MAX_PIXELS:
        raise ValueError(
            f"The image has {size[1]:,} x {size[0]:,} pixels. It must have at most {MAX_PIXELS:,} pixels, also after "
            f"its short side is resized to {_LARGE_SIDE}. Make the image smaller."
        )
    if has_many:
        raise ValueError("The JPEG file has more scans than are allowed for its size. Save it again.")


@functools.cache
def _bounds_reader():
    def read(image_bytes):
        sizes = headers.encoded_size(image_bytes[None])
        has_many = headers.has_too_many_scans(image_bytes[None], _most_scans(sizes, MAX_PIXELS))
        return sizes[0], _most_pixels(sizes, _LARGE_SIDE)[0], has_many[0]

    # A concrete function is returned. If several threads called a new tf.function at the same time, each of them would
    # trace it and log a warning.
    return tf.function(read, [_FILE], autograph=False).get_concrete_function()


def _starts_with(image_bytes, prefix):
    return tf.strings.substr(image_bytes, 0, len(prefix)) == prefix


def _most_pixels(sizes, resized):
    """The largest number of pixels of images of `sizes` (..., 2) before, during or after a resize: float64 (...)."""
    sides = tf.cast(sizes, tf.float64)
    pixels, long, short = sides[..., 0] * sides[..., 1], tf.reduce_max(sides, -1), tf.reduce_min(sides, -1)
    # One side is resized before the other. In between, the image has one new side and one old side.
    if isinstance(resized, list):
        between, after = max(resized) * long, resized[0] * resized[1] * tf.ones_like(long)
    else:
        between, after = resized * long, resized * resized * long / tf.maximum(short, 1)
    return tf.where(pixels > 0, tf.reduce_max([pixels, between, after], axis=0), 0)


def _most_scans(sizes, max_pixels):
    """The number of scans that JPEG files with images of `sizes` (..., 2) may have at most: int64 (...)."""
    pixels = tf.maximum(tf.reduce_prod(sizes, axis=-1), 1)
    return tf.minimum(_SCANS_AT_MAX_PIXELS * max_pixels // pixels, headers.MAX_SCANS)


def _row_decoder(read, preprocessing, size, channels):
    """Returns a function that converts an encoded image and its EXIF orientation to pixels (H, W, C)."""

    def decode(image_bytes, orientation):
        image = _apply_orientation(read(image_bytes), orientation, channels)
        resized = resized_sides(tf.shape(image, tf.int64)[:2], preprocessing.resize)
        return resize_image(image, resized, preprocessing.interpolation, crop=size)

    return decode


def resized_sides(sides, resize):
    """The sides of a resized image.

    Args:
        sides: int64 (height, width)
        resize: [height, width] of the result, or the length of its short side.
    """
    if not isinstance(resize, int):
        return tf.constant(resize)
    return tf.cast(sides * resize // tf.reduce_min(sides), tf.int32)  # torchvision, too, rounds down.


def upright_size(image_bytes):
    """The heights and widths of encoded images (...) after their EXIF orientation is applied: int64 (..., 2).

    They are read from the headers.
    """
    return _upright(*headers.read_header(image_bytes))


def _upright(sizes, orientations):
    return tf.where(orientations[..., None] > 4, sizes[..., ::-1], sizes)


def decode_upright(image_bytes, channels):
    """Decodes an image and applies its EXIF orientation: uint8 (height, width, channels), with 1 or 3 channels."""
    return _apply_orientation(_decode_any(image_bytes), read_orientation(image_bytes), channels)


read_orientation = tf.function(headers.exif_orientation, [_FILE], autograph=False)
"""`headers.exif_orientation` for one image, a `tf.function` that is traced once for all pipelines."""


def _apply_orientation(image, orientation, channels):
    image = upright(image, orientation)
    return luma(image) if channels == 1 else image


def _decode_any(image_bytes):
    """Decodes an image without changing its orientation: uint8 (height, width, 3)."""
    return tf.cond(_is_common(image_bytes), lambda: _decode_common(image_bytes), lambda: _decode_other(image_bytes))


def _is_common(image_bytes):
    """Whether a file is a JPEG or PNG file."""
    return _starts_with(image_bytes, b"\xff\xd8\xff") | _starts_with(image_bytes, b"\x89PNG")


def _decode_common(image_bytes):
    """Same as `_decode_any`, but for JPEG and PNG files only."""
    # With TensorFlow's default method, pixels differ from Pillow's by some gray levels.
    decode_jpeg = functools.partial(tf.io.decode_jpeg, channels=3, dct_method="INTEGER_ACCURATE")
    return tf.cond(tf.io.is_jpeg(image_bytes), lambda: decode_jpeg(image_bytes), lambda: _decode_image(image_bytes))


def _decode_image(image_bytes, channels=3):
    return tf.io.decode_image(image_bytes, channels, expand_animations=False)


def _decode_gif(image_bytes):
    frame, corner, size = headers.first_frame(image_bytes)
    image = _decode_image(frame)
    after = size - corner - tf.shape(image, tf.int64)[:2]
    return tf.pad(image, tf.pad(tf.stack([corner, after], axis=1), [[0, 1], [0, 0]]))


def _decode_bmp(image_bytes):
    image, palette = _decode_image(image_bytes), headers.bmp_palette(image_bytes)
    return tf.cond(tf.size(palette) > 0, lambda: tf.gather(palette, tf.cast(image[..., 0], tf.int32)), lambda: image)


def _decode_webp(image_bytes):
    # With channels=3, TensorFlow refuses animations and files with transparency. With channels=0 (all channels),
    # TensorFlow 2.21 allocates too little memory for animations, which may crash the process or corrupt memory.
    is_animated = headers.is_animated_webp(image_bytes)
    return tf.cond(is_animated, lambda: _decode_image(image_bytes), lambda: _decode_image(image_bytes, 0))[..., :3]


@tf.function(input_signature=[_FILE], autograph=False, experimental_attributes={"_noinline": True})
def _decode_other(image_bytes):
    """Same as `_decode_any`, but for formats other than JPEG and PNG.

    In a graph, this function is a single operation, which costs little if it does not run.
    """
    kinds = [(b"GIF8", _decode_gif), (b"RIFF", _decode_webp), (b"BM", _decode_bmp)]
    branches = [(_starts_with(image_bytes, prefix), functools.partial(f, image_bytes)) for prefix, f in kinds]
    image = tf.case(branches, functools.partial(_decode_image, image_bytes))
    return tf.ensure_shape(image, [None, None, 3])


def luma(image):
    """Converts RGB to gray by ITU-R 601-2 with 16 bits, as Pillow does: uint8 (H, W, 3) to (H, W, 1)."""
    # The channels are added one by one, because a sum along an axis of length three takes three times as long.
    red, green, blue = (tf.cast(channel, tf.int32) for channel in tf.unstack(image[..., None], axis=-2))
    return tf.cast(tf.bitwise.right_shift(19595 * red + 38470 * green + 7471 * blue + 2**15, 16), tf.uint8)


def upright(image, orientation):
    """Undoes an EXIF orientation from 1 to 8 (Exif 2.32, section 4.6.4)."""

    def turned():
        axes = tf.where(orientation >= 5, [1, 0, 2], [0, 1, 2])
        # An image is reversed along axis 0 if its orientation is 3, 4, 7 or 8, and along axis 1 if it is 2, 3, 6 or 7.
        is_reversed = [(orientation - 1) // 2 % 2 == 1, orientation // 2 % 2 == 1]
        turned = tf.reverse(tf.transpose(image, axes), tf.where(is_reversed)[:, 0])
        return tf.ensure_shape(turned, [None, None, image.shape[-1]])

    return tf.cond(orientation > 1, turned, lambda: image)


def resize_image(image, size, interpolation, crop=None):
    """Resizes an image to `size` (height, width), antialiased as in Pillow, and crops the centre: uint8 (H, W, C).

    The position of the centre is that of torchvision and timm. That of transformers and of Google's code is one pixel
    less if the margins of both sides together are 3, 7, 11, … pixels.

    Pillow resizes the width, rounds to 8 bits, and then resizes the height. (Pillow 13 resizes the height first for
    some sizes.) TensorFlow resizes both sides and rounds once. With bilinear interpolation, the results differ by at
    most one level. Bicubic interpolation overshoots at edges, and Pillow clips each pass to [0, 255], so one rounding
    would differ by more than 20 levels. So the bicubic resize has two passes here too.
    """
    if interpolation == "bicubic":
        height, width = tf.unstack(size)
        image = _resize_rows(tf.transpose(image, [1, 0, 2]), width, interpolation)
        image = _resize_rows(tf.transpose(image, [1, 0, 2]), height, interpolation)
    else:
        image = _to_uint8(tf.image.resize(image, size, interpolation, antialias=True))
    if crop is None:
        return image
    top, left = tf.unstack(tf.cast(tf.round((tf.shape(image)[:2] - crop) / 2), tf.int32))  # Halves become even.
    return tf.slice(image, [top, left, 0], [*crop, image.shape[-1]])


def _resize_rows(image, num_rows, interpolation):
    """Resizes the first axis of an image (H, W, C): uint8 (num_rows, W, C)."""
    rows, columns = tf.unstack(tf.shape(image)[:2])
    channels = image.shape[-1]
    # TensorFlow adds the values of a pixel together. It is fast if a row is one pixel with many channels.
    image = tf.reshape(image, [rows, 1, columns * channels])
    image = _to_uint8(tf.image.resize(image, tf.stack([num_rows, 1]), interpolation, antialias=True))
    return tf.reshape(image, [num_rows, columns, channels])


def _to_uint8(image):
    # Pillow rounds halves up.
    return tf.cast(tf.clip_by_value(tf.floor(image + 0.5), 0, 255), tf.uint8)
