"""The benchmark measures the rates of the three libraries' pipelines and compares them."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import input_pipeline

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def steps():
    # KerasCV needs one. TensorFlow creates none after an earlier run has enabled determinism.
    tf.random.set_global_generator(tf.random.Generator.from_seed(0))
    return input_pipeline.pipelines(input_pipeline.photographs(2))


@pytest.mark.parametrize("library", ["ours", "Keras", "KerasCV"])
def test_all_libraries_make_batches_of_changed_images(steps, library):
    assert set(steps) == set(input_pipeline.STEPS)
    images, labels = (part.numpy() for part in next(iter(steps["all"][library])))
    assert images.shape == (32, 224, 224, 3)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
    assert 20 < images.std() < 128  # Pixels are in [0, 255].
    # Each image of a batch is augmented differently, although there are only two files.
    assert len({image.tobytes() for image in images}) > 20


def test_rates_and_ratios(steps):
    rates = input_pipeline.measure(steps["flip"], rounds=2, seconds=0.01)
    assert all(len(rate) == 2 and min(rate) > 0 for rate in rates.values())
    results = {"flip": {"ours": [300.0, 100.0, 200.0], "Keras": [10.0, 20.0, 50.0], "KerasCV": [100.0, 100.0, 100.0]}}
    assert input_pipeline.table(results).splitlines()[2] == (
        "| flip | 200 (100-300) | 20 (10-50) | 100 (100-100) | 5.0 (4.0-30.0) | 2.0 (1.0-3.0) |"
    )
