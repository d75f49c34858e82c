"""The maps, lineage and entropy of visual tokens equal closed forms."""

import math

import keras
import numpy as np
import pytest

import keras_vit
from tests.reference.vit import softmax
from tests.test_case import assert_close, random_inputs, randomize, rest_slow, to_numpy

SHAPE = (32, 48, 3)
CHANGES = {"stage_depths": (1, 1, 1), "width": 6, "filters": 16, "token_dim": 16, "num_heads": 2, "num_tokens": 4}
CHANGES |= {"group_width": 8}
NUM_PIXELS = 2 * 3


def tiny(size="VT-R18", **changes):
    return randomize(keras_vit.VTResNet(size, input_shape=SHAPE, classes=5, **CHANGES | changes))


@pytest.fixture(scope="module")
def model():
    """No test changes this model."""
    return tiny()


def test_maps_are_the_filters_softmax(model):
    [images] = random_inputs(SHAPE)
    pixels = keras_vit.features(model, images, ["stage_2_unit_0"])["stage_2_unit_0"].astype("float64")
    tokenizer = model.get_layer("tokenizer_0").filter
    norm = {name: to_numpy(getattr(tokenizer.norm, name)) for name in ("gamma", "beta", "moving_mean")}
    logits = pixels.reshape(2, NUM_PIXELS, -1) @ to_numpy(tokenizer.kernel) - norm["moving_mean"]
    logits = logits / np.sqrt(to_numpy(tokenizer.norm.moving_variance) + 1e-5) * norm["gamma"] + norm["beta"]
    expected = softmax(np.swapaxes(logits / math.sqrt(pixels.shape[-1]), 1, 2)).reshape(2, 4, 2, 3)
    maps = keras_vit.token_maps(model, images)
    assert [array.shape for array in maps.values()] == [(2, 4, 2, 3), (2, 2, 2, 3)]
    assert_close(maps["tokenizer_0"], expected)
    for name, entropies in keras_vit.token_entropy(model, images, batch_size=1).items():
        assert_close(entropies, -(maps[name] * np.log(maps[name])).sum((2, 3)).mean(0))
    inputs = keras.Input(SHAPE)
    assert_close(keras_vit.token_maps(keras.Model(inputs, model(inputs)), images)["tokenizer_0"], expected)


def attend_to_all_alike(layer):
    """Makes a transformer attend to all tokens equally."""
    layer.key.norm.gamma.assign(0 * layer.key.norm.gamma)
    layer.key.norm.beta.assign(0 * layer.key.norm.beta)


@pytest.mark.slow
def test_lineage_follows_what_is_carried_over_and_mixed():
    [images] = random_inputs(SHAPE)
    model = tiny("VT-R34", relation_modules=(2,))  # The first two modules do not mix tokens.
    attend_to_all_alike(model.get_layer("token_relation_2"))
    first, second, third = keras_vit.token_maps(model, images).values()
    after_two = np.concatenate([first[:, 2:], second], axis=1)
    before_mixing = np.concatenate([second, third], axis=1)
    expected = [first, after_two, np.repeat(before_mixing.mean(1, keepdims=True), 4, axis=1)]
    assert_close(keras_vit.token_lineage(model, images), np.stack(expected, axis=1))


def test_lineage_begins_with_a_shrunk_map():
    [images] = random_inputs(SHAPE)
    model = tiny(tokenizer="pooling", split_tokens=False, relation="none", is_recurrent=False)
    lineage = keras_vit.token_lineage(model, images)
    assert lineage.shape == (2, 2, 4, 2, 3)
    assert_close(lineage.sum((3, 4)), np.ones((2, 2, 4)))
    pixels = keras_vit.features(model, images, ["stage_2_unit_0"])["stage_2_unit_0"]
    tokens = keras_vit.layers.PoolingTokenizer((2, 2))(pixels)
    assert_close(np.einsum("blhw,bhwc->blc", lineage[:, 0], pixels), to_numpy(tokens))
    carried = keras_vit.token_lineage(tiny(tokenizer="pooling", relation="none"), images)
    assert_close(carried[:, 1, :2], lineage[:, 0, 2:])


def test_lineage_of_a_graph_convolution_is_refused():
    [images] = random_inputs(SHAPE)
    with pytest.raises(ValueError, match=r"'token_relation_0'.*graph convolution.*keras_vit\.token_maps"):
        keras_vit.token_lineage(tiny(relation="graph_convolution"), images)


@pytest.mark.parametrize("size", rest_slow([(6, 7), (473, 473)]))
def test_equal_pixels_have_the_largest_entropy(size):
    inputs = keras.Input((*size, 2))
    model = keras.Model(inputs, keras_vit.layers.FilterTokenizer(4, name="tokenizer")(inputs))
    found = keras_vit.token_entropy(model, np.ones((2, *size, 2)))["tokenizer"]
    assert_close(found, np.full(4, math.log(math.prod(size))))
    if size == (473, 473):  # The value that the paper gives for a convolution with this number of pixels.
        np.testing.assert_allclose(found, 12.318, rtol=0, atol=5e-4)


def test_foreground_share():
    maps = np.array([[[[0.5, 0.25, 0.0], [0.0, 0.25, 0.0]], [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]])
    mask = np.zeros((1, 4, 6), bool)
    mask[0, :2, :3] = True  # All of the first cell of the maps, and half of the second.
    assert_close(keras_vit.foreground_share(maps, mask), [[0.625, 0.0]])
    assert_close(keras_vit.foreground_share(np.full((1, 5, 2, 3), 1 / 6), mask), np.full((1, 5), mask.mean()))
    with pytest.raises(ValueError, match=r"masks must be \(B, H, W\).*Received: masks of shape \(1, 5, 6\)"):
        keras_vit.foreground_share(maps, np.ones((1, 5, 6)))


def test_a_model_without_tokens_is_refused():
    [images] = random_inputs(SHAPE)
    resnet = keras_vit.ResNet("R18", stage_depths=(1,), width=4, input_shape=SHAPE)
    for look in (keras_vit.token_maps, keras_vit.token_lineage, keras_vit.token_entropy):
        with pytest.raises(ValueError, match=r"found no tokenizer in .* that gathers tokens from pixels"):
            look(resnet, images)
