"""Layers that can replace the 3 x 3 convolutions of a `ResidualUnit`, and layers that can gate its branch."""

import functools

import pytest

from keras_vit import layers
from keras_vit.layers import ResidualUnit
from keras_vit.layers.convolutional.residual_unit import MIXINGS as ALL_MIXINGS
from tests.reference import resnet_baselines as reference
from tests.test_case import random_inputs, run_parity_test

WIDTH = 16
# The sizes are those of the equations: 8 heads, windows of 7 pixels, at least 20 channels for the keys of a head.
MIXINGS = {
    "attention_augmented": functools.partial(reference.attention_augmented, key_dim=160, k=8, is_pooled=False),
    "pooled_attention_augmented": functools.partial(reference.attention_augmented, key_dim=160, k=8, is_pooled=True),
    "stand_alone": functools.partial(reference.local_self_attention, n=7, k=8),
    "local_relation": functools.partial(reference.local_relation, n=7, shared=8),
}
GATES = {None: lambda x, w: x, "squeeze_excitation": reference.squeeze_excitation, "cbam": reference.cbam}


def test_all_are_here():
    assert set(MIXINGS) | {"convolution"} == set(ALL_MIXINGS)


@pytest.mark.parametrize(
    ("mixing", "attention", "expansion"),
    [
        ("attention_augmented", None, 4),
        ("pooled_attention_augmented", "cbam", 1),
        ("stand_alone", "squeeze_excitation", 4),
        ("local_relation", "cbam", 1),
    ],
)
def test_equals_the_equations(mixing, attention, expansion):
    unit = ResidualUnit(WIDTH, 2, expansion, mixing=mixing, attention=attention)
    equation = functools.partial(reference.residual_unit, s=2, mixing=MIXINGS.get(mixing), gate=GATES[attention])
    run_parity_test(unit, equation, random_inputs((5, 6, 7)))


@pytest.mark.parametrize(("expansion", "width", "value_dim"), [(4, 128, 16), (4, 256, 24), (1, 128, 32), (1, 16, 8)])
def test_channels_of_an_augmented_convolution(expansion, width, value_dim):
    unit = ResidualUnit(width, expansion=expansion, mixing="attention_augmented")
    unit.build((None, 3, 4, width))
    [augmented] = [part for part in unit.convs if isinstance(part, layers.AttentionAugmentedConv2D)]
    assert (augmented.filters, augmented.key_dim, augmented.value_dim) == (width, 160, value_dim)


def test_macs_are_those_of_the_parts():
    unit = ResidualUnit(16, 2, mixing="stand_alone", attention="squeeze_excitation")
    unit.build((None, 5, 6, 7))
    attention = layers.LocalSelfAttention(16).macs((None, 5, 6, 16))
    convolutions = 30 * 7 * 16 + 9 * (16 * 64 + 7 * 64)
    assert unit.macs((None, 5, 6, 7)) == convolutions + attention + 2 * 64 * 4


def test_refuses_impossible_arguments():
    for arguments, message in (
        ({"mixing": "attention"}, "must be one of 'convolution', 'attention_augmented'.*Received: 'attention'"),
        ({"attention": "se"}, "attention must be one of None, 'squeeze_excitation', 'cbam'. Received: 'se'"),
        ({"mixing": "stand_alone", "width": 12}, "filters must be a multiple of 2 [*] num_heads"),
    ):
        with pytest.raises(ValueError, match=message):
            ResidualUnit(**{"width": 16, **arguments})
