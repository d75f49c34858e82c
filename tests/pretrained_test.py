"""`from_pretrained` as users call it."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.catalogue import get_entry
from keras_vit.weights.sources import fetch
from tests.test_case import (
    MIXED_POLICIES,
    TENSORFLOW,
    assert_close,
    canonical_weights,
    quantize,
    random_inputs,
    random_model,
    randomize,
    slow_except,
    to_numpy,
)
from tests.weights.converter_case import CONFIG, SHAPE, assert_refused, assert_same_weights, make, save

EXACT = CONFIG.replace(mlp="gelu_exact")
POSITIONS = "position_embedding/embedding"
MEAN, STD = [0.1, 0.2, 0.4], [0.25, 0.5, 0.75]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: (weights of a model, the path of its file)}"""
    folder = tmp_path_factory.mktemp("files")
    models = {"timm": make(EXACT), "google": make(representation_dim=7), "sincos": make(position_embedding="sincos_2d")}
    models["timm"].get_layer("preprocessing").set_preprocessing(mean=MEAN, std=STD, resize=SHAPE[:2])
    formats = {"timm": "timm", "google": "google", "sincos": "google"}
    return {
        kind: (canonical_weights(model), save(model, folder / kind, formats[kind])) for kind, model in models.items()
    }


def _without(weights, *prefixes):
    return {path: array for path, array in weights.items() if not path.startswith(prefixes)}


def test_other_classes_take_the_place_of_the_whole_head(files):
    weights, path = files["google"]
    kept = keras_vit.from_pretrained(path, classes=5, input_shape=SHAPE)
    assert_same_weights(kept, weights)
    model = keras_vit.from_pretrained(path, classes=4, input_shape=SHAPE, head_bias=-2.0)
    head = {"predictions/kernel": np.zeros((12, 4)), "predictions/bias": np.full(4, -2.0)}
    assert_same_weights(model, {**_without(weights, "pre_logits/", "predictions/"), **head})
    description = keras_vit.describe(model)
    assert description.config.representation_dim is None
    assert description.adaptations == dict.fromkeys(head, "not loaded from the file")
    model = keras_vit.from_pretrained(path, classes=4, input_shape=SHAPE, representation_dim=7)  # It is asked for.
    head = {"predictions/kernel": np.zeros((7, 4)), "predictions/bias": np.zeros(4)}
    new = {name: array for name, array in canonical_weights(model).items() if name.startswith("pre_logits/")}
    assert np.abs(new["pre_logits/kernel"] - weights["pre_logits/kernel"]).min() > 0
    assert_same_weights(model, {**weights, **head, **new})


