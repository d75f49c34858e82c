import functools

import numpy as np
import pytest

from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.layers import MlpBlock
from keras_vit.layers.ops import activations
from tests.reference import vit as reference
from tests.test_case import (
    assert_close,
    built,
    canonical_weights,
    random_inputs,
    run_layer_test,
    run_parity_test,
    to_numpy,
)

ACTIVATIONS = {"gelu_tanh": reference.gelu_tanh, "gelu_exact": reference.gelu_exact, "quick_gelu": reference.quick_gelu}
ACTIVATIONS |= {"swiglu": reference.swiglu, "relu": lambda x: np.maximum(x, 0)}


@pytest.mark.parametrize(
    ("activation", "num_hidden", "norm"),
    [
        ("gelu_exact", 20, {}),
        pytest.param(
            *("swiglu", 40, {"inner_norm/gamma": (20,), "inner_norm/beta": (20,)}), marks=pytest.mark.each_backend
        ),
    ],
)
def test_layer(activation, num_hidden, norm, tmp_path):
    arguments = {"mlp_dim": 20, "activation": activation, "dropout_rate": 0.1}
    run_layer_test(
        MlpBlock,
        {**arguments, "inner_norm": bool(norm), "layer_norm_epsilon": 1e-3},
        [(7, 12)],
        (7, 12),
        {
            **{"hidden/kernel": (12, num_hidden), "hidden/bias": (num_hidden,)},
            **norm,
            **{"output/kernel": (20, 12), "output/bias": (12,)},
        },
        tmp_path,
    )


def test_each_activation_has_its_equation():
    assert set(ACTIVATIONS) == set(activations.ACTIVATIONS) == set(ViTConfig.choices()["mlp"])


@pytest.mark.each_backend  # The activation depends on the backend.
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_the_equations(activation):
    # Two GELUs differ by at most 5e-4, at inputs near 2. This tolerance distinguishes them.
    inputs = [2 * x for x in random_inputs((7, 12))]
    equation = functools.partial(reference.mlp, activation=ACTIVATIONS[activation])
    run_parity_test(MlpBlock(20, activation), equation, inputs)


@pytest.mark.parametrize(("activation", "shape"), [("swiglu", (7, 12)), ("gelu_exact", (5, 7, 12))])
def test_inner_norm_equals_the_equations(activation, shape):
    equation = functools.partial(reference.mlp, activation=ACTIVATIONS[activation], epsilon=0.1)
    layer = MlpBlock(20, activation, inner_norm=True, layer_norm_epsilon=0.1)
    run_parity_test(layer, equation, random_inputs(shape))


def test_kernels_start_xavier_uniform_and_biases_normal():
    layer = built(MlpBlock(320), (7, 96))
    limit = np.sqrt(6 / (96 + 320))
    for path, value in canonical_weights(layer).items():
        if path.endswith("bias"):
            assert value.std() == pytest.approx(1e-6, rel=0.25), path
        else:
            assert 0.99 * limit < np.abs(value).max() <= limit, path
            assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.02), path


def test_dropout_acts_after_both_dense_layers_in_training_only():
    # Every hidden unit is c, and each output reads one unit. Two dropouts of rate 1/2 give 0, 2 c and 4 c; one dropout
    # would give 0 and 2 c only.
    layer = built(MlpBlock(12, dropout_rate=0.5))
    layer.set_weights([np.zeros((12, 12)), np.full(12, 3.0), np.eye(12), np.zeros(12)])
    [tokens] = random_inputs((7, 12))
    c = reference.gelu_tanh(3.0)
    assert_close(layer(tokens, training=False), np.full((2, 7, 12), c))
    dropped = to_numpy(layer(tokens, training=True))
    np.testing.assert_allclose(np.unique(np.round(dropped / c, 4)), [0, 4])
    # With hidden units of zero and a bias of one, only the second dropout changes the output.
    layer.set_weights([np.zeros((12, 12)), np.zeros(12), np.eye(12), np.ones(12)])
    np.testing.assert_allclose(np.unique(to_numpy(layer(tokens, training=True))), [0, 2])


def test_refuses_an_unknown_activation():
    accepted = ", ".join(map(repr, activations.ACTIVATIONS))
    with pytest.raises(ValueError, match=rf"must be one of {accepted}\. Received: 'elu'"):
        MlpBlock(20, activation="elu")


def test_macs():
    for activation, num_hidden in (("gelu_tanh", 20), ("swiglu", 40)):
        assert built(MlpBlock(20, activation)).macs((None, 7, 12)) == 7 * (12 * num_hidden + 20 * 12)
