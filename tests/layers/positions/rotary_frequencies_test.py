import dataclasses

import numpy as np
import pytest

from keras_vit import RotaryConfig
from keras_vit.layers import RotaryFrequencies, RotaryPositionEmbedding
from keras_vit.layers.ops.rotation import rotate
from tests.reference import positions
from tests.test_case import (
    TENSORFLOW,
    WithoutBatch,
    assert_close,
    canonical_weights,
    random_inputs,
    randomize,
    run_layer_test,
    to_numpy,
)


@pytest.mark.on_torch
def test_layer(tmp_path):
    rotary = RotaryConfig("mixed", 10.0, "interleaved", "grid", (4, 7), 0.5, "xy")
    arguments = {"rotary": dataclasses.asdict(rotary), "num_heads": 3, "key_dim": 8}
    shapes = [WithoutBatch((2, 7))], WithoutBatch((2, 3, 7, 8)), {"frequencies": (2, 3, 4)}
    run_layer_test(RotaryFrequencies, arguments, *shapes, tmp_path, output_dtype="float32")


@pytest.mark.parametrize(
    "rotary", [RotaryConfig("mixed"), RotaryConfig("mixed", 10.0, "interleaved", "grid", None, 0.5, "xy")]
)
def test_rotation_equals_the_equations(rotary):
    places = RotaryPositionEmbedding(rotary, 12, 2)(np.zeros((1, 3, 5, 1)))
    layer = RotaryFrequencies(rotary, 3, 12, name="tested")
    layer.build(places.shape)
    frequencies = canonical_weights(randomize(layer))["frequencies"]
    [values] = random_inputs((3, 17, 12))
    rotated = to_numpy(rotate(values, layer(places), rotary.layout))
    for head in range(3):
        theta = positions.rotary_angles((3, 5), 2, 12, rotary, frequencies[:, head])
        expected = positions.rotated(values[:, head].astype("float64"), theta, rotary.layout)
        assert_close(rotated[:, head], expected)


def test_frequencies_start_axial_and_turned_in_each_head():
    layer = RotaryFrequencies(RotaryConfig("mixed", 10.0), 3, 12, name="tested")
    layer.build((2, 7))
    f, g = canonical_weights(layer)["frequencies"]
    axial = [10 ** (-4 * j / 12) for j in range(3)]
    np.testing.assert_allclose(np.hypot(f, g), [axial * 2] * 3, rtol=1e-6)
    turns = np.arctan2(g, f)[:, :3]  # The angle of a head, the same for all frequencies of its first axis.
    np.testing.assert_allclose(turns, turns[:, :1].repeat(3, axis=1), atol=1e-6)
    assert len(set(np.round(turns[:, 0], 3))) == 3
    np.testing.assert_allclose([f[:, 3:], g[:, 3:]], [-g[:, :3], f[:, :3]], atol=1e-6)  # The second axis is orthogonal.


def test_refuses_impossible_arguments():
    with pytest.raises(ValueError, match=r"rotary must have kind='mixed'. Axial frequencies are not learned. Received"):
        RotaryFrequencies(RotaryConfig(), 3, 8)
    with pytest.raises(ValueError, match=r"key_dim must be a multiple of 4. Received: key_dim=6"):
        RotaryFrequencies(RotaryConfig("mixed"), 3, 6)


@pytest.mark.skipif(not TENSORFLOW, reason="looks at TensorFlow's graph")
def test_angles_are_not_computed_by_a_matrix_product():
    """TPUs, some GPUs, and LiteRT with weights in 8 bits round the factors of such a product."""
    import tensorflow as tf

    layer = RotaryFrequencies(RotaryConfig("mixed"), 3, 8)
    layer.build((2, None))
    graph = tf.function(layer, input_signature=[tf.TensorSpec([2, None])]).get_concrete_function().graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "Cos" in kinds
    assert not [kind for kind in kinds if "MatMul" in kind or kind == "Einsum"]
