"""The benchmark of token merging measures all models in turn and writes a row for each."""

import json

import numpy as np
import pytest

import keras_vit
from benchmarks import token_merging
from benchmarks.records import PAGES

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


def test_the_table_has_a_row_for_each_number(monkeypatch, capsys, tmp_path):
    tiny = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
    monkeypatch.setitem(keras_vit.VARIANTS, "tiny", tiny)
    results, document = tmp_path / "merging.jsonl", tmp_path / "page.md"
    document.write_text("before\n<!-- make bench-merging: begin -->\nold<!-- make bench-merging: end -->\n")
    monkeypatch.setitem(PAGES, "bench-merging", document)
    options = ["--models", "tiny", "--merged", "3", "--size", "16", "--rounds", "2", "--results", str(results)]
    assert token_merging.main([*options, "--document"]) == 0
    kept = [json.loads(line) for line in results.open()]
    assert [(row["model"], row["r"], row["rounds"]) for row in kept] == [("tiny", 0, 2), ("tiny", 3, 2)]
    assert kept[0]["macs"] > kept[1]["macs"]
    assert all({"time", "git", "versions", "device"} <= row.keys() for row in kept)
    assert token_merging.table(kept) in document.read_text()
    assert "old" not in document.read_text()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    assert [int(row[1]) for row in rows] == [0, 3]
    assert float(rows[0][-1]) == 1.0
    assert all(float(row[3]) > 0 for row in rows)
