"""Nearest neighbours equal those of a sorted table of all cosines."""

import numpy as np
import pytest

import keras_vit
from keras_vit.analysis.features import representation
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import random_inputs, randomize, rest_slow, to_numpy


def _expected(model, images, gallery, k):
    embeddings = [to_numpy(representation(model, part)).astype("float64") for part in (images, gallery)]
    cosines = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in embeddings[1]] for a in embeddings[0]])
    order = np.array([sorted(range(len(gallery)), key=lambda i: -row[i])[:k] for row in cosines])
    return order, np.take_along_axis(cosines, order, axis=1)


@pytest.mark.parametrize("changes", rest_slow([{"distillation_token": True}, {"representation_dim": 7}]))
def test_equal_the_sorted_cosines(changes):
    model = randomize(tiny_model(num_layers=1, **changes))
    [images] = random_inputs(SHAPE, batch=3)
    [gallery] = random_inputs(SHAPE, batch=7, seed=1)
    indices, similarities = keras_vit.nearest_neighbours(model, images, gallery, k=4, batch_size=3)
    expected, cosines = _expected(model, images, gallery, 4)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(similarities, cosines, atol=1e-5)
    assert indices.dtype == "int64"
    assert similarities.dtype == "float32"
    again = keras_vit.nearest_neighbours(model, iter([images]), iter([gallery[:5], gallery[5:]]), k=4)
    np.testing.assert_array_equal(again[0], indices)


def test_an_image_of_the_gallery_finds_itself_and_of_equals_the_first(model):
    [gallery] = random_inputs(SHAPE, batch=5)
    gallery[3] = gallery[1]
    indices, similarities = keras_vit.nearest_neighbours(model, gallery[[3, 4]], gallery, k=2)
    assert indices[0].tolist() == [1, 3]
    assert indices[1, 0] == 4
    np.testing.assert_allclose(similarities[[0, 0, 1], [0, 1, 0]], 1, rtol=1e-6)
    assert similarities.max() <= 1


def test_refusals(model):
    [images] = random_inputs(SHAPE)
    with pytest.raises(ValueError, match="gallery contains 2 images, but k=3 neighbours"):
        keras_vit.nearest_neighbours(model, images, images, k=3)
    for no_images in (images[:0], iter([])):
        with pytest.raises(ValueError, match=r"There is no image. Give at least one"):
            keras_vit.nearest_neighbours(model, no_images, images)
    with pytest.raises(ValueError, match="k must be a positive integer"):
        keras_vit.nearest_neighbours(model, images, images, k=0)
