"""Augmentation with KerasCV."""

import sys

import numpy as np
import pytest
import tensorflow as tf

import training.data.augment
from tests.training.data.augment.building_test import FILES, SIZE, model_of
from training.data.augment import build_augmentation, keras_cv_layers
from training.errors import InputError
from training.recipe.config import Augment

LABELS = np.eye(3, dtype="float32")[[0, 1, 2, 1, 0]]


def _build(channels=3, **config):
    return build_augmentation(model_of(channels), Augment(library="keras_cv", **config))


def changed(augmentation, number, decoded=None):
    """Images (number, H, W, C) for `number` seeds."""
    decoded = augmentation.decode({"image": FILES[0]}) if decoded is None else {"image": decoded}
    return np.stack([augmentation.change(decoded, (seed, 7))["image"] for seed in range(number)])


@pytest.mark.slow
@pytest.mark.each_backend  # KerasCV needs TensorFlow's random generators, whatever the backend of Keras.
def test_changes_images_in_a_pipeline():
    config = {"crop": "random", "crop_from": 40, "flip": True, "rotation": 9, "randaugment_ops": 1, "erasing": 0.25}
    augmentation = _build(**config)
    decoded = tf.stack(
        [augmentation.decode({"image": file})["image"] for file in FILES]
    )  # Eager, because tracing takes seconds.
    examples = tf.data.Dataset.from_tensor_slices(decoded).repeat(4).enumerate()
    changed = examples.map(
        lambda i, image: augmentation.change({"image": image}, tf.stack([i, 7]))["image"], tf.data.AUTOTUNE
    )
    [images] = changed.batch(12).as_numpy_iterator()
    assert images.shape == (12, *SIZE, 3)
    assert len({image.tobytes() for image in images}) > 8  # One image in a hundred becomes all black or all white.


def test_only_the_policy_is_that_of_keras_cv():
    config = {"crop": "random", "crop_from": 40, "flip": True, "erasing": 0.5}
    ours = build_augmentation(model_of(3), Augment(**config))
    np.testing.assert_array_equal(changed(_build(**config), 6), changed(ours, 6))
    with_policy = changed(_build(**config, randaugment_ops=1), 6)
    assert with_policy.dtype == "uint8"
    assert not np.array_equal(with_policy, changed(ours, 6))


@pytest.mark.parametrize(("config", "num_real"), [({"mixup": 0.8}, 5), ({"cutmix": 1.0}, 3)])
def test_mixes_images_but_not_padding(config, num_real):
    images = np.random.default_rng(0).integers(0, 256, (5, *SIZE, 3)).astype("uint8")
    mix = keras_cv_layers.mixer(Augment(library="keras_cv", **config))
    batches = tf.data.Dataset.range(8).map(
        lambda i: mix(tf.constant(images), tf.constant(LABELS), tf.stack([i, 3]), num_real)
    )
    changed = 0
    for mixed, labels in batches.as_numpy_iterator():
        assert mixed.dtype == "uint8"
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(mixed[num_real:], images[num_real:])
        np.testing.assert_array_equal(labels[num_real:], LABELS[num_real:])
        # Real images get no share of the classes of padded rows.
        assert np.all(labels[:num_real][:, LABELS[:num_real].sum(axis=0) == 0] == 0)
        changed += not np.array_equal(mixed, images)
    assert changed > 0


def test_refuses_what_keras_cv_lacks():
    for channels, config, message in (
        (3, {"autoaugment": True}, "has no AutoAugment. Set augment.autoaugment=false, or choose augment.library"),
        (3, {"randaugment_ops": 2, "randaugment_magnitude": 15}, "beyond magnitude 10. Received: 15. Lower"),
        (1, {"randaugment_ops": 2}, "has no RandAugment for gray images. Set augment.randaugment_ops=0"),
    ):
        with pytest.raises(InputError, match=message):
            _build(channels, **config)


def test_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    monkeypatch.delitem(sys.modules, keras_cv_layers.__name__)  # The module has already imported KerasCV.
    monkeypatch.delattr(training.data.augment, "keras_cv_layers")
    with pytest.raises(InputError, match=r"needs KerasCV.*pip install keras-cv.*augment.library=tensorflow"):
        _build(flip=True)
