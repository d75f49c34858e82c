"""Whole models equal the equations in NumPy, float64: every part, alone and with others."""

import functools

import pytest

from keras_vit.config import CHOICES
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.reference import bit_resnet
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, run_parity_test, to_numpy


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({}, {}),
        ({"mlp": "gelu_exact"}, {"activation": reference.gelu_exact}),
        ({"mlp": "quick_gelu"}, {"activation": reference.quick_gelu}),
        ({"mlp": "swiglu"}, {"activation": reference.swiglu}),
        ({"layer_norm_epsilon": 1e-2}, {"epsilon": 1e-2}),
        ({"pooling": "avg"}, {"pooling": "avg"}),
        ({"pooling": "avg", "class_token": True}, {"pooling": "avg"}),
        ({"position_embedding": "sincos_2d"}, {"position_embedding": "sincos_2d"}),
        (
            {"position_embedding": "sincos_2d", "pooling": "avg"},
            {"position_embedding": "sincos_2d", "pooling": "avg"},
        ),
        ({"position_embedding": "none"}, {"position_embedding": "none"}),
        ({"num_position_prefix_rows": 0}, {"prefix_rows": 0}),
        ({"representation_dim": 7}, {}),
        ({"representation_dim": 7, "pooling": "avg"}, {"pooling": "avg"}),
        ({"include_top": False}, {}),
        ({"include_top": False, "pooling": "avg"}, {"pooling": "avg"}),
        ({"include_top": False, "pooling": None}, {"pooling": None}),
        ({"include_top": False, "pooling": None, "class_token": False}, {"pooling": None}),
        ({"pooling": "map"}, {"pooling": "map"}),
        ({"pooling": "map", "class_token": True, "representation_dim": 7}, {"pooling": "map"}),
        (
            {"pooling": "map", "mlp": "gelu_exact", "layer_norm_epsilon": 1e-2, "include_top": False},
            {"pooling": "map", "activation": reference.gelu_exact, "epsilon": 1e-2},
        ),
        ({"norm_placement": "after_pooling", "layer_norm_epsilon": 1e-2}, {"epsilon": 1e-2}),
        ({"norm_placement": "after_pooling", "pooling": "avg", "class_token": True}, {"pooling": "avg"}),
        ({"norm_placement": "after_pooling", "pooling": "map"}, {"pooling": "map"}),
        ({"distillation_token": True}, {}),
        ({"distillation_token": True, "num_position_prefix_rows": 1}, {"prefix_rows": 1}),
        ({"distillation_token": True, "include_top": False}, {}),
        ({"distillation_token": True, "include_top": False, "pooling": None}, {"pooling": None}),
        ({"num_register_tokens": 4}, {}),
        ({"num_register_tokens": 4, "pooling": "avg"}, {"pooling": "avg"}),
        ({"num_register_tokens": 4, "pooling": "map"}, {"pooling": "map"}),
        ({"num_register_tokens": 4, "pooling": "avg", "class_token": True}, {"pooling": "avg"}),
        ({"num_register_tokens": 4, "num_position_prefix_rows": 0}, {"prefix_rows": 0}),
        ({"num_register_tokens": 4, "position_embedding": "sincos_2d"}, {"position_embedding": "sincos_2d"}),
        ({"num_register_tokens": 4, "distillation_token": True}, {}),
        ({"layer_scale": 0.1}, {}),
        ({"qk_norm": True, "layer_norm_epsilon": 1e-2}, {"epsilon": 1e-2}),
        ({"pre_norm": True, "layer_norm_epsilon": 1e-2}, {"epsilon": 1e-2}),
        ({"pre_norm": True, "norm_placement": "after_pooling", "num_register_tokens": 2, "layer_scale": 0.1}, {}),
    ],
)
def test_equals_the_equations(changes, arguments):
    run_parity_test(tiny_model(**changes), functools.partial(reference.vit, **arguments), random_inputs(SHAPE))