@pytest.mark.slow
def test_without_a_head(files):
    weights, path = files["google"]
    model = keras_vit.from_pretrained(path, include_top=False, input_shape=SHAPE)
    assert model.output_shape == (None, 12)
    assert_same_weights(model, _without(weights, "pre_logits/", "predictions/"))
    tokens = keras_vit.from_pretrained(path, include_top=False, pooling=None, input_shape=SHAPE)
    assert tokens.output_shape == (None, 7, 12)
    [images] = random_inputs(SHAPE)
    assert_close(to_numpy(tokens(images))[:, 0], to_numpy(model(images)))
    with pytest.raises(ValueError, match="include_top=True needs a pooling"):
        keras_vit.from_pretrained(path, pooling=None, input_shape=SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize("class_token", [None, True, False])
def test_other_poolings(class_token, files):
    """Other poolings drop the class token unless `class_token=True` is given."""
    _, path = files["google"]
    arguments = {"include_top": False, "input_shape": SHAPE}
    changes = {} if class_token is None else {"class_token": class_token}
    model = keras_vit.from_pretrained(path, pooling="avg", **arguments, **changes)
    tokens = keras_vit.from_pretrained(path, pooling=None, **arguments, class_token=bool(class_token))
    [images] = random_inputs(SHAPE)
    assert ("class_token/token" in canonical_weights(model)) == bool(class_token)
    assert_close(model(images), to_numpy(tokens(images))[:, -6:].mean(axis=1))
    with pytest.raises(ValueError, match="missing: pooling/probe"):
        keras_vit.from_pretrained(path, pooling="map", **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["timm", "google", "sincos"])
def test_images_of_any_size(kind, files):
    weights, path = files[kind]
    arguments = {"classifier_activation": None, **({"grid_size": (2, 3)} if kind == "google" else {})}
    model = keras_vit.from_pretrained(path, input_shape=(None, None, 3), **arguments)
    assert model.input_shape == (None, None, None, 3)
    assert_same_weights(model, weights)
    for shape in (SHAPE, (16, 9, 3)):
        fixed = keras_vit.from_pretrained(path, input_shape=shape, **arguments)
        [images] = random_inputs(shape)
        assert_close(model(images), to_numpy(fixed(images)))


def _random(**changes):
    """A model whose arguments differ from the defaults."""
    changes = {"classifier_activation": "sigmoid", "include_preprocessing": True, "name": "mine"} | changes
    model = make(EXACT.replace(num_layers=1), **changes)
    resize = None if None in model.input_shape[1:] else model.input_shape[1:3]
    model.get_layer("preprocessing").set_preprocessing(mean=MEAN, std=STD, resize=resize)
    return model


BUILDERS = [
    functools.partial(_random, input_shape=(None, None, 3), pooling="map", num_register_tokens=2),
    lambda: randomize(keras_vit.BiTResNet((1,), 32, input_shape=SHAPE, include_top=False, pooling=None)),
    *(_random, functools.partial(_random, distillation_token=True), functools.partial(_random, include_top=False)),
    lambda: random_model(keras_vit.ResNet("R18", width=4, input_shape=(33, 46, 3), classes=5, dropout_rate=0.1)),
]


@pytest.mark.parametrize("build", slow_except(BUILDERS[:2], BUILDERS))
def test_a_model_of_a_keras_file(build, tmp_path):
    model, path = build(), tmp_path / "mine.keras"
    model.save(path)
    same = keras_vit.from_pretrained(path)
    assert (same.name, same.input_shape, same.output_shape) == (model.name, model.input_shape, model.output_shape)
    [images] = random_inputs([size or 2 * side for size, side in zip(model.input_shape[1:], SHAPE, strict=True)])
    np.testing.assert_array_equal(to_numpy(same(images)), to_numpy(model(images)))
    assert keras_vit.describe(same) == dataclasses.replace(keras_vit.describe(model), source=str(path))


@pytest.mark.slow
def test_a_fine_tuned_model_at_another_image_size(tmp_path):
    model, path = _random(), tmp_path / "mine.keras"
    model.save(path)
    larger = keras_vit.from_pretrained(str(path), input_shape=(16, 18, 3))
    assert (larger.input_shape, larger.output_shape) == ((None, 16, 18, 3), (None, 5))
    description = keras_vit.describe(larger)
    assert description.adaptations == {POSITIONS: "2 x 3 positions resampled to 4 x 6 (align_corners)"}
    assert (description.pixels["mean"], tuple(description.pixels["resize"])) == (MEAN, (16, 18))
    weights = canonical_weights(model)
    expected = weights | {POSITIONS: canonical_weights(larger)[POSITIONS]}
    assert_same_weights(larger, expected)
    others = keras_vit.from_pretrained(path, classes=3)  # For another task.
    assert others.layers[-1].activation is keras.activations.softmax
    assert not to_numpy(others.layers[-1].kernel).any()
    assert_same_weights(keras_vit.from_pretrained(path, include_top=False), _without(weights, "predictions/"))


def test_layers_without_weights_come_and_go(tmp_path):
    model, path = _random(pooling="avg"), tmp_path / "mine.keras"
    for changes in (
        {"rotary": keras_vit.RotaryConfig()},
        {"rotary": None, "patch_dropout_rate": 0.5},
        {"patch_dropout_rate": 0.0, "dropout_rate": 0.1},
    ):
        model.save(path)
        config, weights = keras_vit.describe(model).config, canonical_weights(model)
        model = keras_vit.from_pretrained(path, **changes)
        assert keras_vit.describe(model).config == config.replace(**changes)
        assert_same_weights(model, weights)


def test_a_keras_file_of_another_model_is_refused(tmp_path):
    path, inner = tmp_path / "mine.keras", _random()
    small = {"stage_depths": (1,), "num_modules": 1, "width": 8, "filters": 16, "token_dim": 16, "num_heads": 2}
    quantized = _random()
    quantize(quantized, "int8", filters="hidden")
    for model, message in (
        (keras.Sequential([keras.Input(SHAPE), inner]), "'.*', a model that contains a model of keras_vit"),
        (keras.Model(inner.input, keras.layers.Dense(5, name="added")(inner.output)), "these layers differ: added"),
        (keras_vit.VTResNet("VT-R18", input_shape=(16, 24, 3), **small), "contains a VT-ResNet.*load_model"),
        (quantized, "was quantized by Keras"),
    ):
        model.save(path)
        with pytest.raises(ValueError, match=message):
            keras_vit.from_pretrained(path)
    with pytest.raises(ValueError, match=r"already describes its model\. Received: .* with num_heads"):
        keras_vit.from_pretrained(path, num_heads=3)
    with pytest.raises(FileNotFoundError, match=r"no file or folder 'missing\.keras'"):
        keras_vit.from_pretrained("missing.keras")


@pytest.mark.slow
@pytest.mark.combination("model.keras, loaded under mixed_bfloat16 or mixed_float16", "nearly the same answers")
@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_a_keras_file_under_another_policy(policy, tmp_path):
    model, path = _random(classifier_activation=None), tmp_path / "mine.keras"
    model.save(path)
    keras.config.set_dtype_policy(policy)
    try:
        other = keras_vit.from_pretrained(path)
    finally:
        keras.config.set_dtype_policy("float32")
    pixels = np.random.default_rng(0).integers(0, 256, (4, *SHAPE)).astype("uint8")
    expected = to_numpy(model(pixels))
    assert np.ptp(expected, axis=0).max() > 0.05
    assert f"mixed_{other.get_layer('encoder_block_0').compute_dtype}" == policy
    assert 0 < np.abs(to_numpy(other(pixels)) - expected).max() < 0.01


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="files do not depend on the backend")
@pytest.mark.combination("a model that Keras quantized to int8, int4 or float8, saved as .keras", "the same answers")
@pytest.mark.combination(
    "a model that Keras quantized, in from_pretrained, save_weights or export_model", "refused, with this reason"
)
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_quantized_model(mode, tmp_path):
    model, path = _random(classifier_activation=None), tmp_path / "mine.keras"
    images = np.random.default_rng(0).integers(0, 256, (4, *SHAPE)).astype("uint8")
    before = to_numpy(model(images))
    quantize(model, mode)
    expected = to_numpy(model(images))
    assert 0 < np.abs(expected - before).max() < np.ptp(before, axis=0).max()
    model.save(path)
    np.testing.assert_array_equal(to_numpy(keras.models.load_model(path)(images)), expected)
    for refuse in (
        lambda: keras_vit.from_pretrained(path),
        lambda: keras_vit.save_weights(model, tmp_path / "timm", "timm"),
        lambda: keras_vit.export_model(model, tmp_path / "mine.onnx", "onnx"),
    ):
        with pytest.raises(ValueError, match="was quantized by Keras"):
            refuse()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("clases", "'classes'"),
        ("input_size", r"input_shape=\(height, width, channels\)"),
        ("poolin", "'pooling'"),
        ("num_head", "'num_heads'"),
        ("famly", "'family'"),
        ("layer_norm_eps", "'layer_norm_epsilon'"),
    ],
)
def test_names_the_nearest_argument_before_anything_is_read(name, nearest):
    with pytest.raises(TypeError, match=f"'{name}' is not an argument of from_pretrained. Did you mean .*{nearest}"):
        keras_vit.from_pretrained("gs://bucket/never-read.npz", **{name: 3})
    for given in ("variant", "weights", "config"):
        with pytest.raises(TypeError, match=f"'{given}' is not an argument of from_pretrained.* Accepted: .*classes"):
            keras_vit.from_pretrained("gs://bucket/never-read.npz", **{given: "B/16"})
    with pytest.raises(TypeError, match="Pass the weights as the first argument, source"):
        keras_vit.from_pretrained("B/16", weights="imagenet")


