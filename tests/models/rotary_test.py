"""Models with rotary positions: image sizes, precision, nesting and files. equations_test.py tests their outputs."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import RotaryConfig
from tests.models.tiny import tiny_model
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, to_numpy

SHAPE = (12, 15, 3)  # 3 x 5 patches.
CHANGES = {"hidden_dim": 36, "position_embedding": "none", "num_register_tokens": 2, "num_layers": 1}
each_kind = pytest.mark.parametrize(
    "rotary",
    [RotaryConfig(), RotaryConfig("mixed", 10.0, "interleaved", "grid", (4, 7), axis_order="xy")],
    ids=["axial", "mixed"],
)


@pytest.mark.slow
@each_kind
def test_nested_and_reloaded(rotary, tmp_path):
    inner = randomize(tiny_model(SHAPE, rotary=rotary, include_top=False, **CHANGES))
    outer = keras.Sequential([keras.Input(SHAPE), keras.layers.Rescaling(0.5), inner, keras.layers.Dense(4)])
    outer.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    [images] = random_inputs(SHAPE)
    np.testing.assert_array_equal(to_numpy(reloaded(images)), to_numpy(outer(images)))
    assert keras_vit.describe(reloaded).config == keras_vit.describe(inner).config
    assert keras_vit.describe(reloaded).config.rotary == rotary
    assert_close(keras_vit.attention_maps(outer, images), keras_vit.attention_maps(inner, 0.5 * images))
    has_frequencies = "encoder_block_0/attention/rotary/frequencies" in canonical_weights(inner)
    assert has_frequencies == (rotary.kind == "mixed")


def test_models_count_the_same_multiplications_with_and_without_rotary_positions():
    """The rotation has no products of matrices."""
    plain, rotated = (tiny_model(SHAPE, rotary=rotary, **CHANGES) for rotary in (None, RotaryConfig()))
    assert keras_vit.profile(rotated).macs == keras_vit.profile(plain).macs
    assert rotated.count_params() == plain.count_params()
