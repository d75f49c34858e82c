"""What `predict` prints and writes for each kind of output."""

import numpy as np
import pytest

from training.inspection.predictions import PREDICTIONS

NAMES = [f"c{number}" for number in range(8)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "labels.txt").write_text("\n".join(NAMES) + "\n")
    return tmp_path


def test_classes(folder):
    outputs = {"labels": np.array([b"c3", b"c1", b"c0"]), "scores": np.array([0.7, 0.2, 0.1], "float32")}
    prediction = PREDICTIONS["classes"](folder, {}, 2, None, 0.5)
    assert prediction.text(outputs, {}) == "c3 70.0%, c1 20.0%"
    row = prediction.row(outputs)
    assert row == {"label": "c3", "score": 0.7, "labels": ["c3", "c1"], "scores": [0.7, 0.2]}
    assert tuple(row) == prediction.columns


def test_all_labels_above_the_threshold(folder):
    outputs = {"probabilities": np.array([0.1, 0.9, 0.5, 0.6, 0.7, 0.8, 0.95, 0.4], "float32")}
    prediction = PREDICTIONS["labels"](folder, {}, 2, None, 0.5)
    assert prediction.text(outputs, {}) == "c6 95.0%, c1 90.0%, c5 80.0%, c4 70.0%, c3 60.0%, c2 50.0%"
    row = prediction.row(outputs)
    assert row == {"labels": ["c6", "c1", "c5", "c4", "c3", "c2"], "scores": [0.95, 0.9, 0.8, 0.7, 0.6, 0.5]}
    assert tuple(row) == prediction.columns
    outputs = {"probabilities": np.array([0.1, 0.2, 0.3, 0.49, 0, 0, 0, 0], "float32")}
    assert prediction.text(outputs, {}) == "no label (best: c3 49.0%)"
    assert prediction.row(outputs) == {"labels": [], "scores": []}


def test_values_and_units(folder):
    outputs = {"values": np.arange(8, dtype="float32") / 10}
    prediction = PREDICTIONS["values"](folder, {"units": ["m"] * 8}, 2, None, 0.5)
    assert prediction.text(outputs, {}).startswith("c0 0 m, c1 0.1 m, c2 0.2 m")
    assert prediction.row(outputs)["c1"] == 0.1
    assert tuple(prediction.row(outputs)) == prediction.columns


def test_shares_of_a_mask(folder):
    prediction = PREDICTIONS["class_map"](folder, {}, 1, None, 0.5)
    outputs = {"mask": np.array([[1, 1], [1, 4]], "uint8")}
    assert prediction.text(outputs, {}) == "c1 75.0% of the pixels"
    assert prediction.row(outputs) == dict.fromkeys(NAMES, 0.0) | {"c1": 0.75, "c4": 0.25}
