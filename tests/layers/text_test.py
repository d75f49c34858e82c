"""The layers of text encoders equal NumPy."""

import math

import numpy as np
import pytest

from keras_vit.layers import Similarity, TextAttentionMask, TextPooling, TextPositions, TokenEmbedding
from tests.test_case import assert_close, randomize, run_layer_test, to_numpy

IDS = np.array([[5, 8, 3, 8, 0], [7, 2, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
TOKENS = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")


@pytest.mark.on_torch
def test_positions(tmp_path):
    run_layer_test(
        TextPositions, {"positions": "learned", "context_length": 9}, [(5, 8)], (5, 8), {"embedding": (9, 8)}, tmp_path
    )
    angles = np.arange(5)[:, None] * 10_000.0 ** (-np.arange(4) / 3)
    expected = math.sqrt(8) * TOKENS + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert_close(to_numpy(TextPositions("sincos", 5)(TOKENS)), expected)
    with pytest.raises(ValueError, match=r"at most 4 tokens\. Received: 5"):
        TextPositions("learned", 4)(TOKENS)


@pytest.mark.on_torch
def test_embeddings_are_rows_of_a_table():
    layer = TokenEmbedding(9, 4)
    layer.build((None, 5))
    randomize(layer)
    np.testing.assert_array_equal(to_numpy(layer(IDS)), to_numpy(layer.embedding)[IDS])


@pytest.mark.on_torch
def test_masks():
    np.testing.assert_array_equal(to_numpy(TextAttentionMask("causal")(IDS)), np.tri(5, dtype=bool)[None])
    np.testing.assert_array_equal(to_numpy(TextAttentionMask("valid", 8)(IDS)), (IDS != 8)[:, None])


@pytest.mark.on_torch
@pytest.mark.parametrize(
    ("arguments", "indices"),
    [
        ({"pooling": "largest"}, [1, 0, 0]),
        ({"pooling": "end", "end_id": 3}, [2, 0, 0]),
        ({"pooling": "end", "end_id": 8}, [1, 0, 0]),
        ({"pooling": "last"}, [4, 4, 4]),
    ],
)
def test_pooling_selects_a_token(arguments, indices):
    assert_close(to_numpy(TextPooling(**arguments)(TOKENS, IDS)), TOKENS[[0, 1, 2], indices])


@pytest.mark.on_torch
def test_mean_of_texts():
    expected = [TOKENS[0, :4].mean(0), TOKENS[1, :2].mean(0), np.zeros(8)]
    assert_close(to_numpy(TextPooling("mean")(TOKENS, IDS)), np.stack(expected))
    with pytest.raises(ValueError, match="end_id must be 0 or a positive integer"):
        TextPooling("end")


@pytest.mark.on_torch
@pytest.mark.parametrize("use_bias", [True, False])
def test_similarity(use_bias):
    layer = Similarity(use_bias, initial_scale=7.0, initial_bias=-2.0)
    image, text = (to_numpy(each) for each in layer(TOKENS[0], TOKENS[1, :3]))
    cosines = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in TOKENS[1, :3]] for x in TOKENS[0]]
    assert_close(image @ text.T, 7 * np.array(cosines) - 2 * use_bias, tolerance=2e-5)  # The values reach 7.
