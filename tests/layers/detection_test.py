"""Layers of detectors. `tests/models/detectors_test.py` compares them with transformers."""

import keras
import numpy as np
import pytest

from keras_vit.layers import LabelSimilarity, PatchBoxes
from tests.test_case import built, random_inputs, randomize, run_layer_test, to_numpy


@pytest.mark.each_backend
def test_patch_boxes(tmp_path):
    run_layer_test(PatchBoxes, {}, [(6, 4), (2, 3, 5)], (6, 4), {}, tmp_path, output_dtype="float32")


@pytest.mark.each_backend
def test_label_similarity(tmp_path):
    weights = {"kernel": (5, 3)}
    shapes = [(6, 5), (6, 2)]
    run_layer_test(LabelSimilarity, {"labels": 3}, shapes, (6, 3), weights, tmp_path, output_dtype="float32")


def test_the_length_of_embeddings_does_not_matter():
    layer = randomize(built(LabelSimilarity(3), (6, 5)))
    embeddings, scores = random_inputs((6, 5), (6, 2))
    expected = to_numpy(layer(embeddings, scores))
    layer.kernel.assign(7 * to_numpy(layer.kernel))
    np.testing.assert_allclose(layer(3 * embeddings, scores), expected, atol=1e-5)


def test_patch_boxes_of_unknown_size():
    boxes = PatchBoxes()(keras.Input((None, 4)), keras.Input((None, None, 5)))
    assert boxes.shape == (None, None, 4)
