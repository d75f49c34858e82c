import numpy as np
import pytest

from keras_vit.layers import TokenGraphConvolution
from tests.layers.convolutional.pointwise_convolution_test import projection_shapes
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, random_inputs, run_layer_test, run_parity_test, to_numpy


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = projection_shapes("projection", 6, 6) | {"graph": (5, 5)}
    arguments = {"use_graph": True, "use_batch_norm": True}
    run_layer_test(TokenGraphConvolution, arguments, [(5, 6)], (5, 6), shapes, tmp_path)


@pytest.mark.parametrize(("use_graph", "use_batch_norm"), [(True, True), (True, False), (False, False)])
def test_equals_the_reference(use_graph, use_batch_norm):
    layer = TokenGraphConvolution(use_graph, use_batch_norm)
    run_parity_test(layer, reference.token_graph_convolution, random_inputs((5, 6)))


def test_starts_without_mixing_tokens():
    [tokens] = random_inputs((5, 6))
    mixing = TokenGraphConvolution()
    output = to_numpy(mixing(tokens))
    assert_close(output, tokens @ to_numpy(mixing.projection.kernel))
    mixing.graph.assign(np.ones((5, 5)))
    assert_close(mixing(tokens), np.tile(output.sum(1, keepdims=True), (1, 5, 1)))


def test_macs():
    for use_graph, expected in ((True, 5 * 5 * 6 + 5 * 6 * 6), (False, 5 * 6 * 6)):
        layer = TokenGraphConvolution(use_graph)
        layer.build((None, 5, 6))
        assert layer.macs((None, 5, 6)) == expected


def test_the_number_of_tokens_must_be_known():
    with pytest.raises(ValueError, match=r"for each pair of tokens, .* Received: tokens of shape \(None, None"):
        TokenGraphConvolution().build((None, None, 6))
