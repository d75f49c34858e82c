"""The benchmark of token merging compares what it says."""

import numpy as np
import pytest

import keras_vit
from benchmarks import token_merging
from tests.test_case import randomize

TINY = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)


def test_agreement():
    expected = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    actual = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]])
    share, moved = token_merging.agreement(expected, actual)
    assert share == 0.75
    assert moved == pytest.approx((0.1 + 0.2 + 0.0 + 0.1) / 4)


def test_every_model_has_its_turn_in_every_round():
    calls = []

    class Model:
        def __init__(self, name):
            self.name = name

        def predict_on_batch(self, images):
            calls.append(self.name)

    found = token_merging.rates({name: Model(name) for name in "abc"}, np.zeros((2, 1)), rounds=5, steps=2)
    assert {name: len(rates) for name, rates in found.items()} == dict.fromkeys("abc", 5)
    turns = ["".join(calls[3 + 6 * i : 9 + 6 * i : 2]) for i in range(5)]
    assert all(sorted(turn) == list("abc") for turn in turns)
    assert len(set(turns)) > 1


def test_answers_of_a_trained_model(tmp_path, capsys):
    model = randomize(keras_vit.ViT(TINY, input_shape=(16, 16, 3), classes=5), scale=0.4)
    keras_vit.save_weights(model, tmp_path / "weights", "timm")
    photographs = token_merging.image_paths(keras_vit.__path__[0])
    options = ["--weights", str(tmp_path / "weights"), "--images", keras_vit.__path__[0], "--merged", "3"]
    assert token_merging.main(["--models", *options]) == 0
    printed = capsys.readouterr().out
    assert f"weights on {len(photographs)} images" in printed
    assert "| 0 | 0.00 | 100.0% | 0.000 |" in printed
    assert "| 3 | 0.00 |" in printed


def test_refusals(tmp_path, capsys):
    with pytest.raises(SystemExit):
        token_merging.main(["--weights", "vit.npz"])
    assert "--weights and --images go together" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=f"There is no image in {tmp_path}"):
        token_merging.image_paths(tmp_path)
