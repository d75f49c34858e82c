"""Annotations in COCO's format: objects, splits, layouts, skipped images and errors. Reference: pycocotools."""

import json
import re

import numpy as np
import pytest
from pycocotools import coco
from pycocotools import mask as rle

from tests.training.data.sets.folder_test import write_image
from training.data.loading import load_dataset
from training.data.masks import VOID, encode_png
from training.errors import InputError
from training.recipe.images import Data

SIZE = (14, 19)
CATEGORIES = [{"id": 90, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 7, "name": "sky", "isthing": 0}]
BLOB = np.zeros(SIZE, "uint8")
BLOB[3:9, 4:12] = np.random.default_rng(0).random((6, 8)) < 0.6
BLOB[13, 18] = 1
COUNTS, MOVED = (rle.encode(np.asfortranarray(np.roll(BLOB, by, axis=1)))["counts"].decode() for by in (0, 2))
CORNER = [0, 4, 10, 4, 10, 4, 10, 4, 220]  # 4 x 4 pixels, as an RLE that is not compressed.
OBJECTS = [
    {"category_id": 2, "segmentation": {"size": SIZE, "counts": COUNTS}},
    {"category_id": 90, "segmentation": [[2, 2, 12, 2, 12, 12, 2, 12], [14.5, 1, 30, 1, 18, 7.3]]},
    {"category_id": 7, "segmentation": {"size": SIZE, "counts": CORNER}, "iscrowd": 1},
    {"category_id": 90, "segmentation": {"size": SIZE, "counts": MOVED}},
]


