"""A change of the geometry moves an image and its annotations alike, and a change of the colours only the image.

The image, the mask, the depth and the segments of a sample are the same drawing, so they can be compared after a
change. Its boxes and objects are two rectangles of the drawing.
"""

import functools

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from tests.pictures import encoded, exif_segment
from tests.test_case import slow_except
from training.data.augment import build_augmentation
from training.data.masks import VOID, encode_png
from training.data.samples import MIN_VISIBLE, move_sample, pad_boxes, pad_segments, sample_decoder, scaling
from training.recipe.config import Augment

SIDES = (96, 128)
GRAYS = np.array([10, 90, 170, 250])
BOXES = [(15, 10, 45, 50), (70, 30, 85, 90)]
OUTSIDE = 7


@functools.cache
def model(resize=SIDES, crop=None):
    """A model with nothing but a preprocessing layer."""
    resize, crop = (list(sides) if isinstance(sides, tuple) else sides for sides in (resize, crop))
    layer = keras_vit.Preprocessing(resize=resize, crop=crop, mean=(0.5, 0.4, 0.3), name="preprocessing")
    return keras.Sequential([keras.Input((*SIDES, 3)), layer])


@functools.cache
def drawing():
    """The class of each pixel, uint8 (110, 100): two rectangles on a ground of two halves."""
    classes = np.zeros((110, 100), "uint8")
    classes[:, 50:] = 1
    for number, (left, top, right, bottom) in enumerate(BOXES):
        classes[top:bottom, left:right] = 2 + number
    return classes


def sample(exif=1):
    """A sample whose file has an EXIF orientation, and whose upright image is the drawing."""
    pixels = np.repeat(GRAYS[drawing()][..., None], 3, axis=-1).astype("uint8")
    stored = {1: pixels, 6: np.rot90(pixels)}[exif]
    return {
        "image": tf.constant(encoded(PIL.Image.fromarray(stored), "PNG", exif=exif_segment(exif, "<"))),
        "mask": tf.constant(encode_png(drawing())),
        "depth": tf.constant(drawing()[..., None] + 1.0, tf.float32),
        "segments": tf.constant(np.maximum(drawing().astype("int32") - 1, 0)[..., None]),
        "segment_classes": tf.constant([2, -1], tf.int64),
        "boxes": tf.constant(BOXES, tf.float32),
        "box_classes": tf.constant([2, 3], tf.int64),
        "is_box": tf.constant([True, True]),
        "text": tf.constant("two rectangles"),
    }


def assert_consistent(changed, fill=None, share=0.85):
    """The image, the mask, the depth, the segments and the boxes show the same."""
    image, mask, depth = (changed[name].numpy() for name in ("image", "mask", "depth"))
    assert image.shape == (*SIDES, 3)
    assert mask.shape == depth.shape == (*SIDES, 1)
    known = mask != VOID
    np.testing.assert_array_equal(depth, np.where(known, mask + 1.0, 0))
    np.testing.assert_array_equal(changed["segments"], np.where(known, np.maximum(mask.astype(int) - 1, 0), 0))
    assert (changed["segments"].dtype, changed["segment_classes"].numpy().tolist()) == (tf.int32, [2, -1])
    grays = GRAYS[np.where(known, mask, 0)]
    is_same = np.abs(image.astype(int) - grays).max(axis=-1, keepdims=True) <= 3  # Pixels along borders may differ.
    assert is_same[known].mean() > share
    if fill is not None:
        np.testing.assert_array_equal(image[~known[..., 0]], np.broadcast_to(fill, (np.sum(~known), 3)))
    for box, is_box, index in zip(changed["boxes"].numpy(), changed["is_box"].numpy(), (2, 3), strict=True):
        rows, columns = np.nonzero(mask[..., 0] == index)
        if is_box:
            found = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            np.testing.assert_allclose(box, found, atol=1.01)
        else:
            np.testing.assert_array_equal(box, 0)
    np.testing.assert_array_equal(changed["box_classes"], [2, 3])
    assert changed["text"] == "two rectangles"


@pytest.mark.parametrize("exif", [1, 6])
@pytest.mark.parametrize(("resize", "crop"), [(SIDES, None), (140, SIDES), ((100, 140), SIDES)])
def test_decoding_moves_all_annotations(exif, resize, crop):
    changed = sample_decoder(model(resize, crop))(sample(exif))
    assert_consistent(changed)
    assert changed["is_box"].numpy().all()


CHANGES = {
    "flip": {"flip": True},
    "window": {"crop": "random", "crop_from": 160, "flip": True},
    "inception": {"crop": "inception", "crop_area": (0.3, 0.9)},
    "scale": {"scale_range": (0.4, 2.5), "flip": True},
    "move": {"flip": True, "translation": 0.2, "rotation": 30, "scale": 0.3, "fill": "black"},
    "translate": {"translation": 0.4, "fill": "black"},
    "reflect": {"translation": 0.2, "flip": True},
}


