"""Whole models equal the equations in NumPy, float64: every part, alone and with other parts."""

import functools

import pytest

from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.reference import bit_resnet
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, run_parity_test

ACTIVATIONS = {
    "gelu_tanh": reference.gelu_tanh,
    "gelu_exact": reference.gelu_exact,
    "quick_gelu": reference.quick_gelu,
    "swiglu": reference.swiglu,
}


def _equations(changes):
    """The reference for a model with these changes."""
    return functools.partial(
        reference.vit,
        activation=ACTIVATIONS[changes.get("mlp", "gelu_tanh")],
        pooling=changes.get("pooling", "token"),
        epsilon=changes.get("layer_norm_epsilon", 1e-6),
        position_embedding=changes.get("position_embedding", "learned_1d"),
        position_placement=changes.get("position_placement", "stem"),
        prefix_rows=changes.get("num_position_prefix_rows"),
    )


# Each value of a config field is combined with each value of every other field, where both are compatible and interact
# in the code.
CASES = [
    {},
    {
        **{"mlp": "gelu_exact", "pooling": "avg", "position_embedding": "learned_2d", "num_register_tokens": 4},
        **{"position_placement": "every_layer", "layer_scale": 0.1, "qk_norm": True, "layer_norm_epsilon": 1e-2},
    },
    {
        **{"mlp": "quick_gelu", "pooling": "map", "class_token": True, "representation_dim": 7, "pre_norm": True},
        **{"position_embedding": "sincos_2d", "position_placement": "every_layer_shared"},
        **{"norm_placement": "after_pooling", "layer_norm_epsilon": 1e-2},
    },
    {
        **{"mlp": "swiglu", "distillation_token": True, "num_register_tokens": 2, "num_position_prefix_rows": 1},
        **{"position_placement": "every_layer"},
    },
    {
        **{"pooling": "avg", "class_token": True, "num_position_prefix_rows": 0, "num_register_tokens": 2},
        **{"position_placement": "every_layer_shared", "norm_placement": "after_pooling"},
    },
    {
        **{"position_embedding": "none", "pooling": None, "include_top": False, "num_register_tokens": 2},
        **{"pre_norm": True, "layer_scale": 0.1},
    },
    {"position_embedding": "relative", "distillation_token": True, "num_register_tokens": 2, "qk_norm": True},
    {
        **{"position_embedding": "relative", "pooling": "map", "mlp": "gelu_exact", "layer_norm_epsilon": 1e-2},
        **{"include_top": False},
    },
    {
        **{"position_embedding": "sincos_2d", "pooling": "avg", "mlp": "quick_gelu", "representation_dim": 7},
        **{"position_placement": "every_layer"},
    },
    {
        **{"position_embedding": "learned_2d", "position_placement": "every_layer_shared", "pre_norm": True},
        **{"distillation_token": True, "include_top": False, "layer_scale": 0.1},
    },
    {"pooling": None, "class_token": False, "include_top": False, "mlp": "swiglu", "layer_norm_epsilon": 1e-2},
    {"norm_placement": "after_pooling", "num_register_tokens": 2, "layer_norm_epsilon": 1e-2, "qk_norm": True},
    {"distillation_token": True, "num_register_tokens": 4, "position_embedding": "sincos_2d"},
    {"pooling": "map", "num_register_tokens": 4, "position_embedding": "learned_2d", "layer_scale": 0.1},
]


@pytest.mark.parametrize("changes", [pytest.param(CASES[0], marks=pytest.mark.each_backend), *CASES[1:]])
def test_equals_the_equations(changes):
    run_parity_test(tiny_model(**changes), _equations(changes), random_inputs(SHAPE))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"patch_size": (1, 2)}, (32, 64)),
        ({"patch_size": (2, 3), "crop_to_patches": True, "pooling": "avg"}, (35, 61)),
        ({"patch_size": 1, "axial": True, "pooling": "avg"}, (21, 30)),
    ],
)
def test_hybrid_equals_the_equations(changes, size):
    def hybrid(images, weights):
        return _equations(changes)(bit_resnet.bit_resnet(images, weights, STEM.stage_depths), weights)

    shape = (*size, 3)
    run_parity_test(tiny_model(input_shape=shape, stem=STEM, **changes), hybrid, random_inputs(shape))


@pytest.mark.parametrize(
    "changes",
    [
        {
            **{"pooling": "map", "mlp": "swiglu", "layer_scale": 0.1, "qk_norm": True, "layer_norm_epsilon": 1e-2},
            **{"position_embedding": "sincos_2d", "position_placement": "every_layer_shared"},
        },
        {"pooling": None, "class_token": False, "include_top": False, "position_embedding": "none"},
    ],
)
def test_axial_equals_the_equations(changes):
    run_parity_test(tiny_model(axial=True, **changes), _equations(changes), random_inputs(SHAPE))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_register_tokens": 2, "distillation_token": True},
        {"num_position_prefix_rows": 0, "pooling": "avg", "class_token": True},
        {"position_embedding": "sincos_2d"},
        {"position_embedding": "learned_2d", "num_register_tokens": 2},
        {"position_embedding": "learned_2d", "position_placement": "every_layer", "axial": True, "pooling": "avg"},
        {"position_placement": "every_layer_shared", "axial": True, "pooling": "map"},
    ],
)
def test_variable_size(changes):
    """Tables for 224 pixels are interpolated wherever they are added."""
    model = randomize(tiny_model(input_shape=(None, None, 3), **changes))
    weights = canonical_weights(model)
    if "position_embedding/embedding" in weights:
        num_prefix_rows = changes.get("num_position_prefix_rows", 1 + changes.get("distillation_token", 0))
        num_prefix_rows = 0 if changes.get("axial") else num_prefix_rows
        assert len(weights["position_embedding/embedding"]) == 56 * 74 + num_prefix_rows
    for shape in (SHAPE, (16, 6, 3)):
        [images] = random_inputs(shape)
        assert_close(model(images), _equations(changes)(images.astype("float64"), weights | {"grid": (56, 74)}))