@pytest.mark.parametrize("input_shape", [224, (224, 224), (8, 9, 0), "224"])
def test_refuses_other_shapes(input_shape):
    with pytest.raises(ValueError, match="input_shape must be"):
        keras_vit.from_pretrained("gs://bucket/never-read.npz", input_shape=input_shape)


# Names in the catalogue.


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Puts random weights where a download of this name is cached. Ti/16 is replaced by a small variant."""
    small = keras_vit.VARIANTS["Ti/16"].replace(num_layers=1, hidden_dim=12, mlp_dim=20)
    monkeypatch.setitem(keras_vit.VARIANTS, "Ti/16", small)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    place = _cache_path("Ti/16@augreg-i21k-i1k-224")
    place.parent.mkdir(parents=True)
    model = randomize(keras_vit.ViTTi16(), scale=0.02)
    keras_vit.save_weights(model, place, "google")
    return canonical_weights(model)


def _cache_path(name):
    return fetch.cache_folder() / get_entry(name).url.removeprefix("https://")


def test_a_variant_checks_the_size_of_its_weights(cached):
    for weights in ("augreg-i21k-i1k-224", "imagenet", "Ti/16@augreg-i21k-i1k-224"):
        assert_same_weights(keras_vit.ViT("Ti/16", weights=weights), cached)
    with pytest.raises(ValueError, match=r"are weights of Ti/16, not of B/16"):
        keras_vit.ViT("B/16", weights="Ti/16@augreg-i21k-i1k-224")
    path = _cache_path("Ti/16@augreg-i21k-i1k-224")
    match = "another size: hidden_dim=12, not 384, num_layers=1, not 12, num_heads=3, not 6"
    with pytest.raises(ValueError, match=match):
        keras_vit.ViT("S/16", weights=path)
    keras_vit.save_weights(make(CONFIG.replace(patch_size=16), (224, 224, 3), classes=1000), path, "google")
    with pytest.raises(ValueError, match="The downloaded file is not Ti/16@augreg-i21k-i1k-224: num_layers is 2"):
        keras_vit.ViT("Ti/16", weights="imagenet")


# Damaged and malicious files.


class _Evil:
    def __reduce__(self):
        return (pytest.fail, ("the file's code ran",))


def test_refuses_what_is_no_checkpoint_before_a_model_is_built(tmp_path, monkeypatch):
    """containers_test.py tests all kinds of damaged files."""
    path, model = tmp_path / "weights.npz", make(num_layers=1)
    monkeypatch.setattr("keras_vit.pretrained.build_with_weights", lambda *_, **__: pytest.fail("a model was built"))
    for name, array in (("embedding/kernel", np.array([_Evil()], object)), ("weight", np.ones(3, "float32"))):
        np.savez(path, **{name: array})
        for load in (lambda: keras_vit.from_pretrained(path), lambda: keras_vit.load_weights(model, path)):
            assert_refused(load, model, r"weights\.npz")


def test_a_saved_encoder_gets_a_head(tmp_path):
    encoder = make(CONFIG, include_top=False, num_layers=1)
    encoder.save(tmp_path / "encoder.keras")
    model = keras_vit.from_pretrained(tmp_path / "encoder.keras", classes=4)
    assert model.output_shape == (None, 4)
    np.testing.assert_array_equal(
        canonical_weights(model)["patch_embedding/kernel"], canonical_weights(encoder)["patch_embedding/kernel"]
    )
