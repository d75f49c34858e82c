"""Costs of models with rotary positions. equations_test.py tests their outputs, reloading_test.py their files."""

import keras_vit
from keras_vit import RotaryConfig
from tests.models.tiny import tiny_model

SHAPE = (12, 15, 3)  # 3 x 5 patches.
CHANGES = {"hidden_dim": 36, "position_embedding": "none", "num_register_tokens": 2, "num_layers": 1}


def test_models_count_the_same_multiplications_with_and_without_rotary_positions():
    """The rotation has no products of matrices."""
    plain, rotated = (tiny_model(SHAPE, rotary=rotary, **CHANGES) for rotary in (None, RotaryConfig()))
    assert keras_vit.profile(rotated).macs == keras_vit.profile(plain).macs
    assert rotated.count_params() == plain.count_params()
