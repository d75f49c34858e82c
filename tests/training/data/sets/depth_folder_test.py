"""Photographs with depth maps: units, unknown depth, skipped files and errors."""

import numpy as np
import pytest

from tests.training.data.sets.folder_test import write_image
from training.data.loading import load_dataset
from training.data.masks import encode_png
from training.errors import InputError
from training.recipe.images import Data

MILLIMETRES = np.array([[0, 1500, 65535], [2, 300, 4000]], "uint16")
METRES = np.array([[np.nan, 1.5, np.inf], [-2.0, 0.25, np.nan]], "float16")


def write(folder, files):
    """Writes an image of 3 x 2 pixels for each file {name: depth map}."""
    (folder / "depth").mkdir(parents=True)
    for name, content in files.items():
        write_image(folder / "images" / f"{name.partition('.')[0]}.png", (2, 3))
        if isinstance(content, bytes):
            (folder / "depth" / name).write_bytes(content)
        else:
            np.save(folder / "depth" / name, content)


def load(root, **fields):
    return load_dataset(Data(dataset="folder", directory=str(root), validation_fraction=0, **fields), "depth")


def depth_maps(dataset, split):
    samples = dataset.splits[split].in_order().as_numpy_iterator()
    return sorted((sample["depth"][..., 0] for sample in samples), key=np.max)


def test_depth_is_in_metres_and_0_where_it_is_unknown(tmp_path):
    write(tmp_path / "train", {"a.png": encode_png(MILLIMETRES), "b.npy": METRES[..., None]})
    write(tmp_path / "test", {"c.npy": METRES.astype("float64") / 2})
    for fields, units_per_metre in (({}, 1000), ({"depth_scale": 1 / 256}, 256)):  # The second is that of KITTI.
        dataset = load(tmp_path, **fields)
        array, png = depth_maps(dataset, "train")
        assert png.dtype == array.dtype == "float32"
        np.testing.assert_array_equal(png, (MILLIMETRES / units_per_metre).astype("float32"))
        np.testing.assert_array_equal(array, [[0, 1.5, 0], [0, 0.25, 0]])
    assert (dataset.class_names, dataset.units) == (("depth",), ("metres",))
    np.testing.assert_array_equal(depth_maps(dataset, "test"), [[[0, 0.75, 0], [0, 0.125, 0]]])


BROKEN = {
    "a.png": (encode_png(np.zeros((2, 3), "uint8")), "mode is L, but a depth map must have one channel of 16 bits"),
    "b.npy": (
        np.ones((2, 3), "int16"),
        "int16 (2, 3), but a depth map must have floating-point numbers of the shape (H,",
    ),
    "c.npy": (np.ones((2, 3, 3)), "it has float64 (2, 3, 3)"),
    "d.png": (encode_png(MILLIMETRES.T), "it has 2 x 3 pixels, but the image has 3 x 2"),
    "e.npy": (np.full((2, 3), np.nan), "the depth of all pixels is unknown"),
    "f.npy": (np.array([{}]), "Python objects in dtype"),
    "g.npy": (b"no array", "its depth map cannot be used"),
    "h.tif": (b"", "has no depth map h.png or h.npy"),
}


def test_depth_maps_that_cannot_be_used_are_skipped_and_named(tmp_path, capsys):
    files = {f"{i}.png": encode_png(MILLIMETRES) for i in range(4)}
    write(tmp_path, files | {name: content for name, (content, _) in BROKEN.items()})
    dataset = load(tmp_path)
    assert {split: source.size for split, source in dataset.splits.items()} == {"train": 3, "test": 1}
    *skipped, _, note = capsys.readouterr().out.splitlines()
    assert note.startswith("The median depth of an image is from 1.5 to 1.5 metres. If this is wrong, change data.dept")
    printed = dict(line[8:].rpartition("/")[2].split(": ", 1) for line in skipped)
    expected = {f"{name[0]}.png": message for name, (_, message) in BROKEN.items()}
    assert printed.keys() == expected.keys()
    assert all(message in printed[name] for name, message in expected.items()), printed
    for path in (tmp_path / "depth").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"has no image with a depth map.* Skipped:(\n.*){10}\n  … \(12 in all\)"):
        load(tmp_path)
