"""Files that timm wrote give models with timm's outputs. See tests/golden/README.md."""

import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import TENSORFLOW, compute, on_each_backend, slow_except, to_numpy

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
NAMES = sorted(path.name for path in GOLDEN.glob("*_timm*"))
OF_OTHER_SIZES = [name for name in NAMES if not name.startswith("naflexvit")]  # Its file has images of one size.
# Axial and mixed rotations, SwiGLU, and attention pooling with other heads.
OF_EACH_KIND = ("dinov3_timm_swiglu", "pe_core_timm", "rope_mixed_timm")
TOLERANCE = 1e-5
"""Relative to the largest value: tokens of EVA reach 19. A tolerance of 1e-4 would accept a wrong LayerNorm epsilon."""


def golden(name, is_native):
    """{name: array} from a file, for images of the model's size if `is_native`, else of a size that is not square."""
    with np.load(GOLDEN / name / "io.npz") as file:
        arrays = dict(file)
    suffix = "" if is_native else "_other"
    return {part: arrays[part + suffix] for part in arrays if part + suffix in arrays}


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


def assert_outputs(model, expected):
    """Compares tokens, pooled vector and logits, which are computed in one call."""
    is_headless = "predictions" not in [layer.name for layer in model.layers]
    pooled = model.output if is_headless else model.get_layer("predictions").input
    outputs = {"tokens": model.get_layer("pooling").input, "pooled": pooled, "logits": model.output}
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(output) for output in outputs.values()])
    values = compute(keras.Model(model.input, joined), [expected["images"]])
    ends = np.cumsum([expected[name][0].size for name in outputs])
    for name, part in zip(outputs, np.split(values, ends[:-1], axis=1), strict=True):
        assert_close(part.reshape(expected[name].shape), expected[name])


@pytest.mark.parametrize("name", on_each_backend(OF_EACH_KIND, NAMES))
def test_outputs_equal_those_of_timm(name):
    expected = golden(name, is_native=True)
    model = keras_vit.from_pretrained(GOLDEN / name, classifier_activation=None)
    assert model.input_shape[1:] == expected["images"].shape[1:]
    assert_outputs(model, expected)
    if TENSORFLOW:  # JAX would compile the model again. The last block computes only what is used.
        assert_close(compute(model, [expected["images"]]), expected["logits"])


@pytest.mark.parametrize("name", slow_except(["rope_axial_timm", "dinov3_timm_swiglu", "pe_core_timm"], OF_OTHER_SIZES))
def test_outputs_for_another_image_size_equal_those_of_timm(name):
    expected = golden(name, is_native=False)
    shape = expected["images"].shape[1:]
    assert_outputs(keras_vit.from_pretrained(GOLDEN / name, input_shape=shape, classifier_activation=None), expected)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "other_size"])
@pytest.mark.parametrize("name", [name for name in NAMES if "rope" in golden(name, is_native=True)])
def test_rotations_equal_those_of_timm(name, is_native):
    expected = golden(name, is_native)
    checkpoint = open_checkpoint(GOLDEN / name)
    config, weights = checkpoint.config, checkpoint.read()
    grid = [side // config.patch_size for side in expected["images"].shape[1:3]]
    positions = keras_vit.layers.RotaryPositionEmbedding(config.rotary, config.key_dim, config.num_prefix_tokens)
    found = positions(keras.ops.zeros((1, *grid, 1)))
    if config.rotary.kind == "mixed":
        layers = [keras_vit.layers.RotaryFrequencies(config.rotary, 2, config.key_dim) for _ in range(2)]
        for i, layer in enumerate(layers):
            layer.build(found.shape)
            layer.set_weights([weights[f"encoder_block_{i}/attention/rotary/frequencies"]])
        found = keras.ops.stack([layer(found) for layer in layers], axis=1)  # (2, L, K, T, Dh)
    cosines, sines = to_numpy(found)
    expected_sines, expected_cosines = np.split(expected["rope"], 2, axis=-1)
    channels = np.arange(config.key_dim)
    is_first = channels < config.key_dim / 2 if config.rotary.layout == "half" else channels % 2 == 0
    prefix = np.s_[..., : config.num_prefix_tokens, :]
    assert np.all(cosines[prefix] == 1)
    assert np.all(sines[prefix] == 0)
    patches = np.s_[..., config.num_prefix_tokens :, :]
    assert_close(cosines[patches], expected_cosines)
    assert_close(sines[patches], np.where(is_first, -expected_sines, expected_sines))


def test_without_pooling_a_norm_after_the_pooling_is_left_out():
    expected = golden("so150m2_timm", is_native=False)
    shape = expected["images"].shape[1:]
    model = keras_vit.from_pretrained(GOLDEN / "so150m2_timm", input_shape=shape, include_top=False, pooling=None)
    assert "pooled_norm" in keras_vit.describe(model).adaptations
    assert_close(compute(model, [expected["images"]]), expected["tokens"])
