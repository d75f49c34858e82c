"""Distances and entropies of attention equal closed forms, and loops over the weights of `attention_maps`."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.analysis.nested import NESTED
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.test_case import assert_close, random_inputs, randomize, rest_slow

ANALYSES = [keras_vit.mean_attention_distance, keras_vit.attention_entropy, keras_vit.local_attention_ratio]


def _distances(maps, grid, patch):
    """(L, K), computed patch by patch."""
    places = [(row * patch[0], column * patch[1]) for row in range(grid[0]) for column in range(grid[1])]
    front = maps.shape[-1] - len(places)
    found = np.zeros((*maps.shape[:3], len(places)))
    for q, place in enumerate(places):
        weights = maps[..., front + q, front:].astype("float64")
        found[..., q] = sum(weights[..., s] * math.dist(place, other) for s, other in enumerate(places))
        found[..., q] /= weights.sum(-1)
    return found.mean((0, 3))


def _entropies(maps):
    logarithms = np.log(np.where(maps > 0, maps, 1), dtype="float64")
    return -(maps * logarithms).sum(-1).mean((0, 3))


CASES = [
    ({"distillation_token": True, "num_register_tokens": 2}, (4, 3)),
    ({"pooling": "avg", "position_embedding": "relative"}, (4, 3)),
    ({"pooling": "avg", "axial": True}, (4, 3)),
    # A stem with a stride of 8 pixels, then patches of 1 x 2.
    ({"stem": STEM, "patch_size": (1, 2), "input_shape": (32, 64, 3)}, (8, 16)),
]


@pytest.mark.parametrize("case", rest_slow(CASES))
def test_equal_loops_over_the_weights(case):
    changes, patch = case
    shape = changes.get("input_shape", SHAPE)
    model = randomize(tiny_model(**changes))
    [images] = random_inputs(shape)
    maps = keras_vit.attention_maps(model, images)
    grid = model.get_layer("patch_embedding").output.shape[1:3]
    assert_close(keras_vit.mean_attention_distance(model, images), _distances(maps, grid, patch))
    assert_close(keras_vit.attention_entropy(model, images), _entropies(maps))


@pytest.fixture(scope="module")
def large_models():
    """{number of tokens: model with 4 x 4 patches of 16 pixels}"""
    pools = {17: "token", 16: "avg"}
    return {number: tiny_model((64, 64, 3), patch_size=16, pooling=pooling) for number, pooling in pools.items()}


@pytest.fixture
def planted(monkeypatch, large_models):
    """Function (attention weights (T, T)) that returns a large model with these weights, and an image."""

    def plant(weights):
        def attention_weights(_, tokens):
            return ops.broadcast_to(ops.convert_to_tensor(weights, "float32"), (tokens.shape[0], 3, *weights.shape))

        monkeypatch.setattr(keras_vit.layers.EncoderBlock, "attention_weights", attention_weights)
        return large_models[len(weights)], np.zeros((1, 64, 64, 3))

    return plant


def test_local_ratio_is_what_the_neighbours_have(model):
    [images] = random_inputs(SHAPE, batch=3)
    rows, columns = model.get_layer("patch_embedding").output.shape[1:3]
    maps = keras_vit.attention_maps(model, images)[..., 1:, 1:].astype("float64")
    shares = []
    for q in range(rows * columns):
        near = [
            row * columns + column
            for row in range(rows)
            for column in range(columns)
            if abs(row - q // columns) <= 1 and abs(column - q % columns) <= 1
        ]
        shares.append(maps[..., q, near].sum(-1) / maps[..., q, :].sum(-1))
    found = keras_vit.local_attention_ratio(model, iter([images[:1], images[1:]]), batch_size=1)
    assert_close(found, np.mean(shares, axis=0).mean(0))


def _of_the_left_neighbour():
    weights = np.zeros((16, 16))
    for patch in range(16):
        weights[patch, patch - 1 if patch % 4 else patch + 1] = 1
    return weights


@pytest.mark.parametrize(
    ("weights", "distance"),
    [
        (np.eye(16), 0.0),
        (np.full((16, 16), 1 / 16), 32.128239),
        (_of_the_left_neighbour(), 16.0),
        # The class token has 0.9 of each row, so each row is divided by the remaining 0.1.
        (np.concatenate([np.full((17, 1), 0.9), np.full((17, 16), 0.1 / 16)], axis=1), 32.128239),
    ],
)
def test_distances_in_closed_form(planted, weights, distance):
    model, images = planted(weights)
    found = keras_vit.mean_attention_distance(model, images)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, distance, rtol=1e-6, atol=1e-6)


def test_patches_that_look_at_no_patch_are_not_counted(planted):
    to_the_class_token = np.eye(17)[np.zeros(17, int)]
    model, images = planted(to_the_class_token)
    assert np.isnan(keras_vit.mean_attention_distance(model, images)).all()
    assert not keras_vit.attention_rollout(model, images).any()
    to_the_class_token[1] = np.eye(17)[2]  # The first patch attends to the second, the others to the class token.
    model, images = planted(to_the_class_token)
    np.testing.assert_allclose(keras_vit.mean_attention_distance(model, images), 16)


@pytest.mark.slow
def test_nested_equals_plain(inner):
    """One kind of nesting is tested; features_test.py tests all kinds."""
    outer, prepared = NESTED["scaled"](inner)
    [images] = random_inputs(SHAPE)
    for analysis in (*ANALYSES, keras_vit.attention_maps, keras_vit.attention_rollout):
        np.testing.assert_allclose(analysis(outer, images), analysis(inner, prepared(images)), rtol=1e-5)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_refusals(analysis, model):
    [images] = random_inputs(SHAPE)
    headless = keras.Model(model.input, model.get_layer("position_embedding").output, name="headless")
    for arguments, message in (
        ((headless, images), "'headless' contains no encoder block"),
        ((model, images[:0]), "There is no image. Give at least one"),
        ((model, images[:, :4]), r"images of shape \(None, 8, 9, 3\).*of shape \(2, 4, 9, 3\)"),
        ((model, images, 0), "batch_size must be a positive integer"),
    ):
        with pytest.raises(ValueError, match=message):
            analysis(*arguments)
