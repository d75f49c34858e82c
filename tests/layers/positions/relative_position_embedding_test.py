import numpy as np
import pytest

from keras_vit.layers import RelativePositionEmbedding
from tests.reference import positions
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, run_layer_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"embedding": (13, 4)}
    run_layer_test(RelativePositionEmbedding, {}, [(3, 7, 2, 4)], (3, 2, 7, 7), shapes, tmp_path)


def _built():
    layer = RelativePositionEmbedding(name="tested")
    layer.build((None, 7, 2, 4))
    return randomize(layer)


@pytest.mark.parametrize("lines", [(), (3,)])
def test_equals_the_equation(lines):
    layer = RelativePositionEmbedding(name="tested")
    [queries] = random_inputs((*lines, 7, 2, 4))
    layer(queries)
    r = canonical_weights(randomize(layer))["embedding"]
    heads = [positions.relative_logits(queries[..., head, :].astype("float64"), r) for head in range(2)]
    assert_close(layer(queries), np.stack(heads, axis=-3))


def test_the_place_in_the_sequence_does_not_matter():
    """Logits depend on the query and the distance only, not on the absolute position."""
    [query] = random_inputs((1, 2, 4))
    logits = to_numpy(_built()(np.repeat(query, 7, axis=1)))
    assert_close(logits[:, :, 1:, 1:], logits[:, :, :-1, :-1])
    by_offset = np.concatenate([logits[:, :, 0, ::-1], logits[:, :, 1:, 0]], axis=-1)  # Offsets from -6 to 6.
    assert (np.abs(np.diff(by_offset)) > 1e-4).all()


def test_starts_normal():
    layer = RelativePositionEmbedding(name="tested")
    layer.build((None, 300, 2, 64))
    assert canonical_weights(layer)["embedding"].std() == pytest.approx(0.02, rel=0.02)


def test_refuses_another_number_of_tokens():
    layer = _built()
    with pytest.raises(ValueError, match=r"built for 7 tokens. Received: queries of shape \(2, 8, 2, 4\)"):
        layer(np.zeros((2, 8, 2, 4), "float32"))
    with pytest.raises(ValueError, match=r"number of tokens must be known.*\(None, None, 2, 4\)"):
        RelativePositionEmbedding().build((None, None, 2, 4))
