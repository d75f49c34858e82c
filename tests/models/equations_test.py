"""Whole models equal the equations in NumPy, float64: every part, alone and with other parts."""

import dataclasses
import functools

import numpy as np
import pytest

from keras_vit import RotaryConfig
from tests.models.counting import shapes_only
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
        block_norm=changes.get("block_norm", "pre"),
        rotary=changes.get("rotary"),
        pool_prefix_tokens=changes.get("pool_prefix_tokens", False),
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
    {"qkv_bias": "no_key", "attention_inner_norm": True, "mlp_inner_norm": True, "mlp": "swiglu", "pooling": "avg"},
    {
        **{"qkv_bias": "none", "block_norm": "post", "mlp_inner_norm": True, "layer_scale": 0.1, "final_norm": False},
        **{"layer_norm_epsilon": 1e-2, "num_register_tokens": 2, "num_position_prefix_rows": 3},
    },
    {
        **{"block_norm": "post", "attention_inner_norm": True, "qkv_bias": "no_key", "layer_norm_epsilon": 1e-2},
        **{"pooling": "avg", "num_register_tokens": 4, "pool_prefix_tokens": True, "num_position_prefix_rows": 1},
        **{"norm_placement": "after_pooling", "position_embedding": "learned_2d"},
    },
    {
        **{"pooling": "map", "class_token": True, "num_register_tokens": 2, "pool_prefix_tokens": True},
        **{"pooling_num_heads": 2, "pooling_mlp_dim": 7, "position_embedding": "relative", "qkv_bias": "no_key"},
        **{"attention_inner_norm": True, "final_norm": False, "qk_norm": True},
    },
    {
        **{"pooling": "map", "pooling_num_heads": 4, "num_register_tokens": 4, "num_position_prefix_rows": 4},
        **{"position_placement": "every_layer", "final_norm": False, "qkv_bias": "none"},
    },
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"qkv_bias": "no_key"}, {"attention/key/bias": None, "attention/query/bias": (3, 4)}),
        ({"qkv_bias": "none"}, {f"attention/{name}/bias": None for name in ("query", "key", "value")}),
        ({"attention_inner_norm": True}, {"attention/inner_norm/gamma": (12,), "mlp/inner_norm/gamma": None}),
        ({"mlp_inner_norm": True, "mlp": "swiglu"}, {"mlp/inner_norm/beta": (20,), "attention/inner_norm/beta": None}),
        ({"rotary": RotaryConfig("mixed")}, {"attention/rotary/frequencies": (2, 3, 2)}),
        ({"final_norm": False}, {"/encoder_norm/gamma": None}),
        ({"pooling": "map", "pooling_num_heads": 2}, {"/pooling/attention/key/kernel": (12, 2, 6)}),
        ({"pooling": "map", "pooling_mlp_dim": 7}, {"/pooling/mlp/hidden/kernel": (12, 7)}),
        ({"num_register_tokens": 2, "num_position_prefix_rows": 3}, {"/position_embedding/embedding": (9, 12)}),
    ],
)
def test_fields_that_change_the_weights(changes, expected):
    """A model contains only the weights that the equations above use."""
    model, _ = shapes_only(lambda: tiny_model(num_layers=1, **changes))
    shapes = {weight.path: weight.shape for weight in model.weights}
    for path, shape in expected.items():
        assert shapes.get(path[1:] if path.startswith("/") else f"encoder_block_0/{path}") == shape


ROTARY_SHAPE = (12, 15, 3)  # 3 x 5 patches. In a grid with two rows, normalized coordinates are multiples of pi.
HEADS = {"hidden_dim": 36, "num_heads": 3}  # Heads of 12 channels: three frequencies for each axis.
# Each value of a field of `RotaryConfig` is combined with the values of other fields, and with fields of `ViTConfig`
# that interact with it.
ROTARY_CASES = {
    "DINOv3": {
        **{"rotary": RotaryConfig(), "position_embedding": "none", "qkv_bias": "no_key", "num_register_tokens": 4},
        **{"mlp": "gelu_exact", "layer_scale": 0.1, "layer_norm_epsilon": 1e-2},
    },
    "EVA-02": {
        **{"rotary": RotaryConfig("axial", 10_000.0, "interleaved", "grid", (4, 7)), "pooling": "avg"},
        **{"class_token": True, "norm_placement": "after_pooling", "mlp": "swiglu", "mlp_inner_norm": True},
        **{"attention_inner_norm": True, "position_embedding": "learned_2d"},
    },
    "Perception Encoder": {
        **{"rotary": RotaryConfig("axial", 50.0, "half", "grid", (3, 4), 1.0, "xy"), "pre_norm": True},
        **{"pooling": "map", "class_token": True, "pool_prefix_tokens": True, "pooling_num_heads": 4},
        **{"pooling_mlp_dim": 7, "final_norm": False, "qk_norm": True},
    },
    "RoPE-Axial": {
        **{"rotary": RotaryConfig("axial", 20.0, "interleaved", "grid", offset=-0.5, axis_order="xy")},
        **{"position_embedding": "sincos_2d", "distillation_token": True, "qkv_bias": "none"},
    },
    "RoPE-Mixed": {
        **{"rotary": RotaryConfig("mixed", 10.0, "interleaved", "grid", axis_order="xy"), "block_norm": "post"},
        **{"position_placement": "every_layer_shared", "num_register_tokens": 2, "num_position_prefix_rows": 2},
    },
    "mixed and normalized": {
        **{"rotary": RotaryConfig("mixed", coordinates="normalized"), "position_embedding": "none"},
        **{"pooling": None, "class_token": False, "include_top": False, "qk_norm": True},
    },
}


