"""Changes by KerasCV."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.training.augment.building_test import SIZE, model_of, pipeline
from training.augment import build_augmentation, keras_cv_layers
from training.config import Augment
from training.errors import InputError

LABELS = np.eye(3, dtype="float32")[[0, 1, 2, 1, 0]]


def _build(channels=3, **config):
    return build_augmentation(model_of(channels), Augment(library="keras_cv", **config))


@pytest.mark.parametrize(
    ("channels", "config"),
    [
        (1, {"flip": True}),
        (3, {"translation": 0.2, "rotation": 20, "scale": 0.2, "fill": "black"}),
        (3, {"crop": "random", "crop_from": 40}),
        (1, {"crop": "inception"}),
        (3, {"randaugment_ops": 2}),
        (1, {"erasing": 0.5}),
        (3, {"crop": "inception", "flip": True, "randaugment_ops": 1, "erasing": 0.25}),
    ],
)
def test_changes_images_in_a_pipeline(channels, config):
    images = pipeline(_build(channels, **config))
    assert images.dtype == "uint8"
    assert images.shape == (12, *SIZE, channels)
    assert len({image.tobytes() for image in images}) > 4


def test_flips_and_crops_are_what_they_are_called():
    plain = pipeline(_build(), repeat=1)
    for i, image in enumerate(pipeline(_build(flip=True))):
        assert any(np.array_equal(image, one) for one in (plain[i % 3], plain[i % 3, :, ::-1]))
    augmentation = _build(crop="random", crop_from=40)
    rows, columns = np.mgrid[:40, :40]
    window = augmentation.change(np.stack([rows, columns, rows], axis=-1).astype("uint8"), (0, 1)).numpy()
    # KerasCV leaves out a row and a column of the window here and there.
    assert set(np.diff(window[:, 0, 0])) <= {1, 2}
    assert set(np.diff(window[0, :, 1])) <= {1, 2}


def test_erases_with_the_probability_asked_for():
    augmentation = _build(erasing=0.3)
    images = pipeline(augmentation, repeat=40)
    plain = pipeline(_build(), repeat=1)
    is_erased = [not np.array_equal(image, plain[i % 3]) for i, image in enumerate(images)]
    assert abs(sum(is_erased) - 36) <= 4 * np.sqrt(120 * 0.3 * 0.7)


@pytest.mark.parametrize("num_real", [5, 3])
@pytest.mark.parametrize("config", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixes_images_but_not_padding(config, num_real):
    images = np.random.default_rng(0).integers(0, 256, (5, *SIZE, 3)).astype("uint8")
    batches = tf.data.Dataset.range(8).map(
        lambda i: _mixers(config)(tf.constant(images), tf.constant(LABELS), tf.stack([i, 3]), num_real)
    )
    changed = 0
    for mixed, labels in batches.as_numpy_iterator():
        assert mixed.dtype == "uint8"
        np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(mixed[num_real:], images[num_real:])
        np.testing.assert_array_equal(labels[num_real:], LABELS[num_real:])
        # Nothing of a padded row's class in a real one.
        assert np.all(labels[:num_real][:, LABELS[:num_real].sum(axis=0) == 0] == 0)
        changed += not np.array_equal(mixed, images)
    assert changed > 0


_MIXERS = {}


def _mixers(config):
    key = tuple(config)
    if key not in _MIXERS:
        _MIXERS[key] = keras_cv_layers.mixer(Augment(library="keras_cv", **config))
    return _MIXERS[key]


def test_refuses_what_keras_cv_lacks():
    for channels, config, message in (
        (3, {"autoaugment": True}, "has no AutoAugment: set augment.autoaugment=false, or choose augment.library"),
        (3, {"randaugment_ops": 2, "randaugment_magnitude": 15}, "beyond magnitude 10, received 15: lower"),
        (1, {"randaugment_ops": 2}, "has no RandAugment for gray images: set augment.randaugment_ops=0"),
    ):
        with pytest.raises(InputError, match=message):
            _build(channels, **config)


def test_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    keras_cv_layers._layers.cache_clear()
    with pytest.raises(InputError, match=r"needs KerasCV.*pip install keras-cv.*augment.library=tensorflow"):
        _build(flip=True)


def test_works_where_keras_runs_on_jax():
    program = """
from tests.training.augment.building_test import pipeline
from tests.training.augment.keras_cv_layers_test import _build, _mixers, LABELS
import keras, numpy, tensorflow
assert keras.backend.backend() == "jax"
keras.utils.set_random_seed(3)
tensorflow.config.experimental.enable_op_determinism()
images = pipeline(_build(crop="inception", flip=True, randaugment_ops=2, erasing=0.5))[:5]
mix = lambda i: _mixers({"mixup": 0.8})(images, LABELS, tensorflow.stack([i, 3]), 3)
[(mixed, labels)] = tensorflow.data.Dataset.range(1).map(mix).as_numpy_iterator()
assert mixed.shape == images.shape and not numpy.array_equal(mixed, images)
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"KERAS_BACKEND": "jax"}, check=True)