def write(root, name, folder, numbers, objects=(), **entries):
    """Writes images, and a JSON file in which each image has the objects."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        write_image(root / folder / f"{number}.png", SIZE)
    annotations = [{"image_id": i, "id": 10 * i + j, **each} for i in numbers for j, each in enumerate(objects)]
    images = [{"id": number, "file_name": f"{number}.png", "height": 14, "width": 19} for number in numbers]
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES, **entries}
    (root / name).write_text(json.dumps(content))


def load(root, annotation="segments", **fields):
    return load_dataset(Data(dataset="coco", directory=str(root), validation_fraction=0, **fields), annotation)


def test_objects_are_drawn_as_pycocotools_draws_them(tmp_path):
    """The smaller of two objects is on top, and the crowd is below all objects."""
    write(tmp_path, "annotations/instances_default.json", "images", range(4), OBJECTS)
    dataset = load(tmp_path, test_fraction=0.3)
    assert dataset.class_names == ("cat", "sky", "dog")
    assert {split: source.size for split, source in dataset.splits.items()} == {"train": 3, "test": 1}
    sample = next(dataset.splits["test"].in_order().as_numpy_iterator())
    reference = coco.COCO(tmp_path / "annotations" / "instances_default.json")
    masks = [reference.annToMask(annotation) > 0 for annotation in reference.imgToAnns[0]]
    np.testing.assert_array_equal(masks[0], BLOB)
    expected, void = np.full(SIZE, VOID), np.zeros(SIZE)
    for number, (index, color) in enumerate([(2, 1), (1, 2), (0, 0), (3, 2)], 1):
        expected[masks[index]], void[masks[index]] = color, number
    assert masks[1].sum() > masks[0].sum() >= masks[3].sum() > masks[2].sum()
    np.testing.assert_array_equal(sample["segments"][..., 0], void)
    assert sample["segment_classes"].tolist() == [-1, 2, 0, 2]
    mask = next(load(tmp_path, "mask").splits["train"].in_order().as_numpy_iterator())["mask"]
    np.testing.assert_array_equal(mask[..., 0], expected)
    assert (mask.dtype, sample["segments"].dtype) == ("uint8", "int32")


def test_the_layout_of_coco(tmp_path):
    """The images of val2017 are the test. An image without objects is kept, and its classes are padding."""
    write(tmp_path, "annotations/instances_train2017.json", "train2017", [1, 2], OBJECTS[:2])
    annotations = [{"id": 4, "image_id": 4, **OBJECTS[0]}]
    write(tmp_path, "annotations/instances_val2017.json", "val2017", [3, 4], annotations=annotations)
    write(tmp_path, "annotations/captions_val2017.json", "val2017", [3, 4])
    dataset = load(tmp_path)
    assert {split: source.size for split, source in dataset.splits.items()} == {"train": 2, "test": 2}
    sample = dataset.splits["test"].read(np.int64(0))
    assert sample["segment_classes"].shape == [2]  # It is known before the sample is read, so samples can be cached.
    assert sample["segment_classes"].numpy().tolist() == [-1, -1]
    assert not sample["segments"].numpy().any()
    assert [item.path for item in dataset.contents.items["train"]] == ["train2017/1.png", "train2017/2.png"]


def test_json_files_beside_the_images(tmp_path):
    for split, numbers in (("train", [1, 2]), ("valid", [3]), ("test", [4])):
        write(tmp_path, f"{split}/_annotations.coco.json", split, numbers, OBJECTS[:1])
    dataset = load(tmp_path, annotations="*/_annotations.coco.json")
    assert {split: source.size for split, source in dataset.splits.items()} == {"train": 2, "validation": 1, "test": 1}


def write_panoptic(root, colors, infos):
    folder = root / "annotations" / "panoptic_train2017"
    folder.mkdir(parents=True, exist_ok=True)
    annotations = [{"image_id": i, "file_name": f"{i}.png", "segments_info": infos} for i in (1, 2)]
    write(root, f"annotations/{folder.name}.json", "train2017", [1, 2], annotations=annotations)
    for known in annotations:
        (folder / known["file_name"]).write_bytes(encode_png(colors))


def test_panoptic_segments(tmp_path):
    ids = np.zeros(SIZE, int)
    ids[:5], ids[5:9], ids[9:, 7:] = 70_000, 3, 256
    colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=-1).astype("uint8")
    parts, entries = [ids == 256, ids == 70_000, ids == 3], ((256, 7, 0), (70_000, 2, 1), (3, 90, 0))
    infos = [{"id": number, "category_id": category, "iscrowd": crowd} for number, category, crowd in entries]
    write_panoptic(tmp_path, colors, infos)
    fields = {"annotations": "annotations/panoptic_*.json"}
    dataset = load(tmp_path, **fields)
    sample = dataset.splits["train"].read(np.int64(0))
    assert dataset.is_thing == (True, False, True)
    np.testing.assert_array_equal(sample["segments"][..., 0], np.select(parts, [1, 2, 3]))
    assert sample["segment_classes"].numpy().tolist() == [1, -1, 2]
    mask = load(tmp_path, "mask", **fields).splits["train"].read(np.int64(0))["mask"]
    np.testing.assert_array_equal(mask[..., 0], np.select(parts, [1, 0, 2], VOID))
    for changed, message in (
        (infos[:2], "segments_info lacks the segment 3 of .*1.png"),
        ([*infos, {"id": 9, "category_id": 7}], "segment 9 has no pixel"),
        ([{"id": 256}, *infos[1:]], "KeyError: 'category_id'"),
    ):
        write_panoptic(tmp_path, colors, changed)
        with pytest.raises(InputError, match=rf"1.png: its annotation cannot be used: {message}.* \(2 such images"):
            load(tmp_path, **fields)


BROKEN = {
    "categories lacks the category_id 4": {"category_id": 4},
    "object 40: it needs polygons, each a list": {"segmentation": [[1, 2, 3, 4]]},
    "object 40: it needs polygons": {"segmentation": []},
    "object 40: it has no pixel in the image": {"segmentation": [[-9, -9, -3, -9, -3, -3]]},
    "object 40: a polygon has a point far outside": {"segmentation": [[0, 0, 9, 0, 1e9, 9]]},
    "object 40: a polygon has a point .* not finite": {"segmentation": [[0, 0, 9, 0, float("nan"), 9]]},
    "KeyError: 'counts'": {"segmentation": {"size": SIZE}},
    "TypeError": {"segmentation": 3},
    "IndexError": {"segmentation": {"size": [14], "counts": [9]}},
    "OverflowError": {"segmentation": [[0, 0, 9, 0, 10**400, 9]]},
    "object 40: it has 9 x 14 pixels, but the image has 19 x 14": {"segmentation": {"size": [14, 9], "counts": [126]}},
    "object 40: its RLE is damaged: the runs": {"segmentation": {"size": SIZE, "counts": [200, 20]}},
    "object 40: its RLE is damaged: the .* 14 x 19": {"segmentation": {"size": SIZE, "counts": [300, -34]}},
    "object 40: its RLE is damaged$": {"segmentation": {"size": SIZE, "counts": COUNTS[:-1] + "o"}},
    "object 40: its RLE is damaged: .*": {"segmentation": {"size": SIZE, "counts": COUNTS[:-1]}},
}


def test_annotations_that_cannot_be_used_are_named_and_skipped(tmp_path, capsys):
    for message, changes in BROKEN.items():
        objects = [{"image_id": i, "id": 10 * i, **OBJECTS[0], **(changes if i == 4 else {})} for i in range(1, 6)]
        write(tmp_path, "annotations/instances_all.json", "images", range(1, 6), annotations=objects)
        with pytest.raises(InputError, match=r"4\.png: its annotation .*N such images with data\.max_failures=N"):
            load(tmp_path)
        (tmp_path / "images" / "1.png").unlink()
        dataset = load(tmp_path, max_failures=1)
        assert sum(source.size for source in dataset.splits.values()) == 3
        printed = capsys.readouterr().out.splitlines()
        [problem] = [line.partition("cannot be used: ")[2] for line in printed if "4.png" in line]
        assert re.match(message, problem), problem
        assert {f"Skipped {tmp_path}/images/1.png: No such file or directory", "Skipped 2 in total."} <= {*printed}


def test_files_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no file annotations/instances_\*\.json\. Expected"):
        load(tmp_path)
    write(tmp_path, "annotations/instances_train2017.json", "train2017", [1, 2], OBJECTS[:2])
    for expected, entries in {
        "val2017.json has other categories than .*train2017.json": {"categories": CATEGORIES[:1]},
        "cannot be read: KeyError: 'file_name'": {"images": [{"id": 3}]},
        "images lacks the image_id 8": {"annotations": [{"image_id": 8}]},
        "must have different ids and paths": {"images": [{"id": 3, "file_name": "/3.png"}]},
        "must have different ids and .*": {"images": [{"id": 3, "file_name": "3.png"}] * 2},
        "it has no annotations": {"annotations": []},
        "it has 19 x 9 pixels, but the image has 19 x 14": {"images": [{"id": 3, "file_name": "3.png", "height": 9}]},
        "cannot be read: TypeError": {"categories": [{"id": 1, "name": 1}, {"id": "1", "name": 2}]},
    }.items():
        write(tmp_path, "annotations/instances_val2017.json", "val2017", [3], OBJECTS[:1], **entries)
        with pytest.raises(InputError, match=expected):
            load(tmp_path)
    with pytest.raises(InputError, match=r"needs data\.directory"):
        load_dataset(Data(dataset="coco"), "segments")
    with pytest.raises(InputError, match="has masks or segments or texts, but no classes"):
        load(tmp_path, "label")
