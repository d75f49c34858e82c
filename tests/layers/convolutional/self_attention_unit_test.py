"""SelfAttentionUnit with PairwiseSelfAttention and PatchwiseSelfAttention."""

import functools

import pytest

from keras_vit import layers
from keras_vit.layers.convolutional.self_attention_unit import SelfAttentionUnit
from tests.reference import resnet_baselines as reference
from tests.test_case import norm_shapes, random_inputs, run_layer_test, run_parity_test

ATTENTIONS = {"pairwise": layers.PairwiseSelfAttention, "patchwise": layers.PatchwiseSelfAttention}


def _dense_shapes(name, *shape):
    return {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}


def _attention_shapes(relation, channels, relation_dim, filters, num_places):
    shapes = _dense_shapes("centre", channels, relation_dim) | _dense_shapes("neighbour", channels, relation_dim)
    shapes |= _dense_shapes("value", channels, filters)
    if relation == "pairwise":
        shapes |= _dense_shapes("position", 2, 2) | norm_shapes("norm_1", relation_dim + 2)
        shapes |= {"dense/kernel": (relation_dim + 2, relation_dim)} | norm_shapes("norm_2", relation_dim)
        return shapes | _dense_shapes("logit", relation_dim, filters // 8)
    width = relation_dim * (1 + num_places)
    shapes |= norm_shapes("norm_1", width) | {"dense/kernel": (width, filters // 8)}
    return (
        shapes | norm_shapes("norm_2", filters // 8) | _dense_shapes("weight", filters // 8, num_places * filters // 8)
    )


@pytest.mark.parametrize("relation", [pytest.param("pairwise", marks=pytest.mark.on_torch), "patchwise"])
def test_attention(relation, tmp_path):
    shapes = _attention_shapes(relation, 32, 2, 16, 9)
    arguments = {"filters": 16, "window_size": 3}
    run_layer_test(ATTENTIONS[relation], arguments, [(4, 7, 32)], (4, 7, 16), shapes, tmp_path, scale=1.0)


@pytest.mark.on_torch
def test_unit(tmp_path):
    shapes = {f"attention/{path}": shape for path, shape in _attention_shapes("patchwise", 64, 4, 16, 9).items()}
    shapes |= norm_shapes("norm_1", 64) | norm_shapes("norm_2", 16) | _dense_shapes("projection", 16, 64)
    arguments = {"relation": "patchwise", "window_size": 3}
    run_layer_test(SelfAttentionUnit, arguments, [(4, 3, 64)], (4, 3, 64), shapes, tmp_path, scale=0.6)


@pytest.mark.parametrize(
    ("relation", "size", "window_size"), [("pairwise", (4, 6), 3), ("patchwise", (4, 6), 3), ("patchwise", (1, 2), 1)]
)
def test_equals_the_equation(relation, size, window_size):
    equation = functools.partial(getattr(reference, relation), n=window_size)
    run_parity_test(ATTENTIONS[relation](16, window_size), equation, random_inputs((*size, 35)))


@pytest.mark.parametrize("relation", ATTENTIONS)
def test_unit_equals_the_equation(relation):
    equation = functools.partial(reference.self_attention_unit, attention=getattr(reference, relation), n=5)
    run_parity_test(SelfAttentionUnit(relation, 5), equation, random_inputs((3, 5, 32)))


@pytest.mark.parametrize(
    ("relation", "of_weights"), [("pairwise", 2 * 2 + 9 * ((2 + 2) * 2 + 2 * 2)), ("patchwise", 20 * 2 + 2 * 18)]
)
def test_macs(relation, of_weights):
    # MACs at 28 positions: queries and keys of 2 channels, values of 16, summed over the 9 positions of a window.
    attention = ATTENTIONS[relation](16, 3)
    attention.build((None, 4, 7, 35))
    assert attention.macs((None, 4, 7, 35)) == 28 * (35 * (2 * 2 + 16) + 9 * 16 + of_weights)
    unit = SelfAttentionUnit(relation, 3)
    unit.build((None, 4, 7, 64))
    of_attention = unit.attention.macs((None, 4, 7, 64))
    assert unit.macs((None, 4, 7, 64)) == of_attention + 28 * 16 * 64


def test_refuses_impossible_arguments():
    for build, message in (
        (lambda: SelfAttentionUnit("both"), "relation must be one of 'pairwise', 'patchwise'. Received: 'both'"),
        (lambda: SelfAttentionUnit("pairwise").build((None, 7, 9, 48)), "a multiple of 32. Received: 48 channels"),
        (lambda: SelfAttentionUnit("pairwise").build((None, 3, 9, 32)), "more than 3. Received: maps of .*3, 9, 32"),
        (lambda: layers.PairwiseSelfAttention(12), "filters must be a multiple of 8. Received: 12"),
        (lambda: layers.PatchwiseSelfAttention(16, 4), "window_size must be odd.*Received: 4"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
