"""The benchmark computes the agreement between models correctly."""

import json

import numpy as np
import PIL.Image
import pytest

import keras_vit
from benchmarks import agreement
from benchmarks.records import PAGES
from tests.test_case import randomize

pytestmark = pytest.mark.slow

TINY = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)


def test_agreement():
    expected = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    actual = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]])
    same, moved, largest = agreement.agreement(expected, actual)
    assert same == 0.75
    assert moved == pytest.approx((0.1 + 0.2 + 0.0 + 0.1) / 4)
    assert largest == pytest.approx(0.2)


def test_answers_of_a_trained_model(tmp_path, capsys, monkeypatch):
    model = randomize(keras_vit.ViT(TINY, input_shape=(16, 16, 3), classes=5), scale=0.4)
    keras_vit.save_weights(model, tmp_path / "weights", "timm")
    folder = tmp_path / "images"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (26, 17, 23, 3), "uint8")
    for index, image in enumerate(pixels):
        PIL.Image.fromarray(image).save(folder / f"{index:02}.png")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,class_index\n" + "".join(f"{index:02}.png,{index % 5}\n" for index in range(0, 26, 2)))
    options = [
        "--weights",
        str(tmp_path / "weights"),
        "--images",
        str(folder),
        "--merged",
        "3",
        "--labels",
        str(labels),
    ]
    results, document = tmp_path / "agreement.jsonl", tmp_path / "page.md"
    document.write_text("<!-- make bench-agreement: begin -->\nold<!-- make bench-agreement: end -->\n")
    monkeypatch.setitem(PAGES, "bench-agreement", document)
    assert agreement.main([*options, "--results", str(results), "--document"]) == 0
    kept = [json.loads(line) for line in results.open()]
    assert all({"time", "git", "versions", "device"} <= row.keys() for row in kept)
    assert agreement.table(kept) in document.read_text()
    _, _, title, _, *rows = capsys.readouterr().out.splitlines()[:-1]
    # Every sixth of the 26 images calibrates: 5, all with one of the 13 labels.
    assert "weights, 21 images" in title
    assert "top-1 of 8 images with labels" in title
    cells = {name: [float(cell.rstrip("%")) for cell in others] for _, name, *others, _, _ in map(_split, rows)}
    assert cells["the model"] == [100, 0, 0]
    assert cells["OpenVINO file, float32"][2] < 1e-5
    int8 = ("OpenVINO file, int8", "ONNX file, int8", "LiteRT file, int8")
    for name in ("SavedModel, bfloat16", "SavedModel, int8", *int8, "`token_merging=3`"):
        assert 1e-5 < cells[name][2] < 1
    assert len(cells) == 10


def _split(row):
    return [cell.strip() for cell in row.split("|")]
