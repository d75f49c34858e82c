"""The benchmark of token merging measures all models in turn and writes a row for each."""

import numpy as np
import pytest

from benchmarks import token_merging

pytestmark = pytest.mark.slow


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
