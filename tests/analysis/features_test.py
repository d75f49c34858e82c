import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.analysis.features import patch_tokens, representation
from tests.models.tiny import SHAPE, tiny_model
from tests.reference import vit as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, rest_slow, slow_except, to_numpy

CASES = [
    (
        {"num_register_tokens": 2, "distillation_token": True},
        {},
        {"class_token": 0, "distillation_token": 1, "register_tokens": slice(2, 4)},
    ),
    (
        {"num_register_tokens": 3, "pooling": "map", "position_embedding": "sincos_2d"},
        {"position_embedding": "sincos_2d"},
        {"register_tokens": slice(0, 3)},
    ),
]


@pytest.mark.parametrize("case", rest_slow(CASES))
def test_tokens_equal_the_equations(case):
    """The patch tokens after the last norm form a map, and each token before them has its own name."""
    changes, arguments, fronts = case
    model = randomize(tiny_model(**changes))
    [images] = random_inputs(SHAPE)
    weights = {path: value for path, value in canonical_weights(model).items() if "predictions" not in path}
    tokens = reference.vit(images.astype("float64"), weights, pooling=None, **arguments)
    names = ["encoder_norm", *(f"encoder_norm/{front}" for front in fronts)]
    found = keras_vit.features(model, images, names)
    assert list(found) == names
    assert_close(found["encoder_norm"], tokens[:, -6:].reshape(2, 2, 3, 12))
    assert_close(to_numpy(patch_tokens(model, images)), tokens[:, -6:].reshape(2, 2, 3, 12))
    for front, position in fronts.items():
        assert_close(found[f"encoder_norm/{front}"], tokens[:, position])


def test_tokens_are_found_where_they_have_been_put():
    model = randomize(tiny_model(num_register_tokens=2, distillation_token=True))
    [images] = random_inputs(SHAPE)
    weights = canonical_weights(model)
    found = keras_vit.features(model, images, ["register_tokens/register_tokens", "distillation_token/register_tokens"])
    for registers in found.values():
        assert_close(registers, np.repeat(weights["register_tokens/tokens"], 2, axis=0))
    [token] = keras_vit.features(model, images, ["distillation_token/distillation_token"]).values()
    assert_close(token, np.repeat(weights["distillation_token/token"][0], 2, axis=0))
    with pytest.raises(ValueError, match=r"the output of 'register_tokens' has no 'class_token'\. Its shape is"):
        keras_vit.features(model, images, ["register_tokens/class_token"])
    with pytest.raises(ValueError, match=r"the output of 'pooling' has no 'class_token'\. Its shape is \(2, 12\)"):
        keras_vit.features(model, images, ["pooling/class_token"])


def test_nested_equals_plain(inner, nested):
    kind, outer, prepared = nested
    [images] = random_inputs(SHAPE)
    names = ["patch_embedding", "encoder_block_0", "encoder_block_1/class_token", "pooling"]
    plain = keras_vit.features(inner, prepared(images), names)
    head = outer.layers[-1].name
    nested = keras_vit.features(outer, images, [*names, head])
    for name in names:
        np.testing.assert_allclose(nested[name], plain[name], rtol=1e-5, atol=1e-6)
    if kind != "twice nested":
        assert_close(nested[head], to_numpy(outer(images)))


def _headless(**changes):
    return tiny_model(include_top=False, num_layers=1, **changes)


HEADLESS = {
    "token": _headless,
    "avg": lambda **arguments: _headless(pooling="avg", **arguments),
    "map": lambda **arguments: _headless(pooling="map", **arguments),
    "after_pooling": lambda **arguments: _headless(pooling="avg", norm_placement="after_pooling", **arguments),
    "pre_logits": lambda **arguments: _headless(representation_dim=7, **arguments),
    "BiT": lambda **arguments: keras_vit.BiTResNet((1,), 32, include_top=False, input_shape=SHAPE, **arguments),
}


@pytest.mark.parametrize("name", slow_except(["after_pooling"], list(HEADLESS)))
def test_a_model_without_classifier_puts_its_representation_out(name):
    model = randomize(HEADLESS[name]())
    [images] = random_inputs(SHAPE)
    expected = to_numpy(model(images))
    assert_close(representation(model, images), expected)
    around = keras.Sequential([keras.Input(SHAPE), model, keras.layers.Dense(4), keras.layers.Softmax()])
    assert_close(representation(around, images), expected)


@pytest.mark.slow
def test_the_representation_of_a_model_around_a_model(inner):
    [images] = random_inputs(SHAPE)
    expected = to_numpy(inner(images))
    inputs = keras.Input(SHAPE)
    for around in (
        keras.Sequential([keras.Input(SHAPE), inner]),
        keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dropout(0.5)(inner(inputs)))),
        keras.Model(inner.input, keras.layers.Dense(4)(inner.output)),
    ):
        assert_close(representation(around, images), expected)


def test_tokens_and_maps_are_no_representation():
    [images] = random_inputs(SHAPE)
    for build, shape in ((HEADLESS["token"], "2, 7, 12"), (HEADLESS["BiT"], "2, 2, 3, 128")):
        with pytest.raises(
            ValueError, match=rf"one vector per image\. .* \({shape}\)\. Build the model with a pooling"
        ):
            representation(build(pooling=None), images)


def test_refusals(model):
    [images] = random_inputs(SHAPE)
    for layers, error, message in (
        (["encoder_block_2"], ValueError, r"no layer 'encoder_block_2'\. Did you mean .*Layers: preprocessing, "),
        (["images"], ValueError, "no layer 'images'"),
        (["pooling/register_tokens"], ValueError, "this model has no 'register_tokens'.*patch tokens: class_token"),
        ("pooling", TypeError, "layers must be a list of names. Received: 'pooling'"),
    ):
        with pytest.raises(error, match=message):
            keras_vit.features(model, images, layers)
    head = keras_vit.heads.EoMTHead(num_blocks=1, num_upscales=0)
    segmenter = keras_vit.Segmenter(keras_vit.describe(model).config, head, classes=3, input_shape=SHAPE)
    with pytest.raises(ValueError, match=r"'head' returns 2 outputs.*such as 'masks' and 'predictions'"):
        keras_vit.features(segmenter, images, ["head"])
    inputs = keras.Input(SHAPE)
    shared_name = keras.Model(inputs, keras.layers.Dense(2, name="pooling")(model(inputs)))
    with pytest.raises(ValueError, match="2 layers have the name 'pooling'"):
        keras_vit.features(shared_name, images, ["pooling"])

    class Subclass(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = model

    with pytest.raises(TypeError, match=r"functional keras\.Model.*Pass the model of keras_vit that is inside"):
        keras_vit.features(Subclass(), images, ["pooling"])
    two = keras.Input((3,))
    with pytest.raises(ValueError, match="A model with one input, the images, is needed"):
        keras_vit.features(keras.Model([inputs, two], [model(inputs), two]), images, ["pooling"])
    with pytest.raises(ValueError, match="has one Preprocessing layer"):
        keras_vit.features(keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()]), images, ["flatten"])