@pytest.mark.parametrize(
    ("changes", "size", "pooling"),
    [
        ({"patch_size": 1}, (21, 30), "token"),
        ({"patch_size": (1, 2)}, (32, 64), "token"),
        ({"patch_size": 1, "pooling": "avg", "crop_to_patches": True}, (17, 30), "avg"),
        ({"patch_size": (2, 3), "crop_to_patches": True}, (35, 61), "token"),
    ],
)
def test_hybrid_equals_the_equations(changes, size, pooling):
    def hybrid(images, weights):
        maps = bit_resnet.bit_resnet(images, weights, STEM.stage_depths)
        return reference.vit(maps, weights, pooling=pooling)

    shape = (*size, 3)
    run_parity_test(tiny_model(input_shape=shape, stem=STEM, **changes), hybrid, random_inputs(shape))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "avg"},
        {"num_position_prefix_rows": 0},
        {"position_embedding": "sincos_2d"},
        {"num_register_tokens": 2, "distillation_token": True},
    ],
)
def test_variable_size(changes):
    """One model for all sizes equals a model of each fixed size, and the equations with interpolated positions."""
    variable = randomize(tiny_model(input_shape=(None, None, 3), **changes))
    weights = canonical_weights(variable)
    table = weights.get("position_embedding/embedding")
    arguments = {"pooling": changes.get("pooling", "token"), "prefix_rows": changes.get("num_position_prefix_rows")}
    if table is None:
        arguments["position_embedding"] = "sincos_2d"
    else:  # Made for 224 pixels.
        assert len(table) == 56 * 74 + variable.get_layer("position_embedding").num_prefix_rows
    for shape in (SHAPE, (16, 6, 3)):
        [images] = random_inputs(shape)
        outputs = to_numpy(variable(images))
        assert_close(outputs, reference.vit(images.astype("float64"), weights | {"grid": (56, 74)}, **arguments))
        fixed = randomize(tiny_model(input_shape=shape, **changes))
        rows = (
            variable.get_layer("position_embedding")._rows((shape[0] // 4, shape[1] // 3)) if table is not None else 0
        )
        for weight, source in zip(fixed.weights, variable.weights, strict=True):
            weight.assign(rows if weight.path == "position_embedding/embedding" else source)
        assert_close(fixed(images), outputs)


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({}, {}),
        ({"num_register_tokens": 2, "num_position_prefix_rows": 0, "pre_norm": True}, {"prefix_rows": 0}),
        ({"axial": True, "pooling": "avg"}, {"pooling": "avg"}),
    ],
)
@pytest.mark.parametrize("placement", CHOICES["position_placement"])
@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos_2d"])
def test_positions_equal_the_equations(kind, placement, changes, arguments):
    positions = {"position_embedding": kind, "position_placement": placement}
    model = tiny_model(num_layers=3, **positions, **changes)
    run_parity_test(model, functools.partial(reference.vit, **positions, **arguments), random_inputs(SHAPE))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "avg"},
        {"pooling": "map", "class_token": True, "layer_scale": 0.1},
        {"distillation_token": True, "num_register_tokens": 2, "qk_norm": True},
    ],
)
def test_relative_positions_equal_the_equations(changes):
    model = tiny_model(position_embedding="relative", **changes)
    arguments = {"position_embedding": "relative", "pooling": changes.get("pooling", "token")}
    run_parity_test(model, functools.partial(reference.vit, **arguments), random_inputs(SHAPE))


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding": "none", "pooling": "map", "mlp": "swiglu", "layer_scale": 0.1, "qk_norm": True},
        {"pooling": None, "class_token": False, "include_top": False},
        {"pooling": "avg", "stem": STEM, "patch_size": 1, "input_shape": (21, 30, 3)},
    ],
)
def test_axial_equals_the_equations(changes):
    shape = changes.get("input_shape", SHAPE)
    kind = changes.get("position_embedding", "learned_1d")
    activation = reference.swiglu if "mlp" in changes else reference.gelu_tanh

    def axial(images, weights):
        maps = bit_resnet.bit_resnet(images, weights, STEM.stage_depths) if "stem" in changes else images
        return reference.vit(maps, weights, activation, changes["pooling"], position_embedding=kind)

    run_parity_test(tiny_model(axial=True, **changes), axial, random_inputs(shape))


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({"position_embedding": "learned_2d", "num_register_tokens": 2}, "token"),
        ({"position_embedding": "learned_2d", "position_placement": "every_layer", "axial": True}, "avg"),
        ({"position_embedding": "learned_1d", "position_placement": "every_layer_shared", "axial": True}, "map"),
    ],
)
def test_variable_size_of_positions(changes, pooling):
    """Tables made for 224 pixels, interpolated wherever they are added."""
    model = randomize(tiny_model(input_shape=(None, None, 3), pooling=pooling, **changes))
    weights = canonical_weights(model)
    positions = {name: value for name, value in changes.items() if name.startswith("position")}
    for shape in (SHAPE, (16, 6, 3)):
        [images] = random_inputs(shape)
        expected = reference.vit(images.astype("float64"), weights | {"grid": (56, 74)}, pooling=pooling, **positions)
        assert_close(model(images), expected)
