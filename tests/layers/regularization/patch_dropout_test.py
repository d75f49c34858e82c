import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import PatchDropout
from tests.models.steps import train
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import assert_close, to_numpy


@pytest.mark.parametrize(
    ("rate", "num_kept"), [pytest.param(0.3, 5, marks=pytest.mark.each_backend), (0.5, 4), (0.99, 1), (0.0, 7)]
)
def test_each_image_keeps_random_patches_and_all_prefix_tokens(rate, num_kept):
    tokens = np.arange(50 * 9 * 2, dtype="float32").reshape(50, 9, 2)
    kept = to_numpy(PatchDropout(rate, num_prefix_tokens=2, seed=0)(ops.convert_to_tensor(tokens), training=True))
    assert kept.shape == (50, 2 + num_kept, 2)
    np.testing.assert_array_equal(kept[:, :2], tokens[:, :2])
    chosen = [
        [np.flatnonzero((image == row).all(-1))[0] for row in rows]
        for image, rows in zip(tokens, kept[:, 2:], strict=True)
    ]
    assert all(len(set(rows)) == num_kept and min(rows) >= 2 for rows in chosen)
    counts = np.bincount(np.ravel(chosen), minlength=9)[2:]
    # Each patch of 50 images is kept as often as the others, up to five standard deviations.
    share = num_kept / 7
    assert np.all(np.abs(counts - 50 * share) <= 5 * np.sqrt(50 * share * (1 - share)))
    np.testing.assert_array_equal(PatchDropout(rate)(tokens), tokens)


@pytest.mark.combination(
    "patch dropout in predict, after a reload, and removed by from_pretrained", "the answers of the model without it"
)
@pytest.mark.slow
def test_a_model_with_patch_dropout_trains_and_predicts_with_all_patches(tmp_path):
    model, whole = (tiny_model(num_register_tokens=1, num_layers=1, patch_dropout_rate=rate) for rate in (0.5, 0.0))
    changed = train(model, SHAPE, keras.optimizers.SGD(1.0))
    assert changed
    whole.set_weights([weight for weight in model.get_weights() if weight.dtype == "float32"])
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    expected = to_numpy(whole(images))
    assert np.ptp(expected, axis=0).max() > 0.01  # The outputs depend on the images.
    model.save(tmp_path / "model.keras")
    without = keras_vit.from_pretrained(tmp_path / "model.keras", patch_dropout_rate=0.0)
    assert "patch_dropout" not in [layer.name for layer in without.layers]
    for each in (model, keras.models.load_model(tmp_path / "model.keras"), without):
        assert_close(each.predict(images, verbose=0), expected)
    layer, num_prefix_tokens = model.get_layer("patch_dropout"), keras_vit.describe(model).config.num_prefix_tokens
    num_patches = math.prod(model.get_layer("patch_embedding").output.shape[1:3])
    tokens = keras.Model(model.inputs, model.get_layer("encoder_block_0").input)(images, training=True)
    assert layer.num_prefix_tokens == num_prefix_tokens
    assert tokens.shape[1] == num_prefix_tokens + num_patches - num_patches // 2


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"axial": True, "pooling": "avg"}, "axial=True"),
        ({"position_placement": "every_layer"}, "position_placement='every_layer'"),
        ({"position_embedding": "relative"}, "position_embedding='relative'"),
        ({"rotary": keras_vit.RotaryConfig(), "hidden_dim": 24}, "rotary=RotaryConfig"),
        ({"pooling": None}, "pooling=None"),
    ],
)
def test_models_that_need_all_patches_are_refused(changes, received):
    with pytest.raises(ValueError, match=f"patch_dropout_rate=0.5 removes patches.*Received: {received}"):
        tiny_model(patch_dropout_rate=0.5, **changes)


def test_without_pooling_no_patches_are_dropped():
    config = keras_vit.VARIANTS["Ti/16"].replace(patch_dropout_rate=0.5)
    assert config.replace(pooling=None).patch_dropout_rate == 0
    with pytest.raises(ValueError, match=r"with patch_dropout_rate=0.5 removes patches in training"):
        keras_vit.pretraining.MaskedAutoencoder(tiny_model(patch_dropout_rate=0.5, patch_size=4, input_shape=(8, 8, 3)))
