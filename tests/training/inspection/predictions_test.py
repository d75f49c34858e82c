"""What `predict` prints and writes for each kind of output."""

import json

import numpy as np
import PIL.Image
import pytest
from pycocotools.coco import COCO

from tests.pictures import encoded, exif_segment, picture
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


def test_embedding(folder):
    prediction = PREDICTIONS["embedding"](folder, {}, 1, None, 0.5)
    outputs = {"embedding": np.array([0.6, 0.8], "float32")}
    assert prediction.text(outputs, {}) == "a vector of 2 numbers, length 1"
    assert prediction.row(outputs) == {"embedding": [0.6, 0.8]}


def test_shares_of_a_mask(folder):
    prediction = PREDICTIONS["class_map"](folder, {"kind": "class_map"}, 1, None, 0.5)
    outputs = {"mask": np.array([[1, 1], [1, 4]], "uint8")}
    assert prediction.text(outputs, {}) == "c1 75.0% of the pixels"
    assert prediction.row(outputs) == dict.fromkeys(NAMES, 0.0) | {"c1": 0.75, "c4": 0.25}


def _sample(height, width):
    """A photograph that its EXIF orientation turns to this size."""
    stored = picture(height, width).transpose(PIL.Image.Transpose.ROTATE_90)
    return {"path": "a/photo.jpg", "image": encoded(stored, "JPEG", exif=exif_segment(6, ">"))}


OBJECTS = {
    "counts": np.array([[0, 4, 4, 4, 0], [5, 4, 3, 0, 0], [11, 1, 0, 0, 0]], "int32"),
    "num_counts": np.array([4, 3, 2], "int32"),
    "classes": np.array([1, 2, 3], "int32"),
    "scores": np.array([0.9, 0.6, 0.3], "float32"),
    "num_objects": np.int32(3),
    "sizes": np.array([4, 3], "int32"),
}
"""Outputs of the signature `instances` for 4 x 3 pixels"""
MASKS = np.array([[[1, 0, 1]] * 4, [[0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]], [[0, 0, 0]] * 3 + [[0, 0, 1]]])


def test_instances(folder, tmp_path):
    prediction = PREDICTIONS["masks"](folder, {}, 5, tmp_path / "to", 0.5)
    assert prediction.text(OBJECTS, _sample(4, 3)) == f"c1 90.0%, c2 60.0%; {tmp_path}/to/photo.png"
    assert prediction.row(OBJECTS) == {"labels": ["c1", "c2"], "scores": [0.9, 0.6], "shares": [8 / 12, 4 / 12]}
    assert prediction.text(OBJECTS | {"num_objects": 0}, _sample(4, 3)).startswith("no object; ")
    prediction.finish()
    assert {path.name for path in (tmp_path / "to").iterdir()} == {"photo.png", "photo-2.png", "instances.json"}
    assert PIL.Image.open(tmp_path / "to" / "photo.png").size == (360, 480)  # Enlarged for the labels.
    index = COCO(tmp_path / "to" / "instances.json")
    assert [image["file_name"] for image in index.dataset["images"]] == ["a/photo.jpg"] * 2
    assert index.cats[2]["name"] == "c2"
    for known, mask in zip(index.loadAnns(index.getAnnIds(imgIds=[1])), MASKS, strict=False):
        np.testing.assert_array_equal(index.annToMask(known), mask)
    assert [known["bbox"] for known in index.dataset["annotations"]] == [[0, 0, 3, 4], [1, 0, 2, 4]]


def test_panoptic_segments(folder, tmp_path):
    prediction = PREDICTIONS["panoptic"](
        folder, {"is_thing": [name != "c1" for name in NAMES]}, 5, tmp_path / "to", 0.5
    )
    prediction.text(OBJECTS, _sample(4, 3))
    prediction.finish()
    content = json.loads((tmp_path / "to" / "panoptic.json").read_text())
    [known] = content["annotations"]
    assert [each["name"] for each in content["categories"] if not each["isthing"]] == ["c1"]
    colors = np.asarray(PIL.Image.open(tmp_path / "to" / "panoptic" / known["file_name"])).astype(int)
    # Where masks overlap, the one with the highest score counts.
    np.testing.assert_array_equal(colors @ [1, 256, 256**2], np.where(MASKS[0], 1, 2 * MASKS[1]))
    assert [(each["id"], each["category_id"]) for each in known["segments_info"]] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("units", "factor"), [(["metres"], 1000), (None, 65535 / 4.75)])
def test_depth(units, factor, folder, tmp_path):
    prediction = PREDICTIONS["depth"](folder, {"units": units}, 5, tmp_path / "to", 0.5)
    depth = np.linspace(0, 4.75, 96, dtype="float32").reshape(8, 12)
    unit, text = units[0] if units else "relative", prediction.text({"depth": depth}, _sample(8, 12))
    assert text == f"depth 0 to 4.75 ({unit}), median 2.375; {tmp_path}/to/photo.png"
    assert prediction.row({"depth": depth}) == {"minimum": 0, "median": 2.375, "maximum": 4.75}
    inverse = PREDICTIONS["depth"](folder, {"units": None, "is_inverse": True}, 5, None, 0.5)
    assert inverse.summary({"depth": depth}).startswith("inverse depth 0 to 4.75 (relative)")
    for shown, near in ((prediction, 0), (inverse, 7)):  # Near is light.
        light = np.asarray(shown.draw(None, {"depth": depth}))[:8, :12].mean(axis=(1, 2))
        assert light.argmax() == near
    with PIL.Image.open(tmp_path / "to" / "depth" / "photo.png") as image:
        assert image.mode == "I;16"
        np.testing.assert_array_equal(np.asarray(image), np.rint(depth * factor))
        assert image.text["unit"] == f"{1 / factor:.6g} {unit}"
    assert PIL.Image.open(tmp_path / "to" / "photo.png").height > 8  # With the legend.


def test_normals(folder, tmp_path):
    prediction = PREDICTIONS["normals"](folder, {}, 5, tmp_path / "to", 0.5)
    normals = np.broadcast_to(np.float32([0, 0.6, -0.8]), (8, 12, 3))
    assert prediction.text({"normals": normals}, _sample(8, 12)).startswith("mean normal x 0.000, y 0.600, z -0.800; ")
    np.testing.assert_allclose(np.asarray(PIL.Image.open(tmp_path / "to" / "photo.png")), 127.5 * (normals + 1), atol=1)
