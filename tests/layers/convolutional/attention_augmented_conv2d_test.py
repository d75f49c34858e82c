import functools

import pytest

from keras_vit.layers.convolutional.attention_augmented_conv2d import AttentionAugmentedConv2D
from tests.reference import resnet_baselines as reference
from tests.test_case import random_inputs, run_layer_test, run_parity_test


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"conv/kernel": (5, 5, 5, 9), "projection/kernel": (5, 15), "output_projection/kernel": (3, 3)}
    shapes |= {"row_embedding": (3, 2), "column_embedding": (5, 2)}
    arguments = {"filters": 12, "key_dim": 6, "value_dim": 3, "num_heads": 3, "kernel_size": 5, "strides": 2}
    arguments["is_pooled"] = True
    run_layer_test(AttentionAugmentedConv2D, arguments, [(7, 9, 5)], (4, 5, 12), shapes, tmp_path)


# For an even size, the pooling pads one position below. For an odd size, it pads both sides.
@pytest.mark.parametrize(
    ("size", "num_heads", "kernel_size", "strides", "is_pooled"),
    [((4, 7), 3, 3, 1, True), ((5, 6), 1, 1, 2, True), ((1, 3), 2, 5, 1, False)],
)
def test_equals_the_equation(size, num_heads, kernel_size, strides, is_pooled):
    layer = AttentionAugmentedConv2D(13, 6, 6, num_heads, kernel_size, strides, is_pooled)
    equation = functools.partial(reference.attention_augmented, key_dim=6, k=num_heads, s=strides, is_pooled=is_pooled)
    run_parity_test(layer, equation, random_inputs((*size, 5)))


def test_macs():
    layer = AttentionAugmentedConv2D(12, 6, 3, 3)
    # MACs at 28 positions: a convolution to 9 channels, projections to 15 and 3, products of 6 and 3 channels with 28
    # positions, and products of 6 channels with the rows of 4 and 7 distances.
    assert layer.macs((None, 4, 7, 5)) == 28 * (9 * 5 * 9 + 5 * 15 + 3 * 3 + 28 * (6 + 3) + (4 + 7) * 6)
    pooled = AttentionAugmentedConv2D(12, 6, 3, 3, is_pooled=True)
    assert pooled.macs((None, 4, 7, 5)) == 28 * 9 * 5 * 9 + 8 * (5 * 15 + 3 * 3 + 8 * (6 + 3) + (2 + 4) * 6)


def test_refuses_what_it_has_no_tables_for():
    layer = AttentionAugmentedConv2D(12, 6, 3, 3)
    with pytest.raises(ValueError, match=r"height and width of its maps, so they must be known. Received: maps of sh"):
        layer.build((None, None, 6, 5))
    [maps] = random_inputs((4, 6, 5))
    layer(maps)
    with pytest.raises(ValueError, match=r"was built for maps of \(height, width\) \(4, 6\). Received: \(3, 6\)"):
        layer(maps[:, :3])


def test_refuses_impossible_arguments():
    for changes in ({"key_dim": 7}, {"value_dim": 4}, {"value_dim": 12}, {"num_heads": 4}):
        with pytest.raises(
            ValueError, match=r"key_dim and value_dim must be multiples of num_heads, and value_dim less"
        ):
            AttentionAugmentedConv2D(**{"filters": 12, "key_dim": 6, "value_dim": 3, "num_heads": 3, **changes})
