"""Derived labels equal NumPy transcriptions of the definitions in google-research/task_adaptation. A class there
covers the values above one threshold and not above the next."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from training.data.sets.derived_labels import DERIVED_LABELS

CLEVR_THRESHOLDS = [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0]
KITTI_THRESHOLDS = [-100.0, 8.0, 20.0, 999.0]
NO_VEHICLE = 1000.0  # The distance that means "no vehicle".


def spec(*shape, dtype="float32"):
    return tf.TensorSpec(shape, dtype)


# TFDS gives any number of objects.
SPECS = {
    ("clevr", "count"): {"objects": {"size": spec(None, dtype="int64")}},
    ("clevr", "closest_distance"): {"objects": {"pixel_coords": spec(None, 3)}},
    ("kitti", "closest_vehicle"): {"objects": {"type": spec(None, dtype="int64"), "location": spec(None, 3)}},
    ("dsprites", "x_position"): {"label_x_position": spec(dtype="int64")},
    ("dsprites", "orientation"): {"label_orientation": spec(dtype="int64")},
}


@pytest.fixture(scope="module")
def read():
    """{(data set, label): its function, traced for `SPECS`}."""
    return {
        (name, label): tf.function(DERIVED_LABELS[name][label].read).get_concrete_function(spec)
        for (name, label), spec in SPECS.items()
    }


def read_one(function, example):
    return int(function(tf.nest.map_structure(tf.constant, example)))


def class_of(distance, thresholds):
    """The index of the last threshold below a float32 distance."""
    return np.nonzero(np.array(thresholds) < np.float64(distance))[0].max()


def coordinates(distances, seed=0):
    """Points (N, 3) with the distance as last coordinate."""
    points = np.random.default_rng(seed).normal(size=(len(distances), 3)).astype("float32")
    points[:, 2] = distances
    return points


def around(borders):
    """The float32 numbers at each border, directly below it and directly above it."""
    borders = np.array(borders, "float32")
    return [*borders, *np.nextafter(borders, np.float32(-1e9)), *np.nextafter(borders, np.float32(1e9))]


def test_every_label_is_tested_and_is_one_class(read):
    assert set(read) == {(name, label) for name, labels in DERIVED_LABELS.items() for label in labels}
    for function in read.values():
        assert (function.structured_outputs.shape, function.structured_outputs.dtype) == ((), tf.int64)


def test_a_label_names_the_features_that_it_reads():
    for (name, label), spec in SPECS.items():
        named = DERIVED_LABELS[name][label].features
        tf.nest.assert_same_structure(named, spec)
        assert all(tf.nest.flatten(named))


def test_objects_of_clevr_are_counted(read):
    for count in range(3, 11):
        found = read_one(read["clevr", "count"], {"objects": {"size": np.arange(count) % 2}})
        assert DERIVED_LABELS["clevr"]["count"].class_names[found] == f"{count} objects"


@pytest.mark.parametrize("distance", [*around(CLEVR_THRESHOLDS[1:-1]), 0.5, 7.3, 8.2, 13.7])
def test_the_closest_object_of_clevr_counts(read, distance):
    for others in ([], [distance + 0.5, 30]):
        points = coordinates([*others, distance])
        found = read_one(read["clevr", "closest_distance"], {"objects": {"pixel_coords": points}})
        assert found == class_of(distance, CLEVR_THRESHOLDS)


@pytest.mark.parametrize("distance", [*around(KITTI_THRESHOLDS[1:-1]), -1.25, 0, 3.5, 14.1, 85])
def test_the_closest_car_van_or_truck_of_kitti_counts(read, distance):
    for vehicle, others in itertools.product(range(3), [[], [3, 4, 5, 6, 7]]):
        # Objects that are no vehicles are closer. Another car is farther away.
        types, distances = [*others, vehicle, 0], [*(distance - 1 for _ in others), distance, distance + 7]
        example = {"objects": {"type": np.array(types), "location": coordinates(distances)}}
        assert read_one(read["kitti", "closest_vehicle"], example) == class_of(distance, KITTI_THRESHOLDS)


def test_kitti_without_a_vehicle_is_a_class_of_its_own(read):
    for types in ([], [3], [3, 4, 5, 6, 7]):
        example = {"objects": {"type": np.array(types, "int64"), "location": coordinates([5.0] * len(types))}}
        found = read_one(read["kitti", "closest_vehicle"], example)
        assert found == class_of(NO_VEHICLE, KITTI_THRESHOLDS)
        assert DERIVED_LABELS["kitti"]["closest_vehicle"].class_names[found] == "no vehicle"


def test_values_of_dsprites_are_in_16_bins(read):
    for label, num_values in (("x_position", 32), ("orientation", 40)):
        names = DERIVED_LABELS["dsprites"][label].class_names
        assert len(names) == 16
        for value in range(num_values):
            found = read_one(read["dsprites", label], {f"label_{label}": np.int64(value)})
            assert found == value // (num_values / 16)
            first, last = map(int, re.findall(r"\d+", names[found]))
            assert first <= value <= last
        assert last == num_values - 1


def test_classes_have_readable_names():
    names = DERIVED_LABELS["clevr"]["closest_distance"].class_names
    assert names[:2] == ("distance up to 8", "distance 8 to 8.5")
    assert names[-2:] == ("distance 9.5 to 10", "distance over 10")
    assert len(names) == len(CLEVR_THRESHOLDS) - 1
    names = DERIVED_LABELS["kitti"]["closest_vehicle"].class_names
    assert names == ("vehicle up to 8 m", "vehicle 8 to 20 m", "vehicle over 20 m", "no vehicle")
    assert DERIVED_LABELS["dsprites"]["orientation"].class_names[:2] == ("orientation 0 to 2", "orientation 3 to 4")
