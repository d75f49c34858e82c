"""The benchmark of CIFAR-10 chooses the trainings, and writes tables and a figure. Nothing is trained here."""

import json

import numpy as np
import pytest

from benchmarks.cifar10 import __main__ as program
from benchmarks.cifar10 import contenders, document
from benchmarks.cifar10.options import Option
from benchmarks.records import PAGES
from training import recipes

pytestmark = pytest.mark.slow

ORIGIN = {"device": "a processor", "time": "2026-11-26T12:00:00", "versions": {"keras": "3", "tensorflow": "2"}}
OURS = {"parameters": 900, "seconds": 3000.0, "images_per_second": 500.0, "steps": 40, "kind": "hour", **ORIGIN}


def hour(name, seed, accuracy, seconds=3000.0):
    return {
        **OURS,
        "seconds": seconds,
        "name": name,
        "seed": seed,
        "curve": [(20, 0.5), (40, accuracy)],
        "test_accuracy": accuracy,
    }


def contender(name, learning_rate, minutes, accuracy, steps=30):
    facts = {"name": name, "learning_rate": learning_rate, "minutes": minutes, "steps": steps}
    curve = [(15, 0.3), (30, accuracy)]
    return {"kind": "contender", **ORIGIN, "versions": {"timm": "1"}, **facts, "curve": curve}


def speed(name, turn, steps):
    return {"kind": "speed", **ORIGIN, "name": name, "round": turn, "steps_per_hour": steps}


def test_all_weights_of_the_tutorials_model_are_trained():
    """Embedding, positions, eight blocks and a norm of width 64, and the classifier. ViTs have the recipe's sizes."""
    block = 4 * 64 * 256 + 3 * 256 + 64 + 64 * 128 + 128 + 128 * 64 + 64 + 4 * 64
    classifier = 144 * 64 * 2048 + 2048 + 2048 * 1024 + 1024 + 1024 * 10 + 10
    weights = contenders.tutorial_model().trainable_weights
    assert sum(np.prod(weight.shape) for weight in weights) == (108 * 64 + 64 + 144 * 64 + 8 * block + 128 + classifier)
    config = recipes.load(program.RECIPE).model.config
    assert {name: getattr(config, name) for name in contenders.SIZES} == contenders.SIZES
    assert config.total_stride == (contenders.PATCH_SIZE,) * 2


def test_evaluations_are_at_equal_intervals_and_take_no_time(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(contenders.time, "perf_counter", lambda: now[0])
    images = {"validation_images": np.eye(4), "validation_labels": np.array([0, 1, 2, 0])}
    training = contenders.Training(images, 0.4, 24, 4)

    def classify(pixels):
        now[0] += 1000
        return pixels

    rates = []
    training.start()
    for _ in range(24):
        rates.append(training.learning_rate)
        now[0] += 2.5
        training.count_step(classify)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"step": 6 * i, "seconds": 15.0 * i, "accuracy": 0.75} for i in range(1, 5)]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(0.4, rel=0.02)
    assert 0 < rates[-1] < 0.02


def test_an_option_gets_as_many_steps_as_its_speed_allows(monkeypatch, tmp_path):
    calls = []
    larger = Option((), ("model.input_shape=24,24,3",))
    options = {"baseline": Option(), "batch": Option(("fit.batch_size=64",)), "larger": larger}
    monkeypatch.setattr(program, "OPTIONS", options)
    monkeypatch.setitem(program.SELECTIONS, "options", (options, ("options",)))
    monkeypatch.setattr(program, "BASELINE_CHANGES", ("optimizer.ema=0",))
    speeds = {"fit.batch_size=64": 28_800}
    monkeypatch.setattr(program, "probe_steps_per_hour", lambda recipe, changes: speeds.get(changes[1], 14_400))
    monkeypatch.setattr(program, "trained", lambda recipe, changes, folder=None: calls.append([*changes]) or OURS)
    results = tmp_path / "cifar10.jsonl"
    assert program.main(["options", "--results", str(results)]) == 0
    always = ["seed=0", "fit.report_every=50%"]
    assert calls[:3] == [
        ["optimizer.ema=0", *always, "fit.steps=3600"],
        ["optimizer.ema=0", "fit.batch_size=64", *always, "fit.steps=7200"],
        ["optimizer.ema=0", *always, "model.input_shape=24,24,3", "fit.steps=1800"],
    ]
    [(*_, weights, steps)] = calls[3:]
    assert weights.startswith("model.weights=")
    assert steps == "fit.steps=1800"
    rows = [json.loads(line) for line in results.open()]
    assert [row["name"] for row in rows] == ["baseline", "batch", "larger"]
    assert rows[2]["first"] == ["model.input_shape=24,24,3"]


def test_tables_and_figure(monkeypatch, tmp_path):
    page = tmp_path / "cifar10.md"
    parts = ("hour", "options", "contenders")
    marks = [f"<!-- make bench-cifar10 {part}: {mark} -->\n" for part in parts for mark in ("begin", "end")]
    page.write_text("".join(marks))
    for part in parts:
        monkeypatch.setitem(PAGES, f"bench-cifar10 {part}", page)
    monkeypatch.setattr(document, "FIGURES", tmp_path)
    options = [
        {**OURS, "kind": "option", "name": name, "curve": [(40, accuracy)]}
        for name, accuracy in (("batches of 64", 0.68), ("baseline", 0.7))
    ]
    hours = [hour("stem", 1, 0.87), hour("stem", 0, 0.85, 3300.0), hour("patches", 0, 0.8)]
    others = [contender("timm", 3e-3, 15, 0.6), contender("timm", 1e-3, 15, 0.5), contender("timm", 3e-3, 60, 0.7)]
    others[0]["device"] = "another processor"
    speeds = [speed("stem", 0, 40), speed("stem", 1, 56), speed("patches", 0, 60), speed("patches", 1, 60)]
    speeds += [speed("timm", turn, 30) for turn in (0, 1)]
    document.write([*options, *hours, *speeds, *others])
    lines = page.read_text().splitlines()
    assert "| keras_vit, convolutional stem | 900 | 55 | 86.00% | 85.00% | 87.00% |" in lines
    assert "| keras_vit, linear patch embedding | 900 | 50 | 80.00% | 80.00% |  |" in lines
    assert "| batches of 64 | 900 | 40 | 68.0% | -2.0 |" in lines
    assert "| keras_vit, convolutional stem |  |  | 40 | 86.0% |" in lines
    assert "| timm's ViT, same blocks | 0.001: 50.0%, 0.003: 60.0% | 0.003 | 30 | 70.0% |" in lines
    assert "another processor and a processor; timm 1; 2026-11-26:" in lines
    assert (tmp_path / "cifar10.png").stat().st_size > 10_000