@pytest.mark.parametrize("name", slow_except(("move", "scale"), CHANGES))
def test_a_change_of_the_geometry_moves_all_annotations(name):
    augmentation = build_augmentation(model(), Augment(**CHANGES[name]))
    mean = np.round(255 * np.array([0.5, 0.4, 0.3]))
    fill = {"scale": mean, "translate": np.zeros(3)}.get(name)
    masks, kept = set(), []
    for seed in range(12):
        given = sample(exif=6 if seed % 2 else 1)
        changed = augmentation.change(augmentation.decode(given), (0, seed))
        if name == "move":  # The corners of a box, and not the rectangle itself, are rotated.
            boxes = {name: changed[name] for name in ("boxes", "is_box")}
            assert_consistent(changed | {"is_box": tf.constant([False] * 2), "boxes": tf.zeros((2, 4))}, fill, 0.75)
            assert_around(changed["mask"].numpy()[..., 0], **boxes)
        elif name == "reflect":  # The reflection of a rectangle has no box.
            assert_consistent(changed | {"is_box": tf.constant([False] * 2), "boxes": tf.zeros((2, 4))}, fill)
            assert VOID not in changed["mask"].numpy()
        else:
            assert_consistent(changed, fill, share=0.75)
        masks.add(changed["mask"].numpy().tobytes())
        kept.append(int(changed["is_box"].numpy().sum()))
    assert len(masks) == 2 if name == "flip" else len(masks) > 8
    assert max(kept) == 2
    if name in ("inception", "translate"):
        assert min(kept) < 2


def assert_around(mask, boxes, is_box):
    """The boxes contain the visible pixels of their rectangles, and most of the boxes' sides are near to them."""
    for (left, top, right, bottom), exists, index in zip(boxes.numpy(), is_box.numpy(), (2, 3), strict=True):
        rows, columns = np.nonzero(mask == index)
        if exists and len(rows):
            assert left <= columns.min() + 1
            assert top <= rows.min() + 1
            assert right >= columns.max()
            assert bottom >= rows.max()


def test_a_change_of_the_colours_leaves_annotations_unchanged():
    augmentation = build_augmentation(model(), Augment(color_jitter=0.5))
    plain = augmentation.decode(sample())
    first, again, other = (augmentation.change(plain, (0, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first["image"], again["image"])
    assert not np.array_equal(first["image"], other["image"])
    assert not np.array_equal(first["image"], plain["image"])
    for name in plain.keys() - {"image"}:
        np.testing.assert_array_equal(first[name], plain[name])


def test_boxes_that_are_hardly_visible_are_removed():
    """A shift to the left by 40 leaves the first box a sixth of its width; one by 35 leaves it a third."""

    def shifted(shift, boxes=BOXES):
        given = {"boxes": tf.constant(boxes, tf.float32), "is_box": tf.fill([len(boxes)], True), "image": tf.zeros(())}
        return move_sample(given, tf.identity, None, lambda: scaling((1, 1), (1, 1), (0, -shift)), (110, 100))

    assert 5 / 30 < MIN_VISIBLE < 10 / 30
    assert shifted(40)["is_box"].numpy().tolist() == [False, True]
    np.testing.assert_array_equal(shifted(40)["boxes"], [[0, 0, 0, 0], [30, 30, 45, 90]])
    assert shifted(35)["is_box"].numpy().tolist() == [True, True]
    np.testing.assert_array_equal(shifted(35)["boxes"], [[0, 10, 10, 50], [35, 30, 50, 90]])
    assert shifted(0, [(5, 5, 5, 9)])["is_box"].numpy().tolist() == [False]  # A box without an area.


def test_different_numbers_of_boxes_form_a_batch():
    def read(count):
        boxes = {"boxes": tf.random.uniform([count, 4]), "box_classes": tf.range(tf.cast(count, tf.int64))}
        return pad_boxes(boxes | {"is_box": tf.fill([count], True)}, 3)

    [batch] = tf.data.Dataset.range(4).map(lambda count: read(tf.cast(count, tf.int32))).batch(4)
    assert {name: tuple(array.shape) for name, array in batch.items()} == {
        "boxes": (4, 3, 4),
        "box_classes": (4, 3),
        "is_box": (4, 3),
    }
    np.testing.assert_array_equal(batch["is_box"], np.arange(3) < np.arange(4)[:, None])
    with pytest.raises(tf.errors.InvalidArgumentError):
        read(4)


def test_different_numbers_of_objects_form_a_batch():
    samples = tf.data.Dataset.range(4).map(lambda count: pad_segments({"segment_classes": tf.range(count)}, 3))
    [batch] = samples.batch(4)
    np.testing.assert_array_equal(batch["segment_classes"], [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        pad_segments({"segment_classes": tf.range(4)}, 3)


def test_a_scale_needs_the_whole_image():
    with pytest.raises(ValueError, match=r"scale_range is only used for augment\.crop=none"):
        Augment(crop="inception", scale_range=(0.5, 1.0))
