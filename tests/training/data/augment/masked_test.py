"""Images and masks are changed together. Each image shows its mask in grays, so they can be compared."""

import keras
import numpy as np
import pytest

import keras_vit
from training.data.augment.masked import build_masked_augmentation
from training.data.masks import VOID, encode_png
from training.recipe.config import Augment

SIDES = (32, 64)
GRAYS = np.array([10, 90, 170, 250])


@pytest.fixture(scope="module")
def model():
    """A model with nothing but a preprocessing layer."""
    layer = keras_vit.Preprocessing(resize=SIDES, mean=(0.5, 0.4, 0.3), name="preprocessing")
    return keras.Sequential([keras.Input((*SIDES, 3)), layer])


@pytest.fixture(scope="module")
def files():
    """A picture of four quarters and its mask, both 48 x 40 pixels."""
    mask = np.kron([[0, 1], [2, 3]], np.ones((24, 20))).astype("uint8")
    return encode_png(np.repeat(GRAYS[mask][..., None], 3, axis=-1).astype("uint8")), encode_png(mask)


def changed(model, files, seeds, **fields):
    """Changed images (N, H, W, 3) and masks (N, H, W), one per seed."""
    augmentation = build_masked_augmentation(model, Augment(**fields))
    kept = augmentation.decode(*files)
    return map(np.stack, zip(*(augmentation.change(*kept, (0, seed)) for seed in seeds), strict=True))


def test_without_changes_both_are_resized(model, files):
    [image], [mask] = changed(model, files, [0])
    assert image.shape == (*SIDES, 3)
    np.testing.assert_array_equal(mask, np.kron([[0, 1], [2, 3]], np.ones((16, 32))))
    clear = np.abs(image[..., 0].astype(int) - GRAYS[mask]) < 3  # Pixels along the borders may differ.
    assert clear.mean() > 0.9


def test_both_are_mirrored(model, files):
    images, masks = changed(model, files, range(8), flip=True)
    plain, mirrored = [[0, 1], [2, 3]], [[1, 0], [3, 2]]
    kinds = [mask[::31, ::63].tolist() for mask in masks]
    assert plain in kinds
    assert mirrored in kinds
    np.testing.assert_array_equal(images[:, ::31, ::63, 0], GRAYS[masks[:, ::31, ::63]])


def test_both_are_scaled_and_cut_alike(model, files):
    images, masks = changed(model, files, range(20), scale_range=(0.4, 2.5), flip=True)
    known = masks != VOID
    assert set(np.unique(masks)) <= {0, 1, 2, 3, VOID}
    clear = np.abs(images[..., 0].astype(int) - GRAYS[np.where(known, masks, 0)]) < 3
    assert clear[known].mean() > 0.8
    # Pixels beyond the image are void, and have the gray that the model normalizes to 0.
    mean = np.round(255 * np.broadcast_to(model.get_layer("preprocessing").mean, 3))
    np.testing.assert_array_equal(images[~known], np.broadcast_to(mean, (np.sum(~known), 3)))
    shares = known.mean(axis=(1, 2))
    assert shares.min() < 0.6 < shares.max() == 1
    assert len({mask.tobytes() for mask in masks}) > 15  # The windows differ.


def test_colours_change_in_the_image_alone(model, files):
    images, masks = changed(model, files, range(3), color_jitter=0.5)
    assert len({image.tobytes() for image in images}) == 3
    assert len({mask.tobytes() for mask in masks}) == 1
    again, _ = changed(model, files, range(3), color_jitter=0.5)
    np.testing.assert_array_equal(images, again)  # The same seed gives the same image.