def _model(changes, **sizes):
    """A model of one block, unless positions are added to every block."""
    is_deep = changes.get("position_placement", "stem") != "stem"
    return tiny_model(num_layers=2 if is_deep else 1, **sizes, **changes)


def _rotary_model(changes):
    return randomize(_model(changes, input_shape=ROTARY_SHAPE, **HEADS))


@pytest.mark.parametrize("changes", [pytest.param(CASES[0], marks=pytest.mark.each_backend), *CASES[1:]])
def test_equals_the_equations(changes):
    run_parity_test(_model(changes), _equations(changes), random_inputs(SHAPE))


@pytest.mark.parametrize("changes", ROTARY_CASES.values(), ids=ROTARY_CASES)
def test_rotary_equals_the_equations(changes):
    run_parity_test(_rotary_model(changes), _equations(changes), random_inputs(ROTARY_SHAPE))


@functools.cache
def _weights(name):
    """Random weights of a model."""
    model, _ = shapes_only(lambda: _model(ROTARY_CASES[name], input_shape=ROTARY_SHAPE, **HEADS))
    rng = np.random.default_rng(1)
    return {weight.path: rng.normal(scale=0.3, size=weight.shape) for weight in model.weights}


def _difference(name, **wrong):
    """Largest difference between the outputs of the equations with right and with wrong settings."""
    [images] = random_inputs(ROTARY_SHAPE)
    right, other = (_equations(ROTARY_CASES[name] | changes)(images, _weights(name)) for changes in ({}, wrong))
    return np.abs(right - other).max()


def test_each_setting_without_weights_changes_the_output():
    changed = (
        *(("DINOv3", {"layout": "interleaved"}), ("DINOv3", {"coordinates": "grid"}), ("DINOv3", {"base": 50.0})),
        *(("DINOv3", {"axis_order": "xy"}), ("EVA-02", {"reference_grid": None}), ("EVA-02", {"offset": 1.0})),
        *(("EVA-02", {"reference_grid": (7, 4)}), ("RoPE-Mixed", {"layout": "half"}), ("RoPE-Mixed", {"offset": 1.0})),
        *(("RoPE-Mixed", {"axis_order": "yx"}), ("RoPE-Mixed", {"coordinates": "normalized"})),
        ("RoPE-Mixed", {"kind": "axial"}),
    )
    wrong = [(name, {"rotary": dataclasses.replace(ROTARY_CASES[name]["rotary"], **part)}) for name, part in changed]
    wrong += [("RoPE-Mixed", {"block_norm": "pre"}), ("Perception Encoder", {"pool_prefix_tokens": False})]
    assert not [case for case in wrong if _difference(case[0], **case[1]) < 1e-3]


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"patch_size": (2, 3), "crop_to_patches": True}, (35, 61)),
        pytest.param({"patch_size": 1, "axial": True, "pooling": "avg"}, (21, 30), marks=pytest.mark.slow),
    ],
)
def test_hybrid_equals_the_equations(changes, size):
    def hybrid(images, weights):
        return _equations(changes)(bit_resnet.bit_resnet(images, weights, STEM.stage_depths), weights)

    shape = (*size, 3)
    run_parity_test(_model(changes, input_shape=shape, stem=STEM), hybrid, random_inputs(shape))


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
    run_parity_test(_model(changes, axial=True), _equations(changes), random_inputs(SHAPE))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_register_tokens": 2, "distillation_token": True},
        {"position_embedding": "learned_2d", "position_placement": "every_layer", "axial": True, "pooling": "avg"},
        {"position_placement": "every_layer_shared", "axial": True, "pooling": "map"},
        {**HEADS, "num_register_tokens": 2, "num_position_prefix_rows": 3, "rotary": RotaryConfig()},
    ],
)
def test_variable_size(changes):
    """Tables for 224 pixels are interpolated wherever they are added."""
    model = randomize(_model(changes, input_shape=(None, None, 3)))
    weights = canonical_weights(model)
    if "position_embedding/embedding" in weights:
        num_prefix_rows = changes.get("num_position_prefix_rows", 1 + changes.get("distillation_token", 0))
        num_prefix_rows = 0 if changes.get("axial") or changes.get("pooling") == "map" else num_prefix_rows
        assert len(weights["position_embedding/embedding"]) == 56 * 74 + num_prefix_rows
    [images] = random_inputs((16, 6, 3))
    assert_close(model(images), _equations(changes)(images.astype("float64"), weights | {"grid": (56, 74)}))
