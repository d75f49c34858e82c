"""Many clients at once: conftest.py says how many, and for how long."""

import pytest

from tests.serving.conftest import REQUESTS_A_ROUND, ROUNDS
from tests.serving.program import Clients, prediction_log, read_answers, serve

MAX_GROWTH_KIB = 8 * 1024
"""Without a leak it is up to 2 MB, while memory finds its place, also after 12,000 requests. 64 KB kept of each of 200
requests are 8.5 MB in the rounds that count."""


def growth_kib(report):
    """By how much memory has grown since the first third, in which all is made that is kept."""
    rounds = report["after_rounds_kib"]
    return rounds[-1] - rounds[len(rounds) // 3 - 1]


def test_sustained_load(served):
    """Every answer is the one that the request had when it was alone, to the last bit."""
    *_, report = served
    assert (report["failed_under_load"], report["different"]) == (0, 0), report
    assert report["answered"] >= ROUNDS * REQUESTS_A_ROUND >= 200, report
    assert growth_kib(report) < MAX_GROWTH_KIB, report


@pytest.fixture
def leaking(tmp_path):
    """A SavedModel that keeps 32 KB of each request, and never answers twice the same."""
    import tensorflow as tf

    class Leaking(tf.Module):
        def __init__(self):
            super().__init__()
            self.kept = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros(8192))
            self.count = tf.Variable(0, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
        def serve(self, image_bytes):
            key = self.count.assign_add(1)
            self.kept.insert(key, tf.ones(8192))
            return {"count": tf.repeat(key, tf.size(image_bytes))}

    module = Leaking()
    folder = tmp_path / "leaking"
    tf.saved_model.save(module, folder, {"serving_default": module.serve})
    return folder


@pytest.mark.slow
def test_a_leak_and_a_changed_answer_would_be_seen(program, leaking, tmp_path):
    requests = [prediction_log("serving_default", image_bytes=[b"image"])]
    serve(program, [leaking], requests, tmp_path, Clients(requests, threads=2, rounds=3, number=200))
    report = read_answers(tmp_path).report
    assert report["different"] > 0
    assert growth_kib(report) > MAX_GROWTH_KIB
