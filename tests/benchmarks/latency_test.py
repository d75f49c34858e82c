"""The benchmark computes latencies and ratios correctly, and refuses runtimes with different answers."""

import pickle
import shutil

import numpy as np
import pytest

import keras_vit
from benchmarks import latency
from benchmarks.contenders import served
from benchmarks.contenders.served import OURS, ROWS
from benchmarks.latency import Start

pytestmark = pytest.mark.slow
TINY = keras_vit.ViTConfig(patch_size=8, hidden_dim=24, num_layers=1, num_heads=3, mlp_dim=36)
RUNTIME = "openvino"  # It starts in a second.


def build():
    return served.build(TINY, size=32, classes=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    served.prepare(build(), folder, [OURS, RUNTIME], batch_sizes=[1, 5])
    return folder


def test_answers_depend_on_the_image(folder):
    """Answers to different images differ by more than the tolerance, so their comparison is meaningful."""
    answers = served.read_inputs(folder, "probabilities")
    assert answers.shape == (5, 7)
    np.testing.assert_allclose(answers[4], answers[0], atol=1e-6)  # The four photographs are repeated.
    for index in range(3):
        assert np.abs(answers[index] - answers[index + 1 : 4]).max(axis=1).min() > 50 * served.TOLERANCE


def test_latencies(folder):
    """Each batch size and row has one latency per round, and all answers equal those of the Keras model."""
    found = latency.latencies([OURS, RUNTIME], folder, threads=1, batch_sizes=[1, 3], rounds=12)
    for batch_size, rounds in ((1, 12), (3, 4)):
        seconds = found.pop(batch_size)
        assert set(seconds) == {OURS, RUNTIME}
        assert all(len(values) == rounds and min(values) > 0 for values in seconds.values())
    assert not found


def test_other_weights_are_refused(folder, tmp_path):
    """A runtime is refused if its weights differ from the Keras model's."""
    other = build()
    kernel = other.layers[-1].kernel
    kernel.assign(kernel * 1.01)
    shutil.copytree(folder, tmp_path / "files")
    answers = other.predict(served.read_inputs(folder, "normalised"), verbose=0)
    (tmp_path / "files" / "probabilities.pickle").write_bytes(pickle.dumps(answers))
    with pytest.raises(
        ValueError, match=r"^OpenVINO answers differently from the Keras model.* at batch size 1; at most 1e-04"
    ):
        latency.Process(ROWS[RUNTIME], tmp_path / "files", 1)


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [4.0, 1.0, 3.0, 2.0], [*range(100, 0, -1)], [*range(200)], [7.0]])
def test_percentile(values):
    for percent in (50, 99):
        assert latency.percentile(values, percent) == np.percentile(values, percent, method="inverted_cdf")


def test_tables():
    """Ratios compare values of the same round. Ours is 1."""
    starts = {
        OURS: [Start(3.0, 2.0, 1000.0), Start(1.0, 4.0, 2000.0), Start(2.0, 1.0, 4000.0)],
        "onnx": [Start(0.1, 1.0, 100.0), Start(0.3, 1.0, 100.0), Start(0.2, 2.0, 100.0)],
    }
    assert latency.cold_table(starts).splitlines()[2:] == [
        "| our SavedModel | 2.00 | 1 | 2,000 | 1 | 2.00 |",
        "| ONNX Runtime | 1.00 | 0.50 (0.25-2.00) | 100 | 0.05 (0.03-0.10) | 0.20 |",
    ]
    results = {8: {OURS: [2.0, 4.0, 5.0], "onnx": [1.0, 8.0, 5.0]}}
    assert latency.latency_table(results).splitlines()[2:] == [
        "| our SavedModel | 8 | 3 | 4,000.0 | 1 | 5,000.0 | 1.00 |",
        "| ONNX Runtime | 8 | 3 | 5,000.0 | 1.00 (0.50-2.00) | 8,000.0 | 1.60 |",
    ]
