"""Labels of data sets. `DERIVED_LABELS` are computed from the features that TFDS stores.

They are the labels of VTAB's tasks (Zhai et al., arXiv 1910.04867). The borders between classes are copied from
google-research/task_adaptation. That repository lists the tasks in scripts/run_all_tasks.sh, and defines them in
clevr.py, kitti.py and dsprites.py in the folder task_adaptation/data.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Label:
    """A label of a data set, and the function that reads it.

    `features` are the features that `read` needs, in the format of `tfds.decode.PartialDecoding`. `read` is a
    TensorFlow function of an example. It returns the index of the right class (an int64 scalar), the indices of all
    right classes, an encoded mask, or the depth, float32 (H, W, 1). The splits in `absent_from` do not have the label.
    The features in `encoded` are not decoded before they are passed to `read`.
    """

    class_names: tuple[str, ...]
    features: dict[str, Any]
    read: Callable
    absent_from: tuple[str, ...] = ()
    encoded: tuple[str, ...] = ()


_CLEVR_COUNTS = range(3, 11)  # An image has 3 to 10 objects.
_CLEVR_BORDERS = (8.0, 8.5, 9.0, 9.5, 10.0)  # In Clevr's units of length. All values are exact in float32.
_KITTI_BORDERS = (8.0, 20.0)  # In metres.
_KITTI_VEHICLES = 3  # The first three types of objects are car, van and truck.
_DSPRITES_BINS = 16


def _closest_vehicle(example):
    objects = example["objects"]
    distances = tf.boolean_mask(objects["location"][:, 2], objects["type"] < _KITTI_VEHICLES)
    no_vehicle = tf.constant(len(_KITTI_BORDERS) + 1, tf.int64)
    return tf.where(tf.size(distances) == 0, no_vehicle, _interval(tf.reduce_min(distances), _KITTI_BORDERS))


def _interval(value, borders):
    """The index of the interval that contains a value. A value on a border is in the interval below the border."""
    return tf.reduce_sum(tf.cast(value > borders, tf.int64))


def _interval_names(quantity, borders, unit=""):
    first, *_, last = borders
    between = (f"{quantity} {low:g} to {high:g}{unit}" for low, high in itertools.pairwise(borders))
    return f"{quantity} up to {first:g}{unit}", *between, f"{quantity} over {last:g}{unit}"


def _binned(quantity, feature, num_values):
    """A label whose classes are bins of a feature's values, 0 to `num_values - 1`. The bins have nearly equal sizes."""
    bins = [[value for value in range(num_values) if _bin(value, num_values) == i] for i in range(_DSPRITES_BINS)]
    names = tuple(f"{quantity} {values[0]} to {values[-1]}" for values in bins)
    return Label(names, {feature: True}, lambda example: _bin(example[feature], num_values))


def _bin(value, num_values):
    return value * _DSPRITES_BINS // num_values


_CLEVR_ABSENT = ("test",)  # Clevr does not publish the objects in its test images.

DERIVED_LABELS = {
    "clevr": {
        "count": Label(
            tuple(f"{count} objects" for count in _CLEVR_COUNTS),
            {"objects": {"size": True}},
            lambda example: tf.size(example["objects"]["size"], out_type=tf.int64) - _CLEVR_COUNTS[0],
            _CLEVR_ABSENT,
        ),
        "closest_distance": Label(
            _interval_names("distance", _CLEVR_BORDERS),
            {"objects": {"pixel_coords": True}},
            lambda example: _interval(tf.reduce_min(example["objects"]["pixel_coords"][:, 2]), _CLEVR_BORDERS),
            _CLEVR_ABSENT,
        ),
    },
    "kitti": {
        "closest_vehicle": Label(
            (*_interval_names("vehicle", _KITTI_BORDERS, " m"), "no vehicle"),
            {"objects": {"type": True, "location": True}},
            _closest_vehicle,
        )
    },
    "dsprites": {
        "x_position": _binned("x position", "label_x_position", num_values=32),
        "orientation": _binned("orientation", "label_orientation", num_values=40),
    },
}
"""{data set: {name of the label: `Label`}}"""
