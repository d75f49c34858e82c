"""Filters and position similarities equal those that the tests plant into the weights."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.test_case import assert_close, canonical_weights, randomize, rest_slow
from tests.weights.converter_case import make_shell


def test_a_planted_kernel_is_recovered():
    """Filters are mixtures of three pictures, and each picture's mean weight is 0. The components are the pictures."""
    rng = np.random.default_rng(0)
    pictures = np.linalg.qr(rng.normal(size=(36, 3)))[0].T
    mixtures = rng.normal(size=(12, 3))
    mixtures = np.linalg.qr(mixtures - mixtures.mean(0))[0] * [3.0, 2.0, 1.0]
    model = tiny_model(num_layers=1)
    model.get_layer("patch_embedding").kernel.assign((mixtures @ pictures).T.reshape(4, 3, 3, 12) + 0.7)
    found = keras_vit.embedding_filters(model, n=5)
    assert found.shape == (5, 4, 3, 3)
    assert found.dtype == "float32"
    signs = np.sign(np.take_along_axis(pictures, np.abs(pictures).argmax(1)[:, None], axis=1))
    pictures = (signs * pictures).T
    scaled = (pictures - pictures.min(0)) / np.ptp(pictures, axis=0)
    np.testing.assert_allclose(found[:3], scaled.T.reshape(3, 4, 3, 3), atol=1e-5)
    np.testing.assert_array_equal(found[3:], 0.5)  # There is no fourth direction, only rounding errors.


@pytest.mark.slow
def test_of_a_stem_the_first_convolution():
    model = randomize(tiny_model(stem=STEM, patch_size=(1, 2), input_shape=(32, 64, 3), num_layers=1))
    assert keras_vit.embedding_filters(model, n=7).shape == (7, 7, 7, 3)


def test_no_more_filters_than_there_are(model):
    with pytest.raises(ValueError, match=r"12 filters of 36 values have at most 12 .*Received: n=28"):
        keras_vit.embedding_filters(model)
    with pytest.raises(ValueError, match="n must be a positive integer"):
        keras_vit.embedding_filters(model, n=0)


def _cosines(rows, grid):
    """(h, w, h, w), computed pair by pair."""
    found = [[a @ b / np.sqrt((a @ a) * (b @ b)) for b in rows] for a in rows]
    return np.reshape(found, (*grid, *grid))


@pytest.mark.parametrize("changes", rest_slow([{"num_register_tokens": 2}, {"pooling": "avg"}]))
def test_similarities_of_a_table(changes):
    model = randomize(tiny_model(num_layers=1, **changes))
    rows = canonical_weights(model)["position_embedding/embedding"][-6:]
    found = keras_vit.position_similarity(model)
    assert_close(found, _cosines(rows, (2, 3)))
    np.testing.assert_allclose(found.reshape(6, 6).diagonal(), 1, rtol=1e-6)
    np.testing.assert_allclose(found, found.transpose(2, 3, 0, 1), atol=1e-6)


@pytest.mark.slow
def test_two_tables_share_a_half():
    model = randomize(tiny_model(position_embedding="learned_2d", num_layers=1))
    weights = {path: value for path, value in canonical_weights(model).items() if path.startswith("position_embedding")}
    [columns] = [table for table in weights.values() if table.shape == (3, 6)]
    [rows] = [table for table in weights.values() if table.shape == (2, 6)]
    table = [np.concatenate([columns[x], rows[y]]) for y in range(2) for x in range(3)]
    assert_close(keras_vit.position_similarity(model), _cosines(table, (2, 3)))


@pytest.mark.slow
def test_each_block_has_a_table_of_its_own():
    model = randomize(tiny_model(position_placement="every_layer"))
    for block in range(2):
        rows = canonical_weights(model)[f"position_embedding_{block}/embedding"][-6:]
        assert_close(keras_vit.position_similarity(model, block), _cosines(rows, (2, 3)))
    with pytest.raises(ValueError, match=r"block must be from 0 to 1 in .* Received: block=2"):
        keras_vit.position_similarity(model, block=2)
    shared = randomize(tiny_model(position_placement="every_layer_shared"))
    rows = canonical_weights(shared)["position_embedding/embedding"][-6:]
    assert_close(keras_vit.position_similarity(shared), _cosines(rows, (2, 3)))


@pytest.mark.parametrize("positions", rest_slow(["sincos_2d", "learned_1d"]))
def test_of_variable_size_the_grid_of_the_table(positions):
    model = randomize(tiny_model((None, None, 3), position_embedding=positions, patch_size=(32, 56), num_layers=1))
    found = keras_vit.position_similarity(model)
    assert found.shape == (7, 4, 7, 4)
    np.testing.assert_allclose(found.reshape(28, 28).diagonal(), 1, rtol=1e-6)


def test_nested_equals_plain(inner, nested):
    _, outer, _ = nested
    np.testing.assert_array_equal(keras_vit.position_similarity(outer), keras_vit.position_similarity(inner))
    np.testing.assert_array_equal(keras_vit.embedding_filters(outer, 3), keras_vit.embedding_filters(inner, 3))


def test_refusals(model):
    for positions in ("none", "relative"):
        with pytest.raises(ValueError, match=f"'model' has position_embedding='{positions}'"):
            keras_vit.position_similarity(make_shell(name="model", position_embedding=positions))
    with pytest.raises(ValueError, match=r"block must be 0: there is one embedding in .* Received: block=1"):
        keras_vit.position_similarity(model, block=1)
    stranger = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()])
    for analysis in (keras_vit.position_similarity, keras_vit.embedding_filters):
        with pytest.raises(ValueError, match="has one Preprocessing layer"):
            analysis(stranger)
    other = keras.Sequential([keras.Input(SHAPE), keras_vit.Preprocessing(), keras.layers.Flatten()], name="other")
    with pytest.raises(ValueError, match="'other' has neither a patch embedding nor the stem of this package"):
        keras_vit.embedding_filters(other)
