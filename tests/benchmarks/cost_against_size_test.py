"""The cost against the size is measured, counted, stored, tabulated and plotted."""

import os

import keras
import pytest

import keras_vit
from benchmarks import cost_against_size
from benchmarks.cost_against_size import Point, count, measure, open_steps
from benchmarks.workers import Job
from tests.benchmarks.stub_steps import open_sized

pytestmark = pytest.mark.slow


def test_time_and_memory_are_those_of_an_image():
    row = measure("S/16", "forward", Point(num_layers=6, batch_size=20), open_sized)
    assert 0.006 <= row["seconds"] < 0.02
    assert 0.9e6 < row["memory"] < 3e6
    assert (row["num_layers"], row["batch_size"], row["size"], row["device"]) == (6, 20, 224, "a stub")


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


def test_steps_of_a_real_model(monkeypatch, keras_calls):
    tiny = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=5, num_heads=3, mlp_dim=20)
    monkeypatch.setitem(keras_vit.VARIANTS, "tiny", tiny)
    built, asked = [], []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: asked.append(list(cores)))
    build = cost_against_size.build_ours
    monkeypatch.setattr(cost_against_size, "build_ours", lambda *a, **k: built.append(build(*a, **k)) or built[-1])
    make_steps, device = open_steps(Job("tiny", 8, "train"), Point(8, 2, 3, 1))
    make_steps(3, 2)
    assert [(method, images.shape) for method, images, _ in keras_calls] == [("train_on_batch", (3, 8, 8, 3))] * 2
    assert sum("encoder_block" in layer.name for layer in built[0].layers) == 2
    assert [len(cores) for cores in asked] == [1]
    assert device.startswith(f"{keras.backend.backend()}: ")
