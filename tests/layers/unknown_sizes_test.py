"""Layers accept maps whose size is unknown when a model is made, and grids that are unknown until a graph runs."""

import keras
import numpy as np
import pytest

from keras_vit import RotaryConfig, layers, resampling
from tests.layers.transformer.blocks import encoder_block
from tests.test_case import TENSORFLOW, assert_close, random_inputs, randomize, slow_except, to_numpy

AXIAL = layers.AxialEncoderBlock(*(encoder_block(name=name) for name in ("row", "column")))
# (layer, channels of the maps, shape of the output without the batch). Layers of two inputs receive four tokens too.
MAPS = [
    (layers.LocalSelfAttention(12, 5, 2, 3), 5, (None, None, 12)),
    (layers.PaddedConv2D(4, 3, 2), 3, (None, None, 4)),
    (layers.PoolingTokenizer((2, 3), 10), 6, (6, 10)),
    (layers.BottleneckUnit(32, strides=2), 64, (None, None, 128)),
    (layers.ClusteringTokenizer(4, token_dim=10, group_width=2, use_batch_norm=True), 6, (4, 10)),
    (layers.DoubleAttention(3, 4), 6, (None, None, 6)),
    (layers.FilterTokenizer(4, token_dim=10, group_width=2, use_batch_norm=True), 6, (4, 10)),
    (layers.GlobalReasoning(3, 4), 6, (None, None, 6)),
    (layers.LocalRelation(5, 5, 2, 4), 6, (None, None, 5)),
    (layers.PreActivationUnit(32, strides=2), 64, (None, None, 128)),
    (layers.RecurrentTokenizer(token_dim=10, num_heads=3, split_tokens=True), 6, (4, 10)),
    (layers.ResidualUnit(3, 2), 6, (None, None, 12)),
    (layers.SelfAttentionUnit("pairwise", 5), 32, (None, None, 32)),
    (layers.SelfAttentionUnit("patchwise", 5), 32, (None, None, 32)),
    (layers.StdConv2D(10, 3, strides=2), 3, (None, None, 10)),
    (layers.TokenProjector(12, num_heads=3), 6, (None, None, 12)),
]


@pytest.mark.parametrize("case", slow_except(MAPS[:3], MAPS), ids=lambda case: type(case[0]).__name__)
def test_maps_of_any_size(case):
    """A model for all sizes gives the same outputs as the layer, made from its config, that is built for each size."""
    layer, channels, shape = case
    tokens = [(4, 10)] if isinstance(layer, layers.RecurrentTokenizer | layers.TokenProjector) else []
    inputs = [keras.Input((None, None, channels)), *map(keras.Input, tokens)]
    model = keras.Model(inputs, layer(*inputs))
    assert model.output_shape == (None, *shape)
    randomize(layer)
    for size in ((5, 8), (6, 4)):
        arrays = random_inputs((*size, channels), *tokens)
        fixed = type(layer).from_config(layer.get_config())
        fixed.build(*(array.shape for array in arrays))
        fixed.set_weights(layer.get_weights())
        assert_close(model(arrays), to_numpy(fixed(*arrays)))


# (layer, number of tokens before the patches)
GRIDS = [
    (AXIAL, 0),
    *((layers.LearnedPositionEmbedding((2, 3), 1, method), 1) for method in resampling.METHODS),
    (layers.Learned2DPositionEmbedding((2, 3), 1, "bicubic_offset"), 1),
    (layers.SincosPositionEmbedding(), 1),
    (layers.RotaryPositionEmbedding(RotaryConfig(), 8, 1), None),
    (layers.RotaryPositionEmbedding(RotaryConfig("mixed", coordinates="grid", reference_grid=(4, 7)), 8, 1), None),
]


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow traces unknown image sizes")
@pytest.mark.parametrize(("layer", "num_front"), GRIDS)
def test_grid_unknown_until_a_graph_runs(layer, num_front):
    import tensorflow as tf

    def arrays(grid):
        tokens = [] if num_front is None else [(num_front + grid[0] * grid[1], 12)]
        return [tf.constant(x) for x in random_inputs(*tokens, (*grid, 5))]

    layer(*arrays((2, 3)))
    randomize(layer)
    methods = [layer, layer.attention_weights] if layer is AXIAL else [layer]
    signature = [tf.TensorSpec([None] * (x.ndim - 1) + [x.shape[-1]]) for x in arrays((2, 3))]
    function = tf.function(
        lambda *inputs: [method(*inputs) for method in methods], input_signature=signature, autograph=False
    )
    for grid in ((4, 5), (1, 6)):
        for found, method in zip(function(*arrays(grid)), methods, strict=True):
            np.testing.assert_allclose(found, to_numpy(method(*arrays(grid))), rtol=1e-5, atol=1e-5)
