"""The command measures each part of the first step."""

import pytest

from benchmarks.first_step import PARTS, _Stopwatch, grappler_seconds, table

LOG = """I0000 00:00:1795669939.437450 10507 meta_optimizer.cc:973] model_pruner: Graph size after: 3, time = 110.5ms.
I0000 00:00:1795669939.596270 10507 meta_optimizer.cc:973] remapper: Graph size after: 2 nodes (0), time = 19.25ms.
I0000 00:00:1795669939.596270 10507 another.cc:973] time = 7ms."""


def test_passes_are_added_up():
    assert grappler_seconds(LOG) == pytest.approx(0.12975)


def test_inner_functions_are_not_counted_twice(monkeypatch):
    class Model:
        def step(self):
            return self.call() + 1

        def call(self):
            return 2

    times = iter([1.0, 2.0, 5.0, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    watch, model = _Stopwatch(), Model()
    watch.wrap(model, "call", "forward")
    watch.wrap(model, "step", "step")
    assert model.step() == 3
    assert watch.seconds == {"forward": 3.0, "step": 8.0}
    assert watch.calls == {"forward": 1, "step": 1}


def test_table_has_medians_and_shares():
    row = {"model": "S/16", "size": 224, "batch_size": 8, "kind": "ours", "device": "x", "traces": 1, "later": 0.5}
    rows = [
        row | {"first": first, "parts": dict.fromkeys(PARTS, share * (first - 0.5))}
        for first, share in ((8.5, 0.1), (10.5, 0.2), (7.5, 0.3))
    ]
    assert table(rows).splitlines()[-1] == "| S/16 | keras_vit's model | 1 | 8.5 | 0.50 | 8.0 |" + " 20 % |" * 6
