"""The benchmark compares pipelines that do the same."""

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
