"""The drawn scenes never change, their annotations agree, and only outlines and sizes tell the kind and the depth."""

import hashlib

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from training.data.loading import load_dataset
from training.data.sets import scenes
from training.data.sets.scenes import DEPTHS, KINDS, MOST_OBJECTS, NUM_IMAGES, SIDE, draw
from training.recipe.images import Data


def test_a_scene_follows_from_its_number():
    """Results on the scenes are comparable only if they never change."""
    drawn = [draw(split, number)[0].tobytes() for split in NUM_IMAGES for number in range(4)]
    assert len(set(drawn)) == 8
    assert drawn[:4] == [draw("train", number)[0].tobytes() for number in range(4)]
    assert hashlib.sha256(b"".join(drawn)).hexdigest()[:16] == "4e639b47539bb21e"


@pytest.mark.parametrize("split", NUM_IMAGES)
def test_the_annotations_agree(split):
    for number in range(30):
        image, found = draw(split, number)
        segments, classes, depth = found["segments"][..., 0], found["segment_classes"], found["depth"][..., 0]
        count = segments.max()
        assert (image.shape, image.dtype, depth.dtype) == ((SIDE, SIDE, 3), "uint8", "float32")
        assert 2 <= count <= MOST_OBJECTS
        np.testing.assert_array_equal(classes >= 0, np.arange(MOST_OBJECTS) < count)
        np.testing.assert_array_equal(found["is_box"], classes >= 0)
        np.testing.assert_array_equal(found["box_classes"][:count], classes[:count])
        np.testing.assert_array_equal(found["mask"][..., 0], np.append(0, classes + 1)[segments])
        assert DEPTHS[0] <= depth.min() < depth.max() <= DEPTHS[1]
        assert depth[segments > 0].max() < depth[segments == 0].min()  # The wall is behind all objects.
        for index in range(count):
            rows, columns = np.nonzero(segments == index + 1)
            box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            np.testing.assert_array_equal(found["boxes"][index], box)


def test_sizes_tell_the_depth():
    """Objects that are not covered have the area of their outline at their depth."""
    whole = 0
    for number in range(60):
        _, found = draw("train", number)
        segments, depth = found["segments"][..., 0], found["depth"][..., 0]
        for index in range(segments.max()):
            inside = segments == index + 1
            radius, area, _ = scenes._OUTLINES[KINDS[found["segment_classes"][index]]]
            [distance] = np.unique(depth[inside])
            ratio = inside.sum() / (area * (radius * 120 / distance) ** 2)
            assert 0.5 * 0.95**2 <= ratio < 1.06**2  # The variation of 5 %, and pixels on the outline.
            whole += ratio > 0.94**2
    assert whole > 60


@pytest.mark.parametrize(
    ("annotation", "class_names", "shapes"),
    [
        ("mask", ("background", *KINDS), {"mask": (SIDE, SIDE, 1)}),
        ("segments", KINDS, {"segments": (SIDE, SIDE, 1), "segment_classes": (MOST_OBJECTS,)}),
        ("depth", ("depth",), {"depth": (SIDE, SIDE, 1)}),
        ("boxes", KINDS, {"boxes": (MOST_OBJECTS, 4), "box_classes": (MOST_OBJECTS,), "is_box": (MOST_OBJECTS,)}),
    ],
)
def test_each_annotation_is_a_data_set(annotation, class_names, shapes):
    dataset = load_dataset(Data(dataset="scenes", validation_fraction=0.1), annotation)
    assert dataset.class_names == class_names
    assert dataset.units == (("metres",) if annotation == "depth" else None)
    sizes = {split: source.size for split, source in dataset.splits.items()}
    assert sizes == {"train": 18_000, "validation": 2000, "test": 500}
    sample = dataset.splits["validation"].read(np.int64(3))
    _, expected = draw("train", 18_003)
    assert {name: tuple(array.shape) for name, array in sample.items()} == {"image": (), **shapes}
    for name in shapes:
        np.testing.assert_array_equal(sample[name], expected[name])


@pytest.mark.slow
def test_pixels_and_positions_tell_little():
    """Measured with 2,000 and 500 images: a mean IoU of PIXEL, and RATIO of the error of the best constant, CONSTANT."""
    (images, masks, depth), (test_images, test_masks, test_depth) = (
        map(np.stack, zip(*[(image, found["mask"], found["depth"]) for image, found in drawn], strict=True))
        for drawn in (
            map(lambda i, split=split: draw(split, i), range(count)) for split, count in (("train", 600), ("test", 200))
        )
    )
    rng = np.random.default_rng(0)
    chosen = rng.choice(masks.size, 20_000, replace=False)
    classifier = LogisticRegression(max_iter=200).fit(images.reshape(-1, 3)[chosen] / 255, masks.ravel()[chosen])
    predicted, true = classifier.predict(test_images.reshape(-1, 3) / 255), test_masks.ravel()
    overlaps = [((predicted == k) & (true == k)).sum() / ((predicted == k) | (true == k)).sum() for k in range(6)]
    assert np.mean(overlaps) < 0.3

    def error(depth_map):
        return np.mean(np.abs(depth_map - test_depth) / test_depth)

    constant = min(map(error, np.linspace(*DEPTHS, 100)))
    assert error(depth.mean(axis=0)) > 0.8 * constant
    assert error(np.median(depth, axis=0)) > 0.8 * constant
    # Knowing the objects, but not their sizes, is not enough to halve the error.
    objects, wall = (np.median(depth[chosen]) for chosen in (masks > 0, masks == 0))
    assert error(np.where(test_masks > 0, objects, wall)) > 0.55 * constant
