"""The augmentation that is built from a recipe."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.pictures import encoded, noise, picture
from training.data.augment import build_augmentation
from training.data.augment.affine import flip
from training.data.augment.cropping import inception_crop, random_window
from training.data.augment.erasing import erase
from training.data.augment.policies import autoaugment, randaugment
from training.errors import InputError
from training.recipe.config import Augment

SIZE = (23, 31)
FILES = [encoded(noise(61, 97), "JPEG"), encoded(picture(50, 44), "PNG"), encoded(noise(40, 40), "JPEG")]


def model_of(channels=3, **settings):
    """A model with nothing but a preprocessing layer."""
    layer = keras_vit.Preprocessing(**({"resize": SIZE} | settings))
    return keras.Sequential([keras.Input((*SIZE, channels)), layer])


def test_nothing_asked_for_is_the_decoder_of_evaluation():
    model = model_of(resize=40, crop=SIZE)
    augmentation = build_augmentation(model, Augment())
    for file in FILES:
        pixels = image_decoder(model)(file)
        decoded = augmentation.decode({"image": file, "label": 5})
        np.testing.assert_array_equal(decoded["image"], pixels)
        assert augmentation.change(decoded, (3, 7)) == decoded == {"image": decoded["image"], "label": 5}


@pytest.mark.slow
def test_images_follow_from_their_seeds():
    for channels, config in (
        (3, {"flip": True}),
        (1, {"translation": 0.2, "rotation": 20, "scale": 0.2}),
        (3, {"crop": "random", "crop_from": 40}),
        (1, {"crop": "inception"}),
        (1, {"randaugment_ops": 2}),
        (1, {"autoaugment": True}),
        (3, {"erasing": 0.5}),
    ):
        augmentation = build_augmentation(model_of(channels), Augment(**config))
        decoded = augmentation.decode({"image": FILES[0]})
        images = [augmentation.change(decoded, (i, 7))["image"].numpy() for i in range(12)]
        assert {(image.shape, image.dtype.name) for image in images} == {((*SIZE, channels), "uint8")}
        assert len({image.tobytes() for image in images}) > (1 if "flip" in config else 4)
        np.testing.assert_array_equal(augmentation.change(decoded, (5, 7))["image"], images[5])


def test_changes_come_in_the_order_of_the_recipe(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)  # KerasCV may be imported only when it is chosen.
    changes = {"flip": True, "randaugment_ops": 2, "autoaugment": True, "erasing": 0.5, "mixup": 0.8, "cutmix": 1.0}
    config = Augment(crop="inception", **changes)
    seed = (3, 4)
    crop_seed, flip_seed, randaugment_seed, autoaugment_seed, erasing_seed = tf.unstack(
        tf.random.split(tf.constant(seed, tf.int64), 5)
    )
    expected = inception_crop({"image": FILES[0]}, crop_seed, list(SIZE), 3, config.crop_area, "bicubic")
    expected = randaugment(flip(expected, flip_seed)["image"], randaugment_seed, 2, 10)
    expected = autoaugment(expected, autoaugment_seed)
    expected = erase(expected, erasing_seed, 0.5)
    augmentation = build_augmentation(model_of(interpolation="bicubic"), config)
    np.testing.assert_array_equal(augmentation.change({"image": FILES[0]}, seed)["image"], expected)


def test_random_windows_are_cut_from_a_square():
    config = Augment(crop="random", crop_from=37)
    augmentation = build_augmentation(model_of(), config)
    square = image_decoder(keras.Sequential([keras.Input((37, 37, 3)), keras_vit.Preprocessing(resize=(37, 37))]))(
        FILES[0]
    )
    decoded = augmentation.decode({"image": FILES[0]})
    np.testing.assert_array_equal(decoded["image"], square)
    [seed] = tf.random.split(tf.constant((1, 2), tf.int64), 1)
    window = random_window({"image": square}, seed, SIZE)["image"]
    np.testing.assert_array_equal(augmentation.change(decoded, (1, 2))["image"], window)


def test_a_square_that_is_too_small():
    with pytest.raises(InputError, match=r"crop_from=30 is smaller than the model's images, 23 x 31.*at least 31"):
        build_augmentation(model_of(), Augment(crop="random", crop_from=30))
