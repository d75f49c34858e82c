"""Every model of the package is exported and served in the same way."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import models
from keras_vit.config import VARIANTS
from keras_vit.decoding import image_decoder
from keras_vit.export.parity import read_images
from tests.test_case import TENSORFLOW, assert_close, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="of other backends, elsewhere_test.py")
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def _small(config):
    """A config of the same kind."""
    stem = config.stem and dataclasses.replace(config.stem, stage_depths=(1,) * len(config.stem.stage_depths))
    return config.replace(hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, stem=stem)


def _kinds():
    """{small config: names of the factories that make it}"""
    built = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.vit, "build_model", lambda config, **arguments: built.append(config))
        found = {}
        for name in models.__all__:
            getattr(models, name)()
            found.setdefault(_small(built[-1]), []).append(name)
    return found


KINDS = _kinds()


def test_every_factory_is_here():
    assert {name for names in KINDS.values() for name in names} == set(models.__all__)
    assert len(KINDS) == 7  # Patches of 8, 14, 16 and 32 pixels; stems of three and of four stages, and of R+Ti/16.


def _assert_served(model, path):
    import tensorflow as tf

    folder = keras_vit.export_saved_model(model, path)
    files = read_images(None)
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in files])
    expected = model.predict(keras_vit.preprocess_input(pixels, model), verbose=0)
    assert np.ptp(expected, axis=0).max() > 1e-4  # The photographs differ.
    signatures = tf.saved_model.load(str(folder)).signatures
    assert set(signatures) == {
        "serving_default",
        "predict_pixels",
        "predict_pixels_float",
        "embed",
        "tokens",
        "explain",
    }
    outputs = signatures["serving_default"](image_bytes=tf.constant(files))
    assert outputs["valid"].numpy().all()
    assert_close(outputs["probabilities"], expected)
    assert_close(signatures["predict_pixels"](images=tf.constant(pixels))["probabilities"], expected)


@pytest.mark.parametrize("config", KINDS, ids=[names[0] for names in KINDS.values()])
def test_every_factory(config, tmp_path, monkeypatch):
    name = KINDS[config][0]
    monkeypatch.setattr(models.vit, "get_variant", lambda variant: _small(VARIANTS[variant]))
    stride = config.total_stride
    model = getattr(models, name)(input_shape=(2 * stride[0], 3 * stride[1], 3), classes=5)
    _assert_served(randomize(model, scale=0.2), tmp_path)


GRIDS = {"vit_token_prelogits": (4, 4), "hybrid_r2stage": (8, 8)}


@pytest.mark.parametrize("file", GRIDS)
def test_fine_tuned_at_another_resolution(file, tmp_path):
    """A published file's weights, at another size than its own, with a new head, and trained a little."""
    arrays = dict(np.load(GOLDEN / f"{file}.npz"))
    _, height, width, _ = arrays["__input__"].shape
    source = tmp_path / "published.npz"
    np.savez(source, **{name: array for name, array in arrays.items() if not name.startswith("__")})
    arguments = {"input_shape": (2 * height, 3 * width, 3), "classes": 3, "grid_size": GRIDS[file]}
    model = keras_vit.from_pretrained(source, **arguments)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    images = np.random.default_rng(0).uniform(-1, 1, (6, *model.input_shape[1:])).astype("float32")
    model.fit(images, np.arange(6) % 3, epochs=3, verbose=0)
    assert keras_vit.describe(model).adaptations
    _assert_served(model, tmp_path)
