"""Many clients send requests at once. conftest.py sets their number and the duration."""

import pytest

from tests.serving.conftest import REQUESTS_A_ROUND, ROUNDS
from tests.serving.program import Clients, prediction_log, read_answers, serve

MAX_GROWTH_KIB = 8 * 1024
"""Without a leak, memory grows by up to 2 MB, also after 12,000 requests. A leak of 64 KB in each of 200 requests adds
8.5 MB in the measured rounds."""


def growth_kib(report):
    """The growth of memory after the first third of the rounds, in which all permanent memory is allocated."""
    rounds = report["after_rounds_kib"]
    return rounds[-1] - rounds[len(rounds) // 3 - 1]


def test_sustained_load(served):
    """Every answer equals the first answer to the same request, bit for bit."""
    *_, report = served
    assert (report["failed_under_load"], report["different"]) == (0, 0), report
    assert report["answered"] >= ROUNDS * REQUESTS_A_ROUND >= 200, report
    assert growth_kib(report) < MAX_GROWTH_KIB, report


@pytest.fixture
def leaking(tmp_path):
    """A SavedModel that keeps 32 KB per request and never gives the same answer twice."""
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
