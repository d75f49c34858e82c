"""The parts of the MACs that grow with the number of tokens, and with its square."""

import pytest

import keras_vit
from benchmarks.cost_against_size import count


@pytest.mark.slow
def test_the_parts_of_the_macs():
    # 224 pixels have 14 x 14 patches and the class token. Each block has two products of (T, T, D).
    found = count("Ti/16", 224, 3)
    assert (found["tokens"], found["heads"]) == (197, 3)
    assert found["square_macs"] == 3 * 2 * 197**2 * 192
    model = keras_vit.ViT("Ti/16", num_layers=3)
    assert found["linear_macs"] + found["square_macs"] == keras_vit.profile(model).macs
    # Without the head and the class token, the MACs are proportional to the number of tokens.
    assert count("Ti/16", 448, 3)["linear_macs"] == pytest.approx(found["linear_macs"] * 785 / 197, rel=0.01)
    assert count("Ti/16", 448, 3)["square_macs"] == pytest.approx(found["square_macs"] * (785 / 197) ** 2)
