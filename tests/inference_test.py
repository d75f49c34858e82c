"""The way from any images to the outputs of a model, and to a table."""

import csv
import json
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

from keras_vit.data.table import read_table
from keras_vit.inference import predict, predictor, write_rows

ROWS = [
    {"path": "a.jpg", "labels": ["cat", "dog"], "scores": [0.5, 0.25]},
    {"path": "b, c.jpg", "labels": [], "scores": []},
]


def test_results_follow_the_samples():
    threads, sizes = set(), []

    def serve(contents):
        threads.add(threading.get_ident())
        sizes.append(len(contents))
        lengths = np.array([len(content) for content in contents])
        return {"valid": lengths != 3, "length": lengths}

    samples = [{"path": str(n), "image": b"x" * n} if n % 5 else {"path": str(n), "error": "lost"} for n in range(23)]
    results = list(predict(serve, iter(samples), batch_size=4))
    assert [sample["path"] for sample, _ in results] == [str(n) for n in range(23)]
    for n, (sample, outputs) in enumerate(results):
        if n % 5 == 0:
            assert (sample["error"], outputs) == ("lost", None)
        elif n == 3:
            assert sample["error"].startswith("is not an image that can be decoded")
            assert outputs is None
        else:
            assert outputs == {"length": n}
    assert sum(sizes) == 18
    assert max(sizes) <= 4
    assert threading.get_ident() not in threads


def test_an_error_of_the_model_is_raised():
    def serve(contents):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        list(predict(serve, [{"path": "a", "image": b""}]))


def test_tables(tmp_path):
    write_rows(tmp_path / "rows.csv", ["path", "labels", "scores"], iter(ROWS))
    with open(tmp_path / "rows.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["path", "labels", "scores"],
            ["a.jpg", "cat;dog", "0.5;0.25"],
            ["b, c.jpg", "", ""],
        ]
    assert read_table(tmp_path / "rows.csv").column("labels") == ["cat;dog", ""]
    write_rows(tmp_path / "rows.jsonl", ["path", "labels", "scores"], iter(ROWS))
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == ROWS
    with pytest.raises(ValueError, match=r"\.csv, \.jsonl, \.parquet\. Received: .*rows\.xlsx"):
        write_rows(tmp_path / "rows.xlsx", ["path"], [])
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    write_rows(tmp_path / "rows.parquet", ["path", "labels", "scores"], iter(ROWS))
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == ROWS
    write_rows(tmp_path / "rows.parquet", ["path"], iter(()))
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").num_rows == 0
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "rows.jsonl", "rows.parquet"}


_TWO_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import keras, numpy as np
from keras_vit.inference import predictor
if keras.backend.backend() == "jax":
    import jax
    devices = jax.local_devices()
else:
    import tensorflow as tf
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
assert len(devices) == 2
inputs = keras.Input((3,))
model = keras.Model(inputs, {"sum": keras.layers.Dense(2)(inputs), "same": keras.layers.Identity()(inputs)})
images = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
expected, found = model.predict_on_batch(images), predictor(model, devices)(images)
assert set(found) == {"sum", "same"}
for name in found:
    assert found[name].shape == expected[name].shape
    np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.each_backend
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="one device")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_arrays_are_written_as_lists_and_other_columns_left_out(suffix, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    row = {"path": "a.jpg", "value": np.float32(0.5), "scores": np.array([0.5, 2.0], "float32"), "other": object()}
    write_rows(tmp_path / f"out{suffix}", ["path", "value", "scores"], [row])
    if suffix == ".jsonl":
        assert json.loads((tmp_path / "out.jsonl").read_text()) == {"path": "a.jpg", "value": 0.5, "scores": [0.5, 2.0]}
        return
    expected = {"value": ["0.5"], "scores": ["0.5;2.0"]} if suffix == ".csv" else {"value": [0.5], "scores": [[0.5, 2]]}
    assert read_table(tmp_path / f"out{suffix}").columns == expected


@pytest.mark.slow
def test_two_devices_share_a_batch():
    subprocess.run([sys.executable, "-c", _TWO_DEVICES], check=True)


def test_one_device_calls_the_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert predictor(model, devices=["cpu"]) == model.predict_on_batch
