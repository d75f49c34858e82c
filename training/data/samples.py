"""Annotated samples: an image, and what is known about it. Shapes: H W C image, n boxes.

A sample is a dictionary. Besides `image`, it has the annotations that its data set defines:

* `label`: index of the class, int64 scalar, or indices of all right classes, (n,)
* `labels`: whether the image has each label, bool (L,)
* `values`: numbers, float32 (V,)
* `mask`: the class of each pixel (`training.data.masks`), the bytes of a PNG file or uint8 (H, W, 1)
* `depth`: float32 (H, W, 1); 0 means that the depth is unknown
* `segments`: the object of each pixel, int32 (H, W, 1). 0 means no object, and k the k-th object of the image. A pixel
  has one object: where annotations overlap, the smaller object is on top. `segment_classes`, int64 (n,), are the
  classes of objects 1 to n. -1 is an object that is ignored, such as a crowd, or padding.
* `boxes`: float32 (n, 4), left, top, right and bottom in pixels of the upright image. `box_classes`, int64 (n,), are
  their classes. `is_box`, bool (n,), is `False` for padding, and for boxes that a change has removed.
* `text`: a string

The image is the contents of a file until it is decoded to uint8 (H, W, C). A change of its geometry (`move_sample`)
changes the mask, the depth, the segments and the boxes in the same way. It may leave an object without any pixel.
"""

import tensorflow as tf

from keras_vit.data.decoding import image_decoder, resized_sides, upright_size
from keras_vit.preprocessing import input_preprocessing
from training.data.masks import VOID, read_mask

RASTERS = {"mask": VOID, "depth": 0, "segments": 0}
"""{annotation of each pixel: its value where a changed image shows nothing of the original}"""
MIN_VISIBLE = 0.25
"""A crop removes a box if less than this share of its area is visible."""


def is_spatial(sample):
    """Whether a sample has annotations of places in the image."""
    return "boxes" in sample or any(name in sample for name in RASTERS)


def sample_decoder(model):
    """Makes a TensorFlow function that decodes a sample to the pixels that a model expects, and moves its annotations.

    Args:
        model: A model of this package with a fixed input size.
    """
    preprocessing, size, _ = input_preprocessing(model)
    decode = image_decoder(model)

    def decode_sample(sample):
        if not is_spatial(sample):
            return sample | {"image": decode(sample["image"])}
        sides = upright_size(sample["image"])
        resized = resized_sides(sides, preprocessing.resize)
        corner = tf.cast(tf.round((resized - size) / 2), tf.int32)

        def crop(raster, _):
            return tf.slice(resize_raster(raster, resized), [*tf.unstack(corner), 0], [*size, 1])

        return move_sample(sample, decode, crop, lambda: scaling(sides, resized, -corner), size)

    return decode_sample


def move_sample(sample, move_image, move_raster, matrix, size):
    """Changes the geometry of an image and of its annotations.

    Args:
        sample: A sample. Its mask is decoded first, if it is encoded.
        move_image: Function of the image that returns the changed image, uint8 (H, W, C).
        move_raster: Function of values for each pixel, (h, w, 1), and the value of places outside. It returns values
            of the same type, (H, W, 1), which are not interpolated.
        matrix: Function that returns float32 (2, 3). It maps the coordinates (x, y, 1) of a point to its new x and y,
            in pixels from the top left corner.
        size: (H, W)

    Returns:
        The changed sample. A box becomes the smallest box around its changed corners, within the image. It is removed
        if less than `MIN_VISIBLE` of this box is within the image.
    """
    moved = {"image": move_image(sample["image"])}
    for name, outside in RASTERS.items():
        if name in sample:
            raster = read_mask(sample[name]) if sample[name].dtype == tf.string else sample[name]
            moved[name] = move_raster(raster, tf.constant(outside, raster.dtype))
    if "boxes" in sample:
        left, top, right, bottom = tf.unstack(sample["boxes"], axis=-1)
        ones = tf.ones_like(left)
        corners = tf.stack([[left, top, ones], [right, top, ones], [left, bottom, ones], [right, bottom, ones]])
        corners = tf.einsum("ij,cjn->cni", matrix(), corners)
        limits = tf.reverse(tf.cast(size, tf.float32), [0])
        ends = tf.stack([tf.reduce_min(corners, axis=0), tf.reduce_max(corners, axis=0)])  # (2, n, 2)
        visible = tf.clip_by_value(ends, 0.0, limits)
        area, visible_area = (tf.reduce_prod(both[1] - both[0], axis=-1) for both in (ends, visible))
        moved["is_box"] = sample["is_box"] & (visible_area > 0) & (visible_area >= MIN_VISIBLE * area)
        moved["boxes"] = tf.where(moved["is_box"][:, None], tf.concat(tf.unstack(visible), axis=-1), 0.0)
    return sample | moved


def scaling(sides, new_sides, shift):
    """The matrix for `move_sample` of a resize from `sides` to `new_sides`, and a shift, all (vertical, horizontal)."""
    scale, shift = tf.cast(new_sides, tf.float32) / tf.cast(sides, tf.float32), tf.cast(shift, tf.float32)
    return tf.stack([[scale[1], 0.0, shift[1]], [0.0, scale[0], shift[0]]])


def resize_raster(raster, size):
    """Resizes values of pixels, (h, w, 1), by nearest neighbour."""
    return tf.image.resize(raster, size, "nearest")


def pad_boxes(sample, count):
    """Pads the boxes of a sample to `count` boxes, so that samples form a batch. Padding has `is_box` `False`.

    Raises:
        tf.errors.InvalidArgumentError: If the sample has more boxes.
    """
    missing = count - tf.shape(sample["boxes"])[0]
    names = ("boxes", "box_classes", "is_box")
    padded = {name: tf.pad(sample[name], [[0, missing]] + [[0, 0]] * (sample[name].shape.rank - 1)) for name in names}
    return sample | {name: tf.ensure_shape(array, [count, *array.shape[1:]]) for name, array in padded.items()}


def pad_segments(sample, count):
    """Pads the classes of objects to `count` classes, so that samples form a batch. Padding has the class -1.

    Raises:
        tf.errors.InvalidArgumentError: If the sample has more objects.
    """
    classes = sample["segment_classes"]
    padded = tf.pad(classes, [[0, count - tf.shape(classes)[0]]], constant_values=-1)
    return sample | {"segment_classes": tf.ensure_shape(padded, [count])}
