import functools
import re
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import preprocessing_layer
from tests.test_case import TENSORFLOW, assert_close, randomize, run_layer_test, to_numpy
from tests.weights.converter_case import make_shell

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, pooling="avg")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def _pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype("uint8")


@pytest.mark.each_backend
def test_layer(tmp_path):
    arguments = {
        "mean": MEAN,
        "std": STD,
        "resize": 256,
        "crop": [224, 208],
        "interpolation": "bicubic",
        "label_space": "imagenet1k",
        "source": "somewhere",
        "architecture": CONFIG.to_dict(),
        "adaptations": {"predictions/kernel": "not loaded from the file"},
        "normalize": True,
        "origin": {"source": "somewhere", "licence": "Apache-2.0", "checksum": 7},
        "outputs": {"predictions": {"kind": "values"}},
    }
    run_layer_test(keras_vit.Preprocessing, arguments, [(8, 12, 3)], (8, 12, 3), {}, tmp_path)


@pytest.mark.parametrize(("mean", "std", "channels"), [(MEAN, STD, 3), (0.1, 0.3, 1), (0.5, 0.25, 4)])
def test_layer_normalizes(mean, std, channels):
    pixels = _pixels(2, 8, 12, channels)
    layer = keras_vit.Preprocessing(mean=mean, std=std, normalize=True)
    output = layer(pixels)
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert_close(output, (pixels / 255 - np.array(mean)) / np.array(std))


@pytest.mark.each_backend
@pytest.mark.combination("outer.predict, load_weights(inner), outer.predict", "the new mean and std")
def test_compiled_functions_use_new_values():
    layer = keras_vit.Preprocessing(normalize=True)
    outer = keras.Sequential([keras.Input((8, 12, 3)), keras.Sequential([keras.Input((8, 12, 3)), layer])])
    pixels = _pixels(2, 8, 12, 3)
    assert_close(outer.predict(pixels, verbose=0), pixels / 127.5 - 1)
    layer.set_preprocessing(mean=MEAN, std=STD)
    assert_close(outer.predict(pixels, verbose=0), (pixels / 255 - MEAN) / STD)
    assert (outer.weights, outer.count_params()) == ([], 0)
    with pytest.raises(ValueError, match="images must have 1 channels"):
        layer.set_preprocessing(mean=MEAN[:1])
    assert layer.mean == MEAN


@pytest.mark.parametrize("normalize", [True, False])
def test_images_are_converted_to_pixels(normalize):
    layer, pixels = keras_vit.Preprocessing(MEAN, STD, normalize=normalize), _pixels(2, 8, 12, 3)
    images = layer(pixels if normalize else keras_vit.preprocessing.normalize_pixels(pixels, MEAN, STD))
    assert_close(layer.to_pixels(images), pixels / 255)


@pytest.mark.each_backend
@pytest.mark.parametrize("normalize", [True, False])
def test_compiled_conversions_to_pixels_follow_a_new_mean(normalize):
    layer, pixels = keras_vit.Preprocessing(normalize=normalize), _pixels(2, 8, 12, 3)
    inputs = keras.Input((8, 12, 3))
    model = keras.Model(inputs, keras.layers.Lambda(layer.to_pixels)(layer(inputs)))
    for mean in (MEAN, 0.3):
        layer.set_preprocessing(mean, STD)
        images = pixels if normalize else to_numpy(keras_vit.preprocessing.normalize_pixels(pixels, mean, STD))
        assert_close(model.predict(images, verbose=0), pixels / 255)
    assert (model.weights, model.trainable_variables, model.count_params()) == ([], [], 0)
    with pytest.raises(ValueError, match="images must have 1 channels"):
        layer.set_preprocessing(MEAN[:1])


def test_layers_of_unknown_channels_do_not_normalize():
    layer, images = keras_vit.Preprocessing(MEAN, STD), np.zeros((2, 8, 12, 3), "float32")
    inputs = keras.Input((8, 12, None))
    model = keras.Model(inputs, layer(inputs))
    assert not model.variables
    np.testing.assert_array_equal(model(images), images)
    assert_close(layer.to_pixels(images), np.broadcast_to(MEAN, images.shape))


def test_layer_passes_pixels_on_unless_told():
    pixels = _pixels(2, 8, 12, 3).astype("float32")
    np.testing.assert_array_equal(to_numpy(keras_vit.Preprocessing()(pixels)), pixels)


def test_layer_is_float32_unless_told_otherwise():
    # In bfloat16, pixels 128 to 255 would lose their last bit, and their quotients would lose more.
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = keras_vit.Preprocessing(normalize=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert keras.backend.standardize_dtype(layer(_pixels(2, 8, 12, 3)).dtype) == layer.compute_dtype == "float32"
    assert layer(keras.KerasTensor((2, 8, 12, 3))).dtype == "float32"
    assert_close(layer(_pixels(2, 8, 12, 3)), _pixels(2, 8, 12, 3) / 127.5 - 1)
    layer = keras_vit.Preprocessing(normalize=True, dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(_pixels(2, 8, 12, 3)).dtype) == "bfloat16"


def test_config_survives_tuples_and_arrays():
    layer = keras_vit.Preprocessing(mean=np.array(MEAN), std=tuple(STD), resize=(8, 12), crop=(4, 6))
    config = layer.get_config()
    assert [config[key] for key in ("mean", "std", "resize", "crop")] == [MEAN, STD, [8, 12], [4, 6]]
    assert keras_vit.Preprocessing.from_config(config).get_config() == config


def test_refused_arguments():
    with pytest.raises(ValueError, match=r"must be 'bilinear' or 'bicubic'\. Received: 'nearest'"):
        keras_vit.Preprocessing(interpolation="nearest")
    for std in (0.0, [0.2, 0.0, 0.2], -1, float("nan"), "0.5", [], 1e-320, 1e300):
        with pytest.raises(ValueError, match=r"std must be a number from 0\.0001 to 10000, or one for each channel"):
            keras_vit.Preprocessing(std=std)
    for mean in ([0.5, float("inf")], ["a"], [[0.5]], None, 1e300):
        with pytest.raises(ValueError, match="mean must be a number from -10000 to 10000, or one for each channel"):
            keras_vit.Preprocessing(mean=mean)
    for sides in ([0, 0], ["x", "3"], 0, 2.5, (1, 2, 3)):
        with pytest.raises(ValueError, match=r"resize must be None, or a number or \(height, width\)"):
            keras_vit.Preprocessing(resize=sides)
    with pytest.raises(ValueError, match=r"crop must be None, or \(height, width\)"):
        keras_vit.Preprocessing(crop=224)


def test_origin():
    origin = {"source": "somewhere", "licence": "mit", "checksum": None}
    assert keras_vit.Preprocessing(origin=origin).origin["licence"] == "MIT"
    assert keras_vit.Preprocessing(origin={**origin, "licence": "two\nlines"}).origin["licence"] is None
    for received in ("somewhere", {"source": "somewhere"}, {**origin, "name": "a"}):
        with pytest.raises(ValueError, match=r"origin must be None or .* with source, licence, checksum\. Received"):
            keras_vit.Preprocessing(origin=received)
    for name, value in (("source", None), ("licence", ["MIT"]), ("checksum", "7")):
        with pytest.raises(ValueError, match=rf"The {name} of origin must be .*Received: {re.escape(repr(value))}"):
            keras_vit.Preprocessing(origin={**origin, name: value})


@pytest.mark.parametrize("settings", [{"mean": MEAN}, {"std": STD}, {"mean": MEAN[:1]}])
def test_other_channels_than_means_are_refused(settings):
    channels = 3 if settings == {"mean": MEAN[:1]} else 1  # NumPy would broadcast both.
    images = _pixels(2, 8, 12, channels)
    for normalize in (True, False):
        layer = keras_vit.Preprocessing(**settings, normalize=normalize)
        for call in (layer, lambda images, layer=layer: layer(keras.KerasTensor(images.shape))):
            with pytest.raises(ValueError, match=rf"for each value of (mean|std)=.*shape \(2, 8, 12, {channels}\)"):
                call(images)
    inputs = keras.Input((8, 12, None))
    model = keras.Model(inputs, keras_vit.Preprocessing(**settings)(inputs))
    with pytest.raises(ValueError, match=rf"images must have . channels.*shape \(8, 12, {channels}\)"):
        keras_vit.preprocess_input(images[0], model)


@pytest.mark.combination("gray images for a model of RGB images that normalises them itself", "refused")
def test_other_channels_than_before_are_refused():
    for settings in ({}, {"mean": MEAN}):
        layer = keras_vit.Preprocessing(**settings, normalize=True)
        layer(_pixels(2, 8, 12, 3))
        for gray in (_pixels(2, 8, 12, 1), keras.KerasTensor((2, 8, 12, 1))):
            with pytest.raises(ValueError, match=r"images must have 3 channels.*shape \(2, 8, 12, 1\)"):
                layer(gray)
    with pytest.raises(ValueError, match=r"number of channels must be known.*shape \(None, 8, 12, None\)"):
        keras_vit.Preprocessing(normalize=True)(keras.Input((8, 12, None)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64"])
def test_preprocess_input_of_arrays(dtype):
    pixels = _pixels(2, 8, 12, 3)
    output = keras_vit.preprocess_input(pixels.astype(dtype))
    assert isinstance(output, np.ndarray)
    assert output.dtype == "float32"
    assert_close(output, pixels / 127.5 - 1)
    assert_close(keras_vit.preprocess_input(pixels[0].astype(dtype)), pixels[0] / 127.5 - 1)


def test_preprocess_input_of_tensors():
    tensor = keras.ops.convert_to_tensor(_pixels(2, 8, 12, 3))
    output = keras_vit.preprocess_input(tensor)
    assert keras.ops.is_tensor(output)
    assert_close(output, _pixels(2, 8, 12, 3) / 127.5 - 1)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow has tensors of unknown shape")
@pytest.mark.parametrize("shape", [None, [None] * 4])
def test_preprocess_input_of_tensors_of_unknown_shape(shape):
    import tensorflow as tf

    inputs = keras.Input((8, 12, 3))
    model = keras.Model(inputs, keras_vit.Preprocessing(mean=MEAN, std=0.5)(inputs))
    function = tf.function(functools.partial(keras_vit.preprocess_input, model=model), [tf.TensorSpec(shape, tf.uint8)])
    pixels = _pixels(2, 8, 12, 3)
    assert_close(function(pixels), (pixels / 255 - MEAN) / 0.5)


def test_preprocess_input_as_a_model_says():
    pixels = _pixels(2, 8, 12, 3)
    inputs = keras.Input((8, 12, 3))
    layer = keras_vit.Preprocessing(mean=MEAN, std=STD)
    model = keras.Model(inputs, layer(inputs))
    assert_close(keras_vit.preprocess_input(pixels, model), (pixels / 255 - MEAN) / STD)
    nested = keras.Sequential([keras.Input((8, 12, 3)), model])
    assert preprocessing_layer(nested) is layer
    assert_close(keras_vit.preprocess_input(pixels, nested), (pixels / 255 - MEAN) / STD)
    normalizing = make_shell(CONFIG, (8, 12, 3), include_preprocessing=True)
    np.testing.assert_array_equal(keras_vit.preprocess_input(pixels, normalizing), pixels.astype("float32"))


@pytest.mark.slow
@pytest.mark.combination("include_preprocessing=True or preprocess_input, uint8 or float images", "the same result")
def test_both_ways_to_normalize_give_the_same_result():
    pixels, arguments = _pixels(2, 8, 12, 3), {"input_shape": (8, 12, 3), "classes": 5}
    normalizing = randomize(keras_vit.ViT(CONFIG, include_preprocessing=True, **arguments))
    plain = keras_vit.ViT(CONFIG, **arguments)
    plain.set_weights(normalizing.get_weights())
    for model in (normalizing, plain):
        model.get_layer("preprocessing").set_preprocessing(mean=MEAN, std=STD)
    expected = to_numpy(normalizing(pixels))
    assert np.ptp(expected, axis=0).max() > 0.01  # The outputs depend on the images.
    for images in (pixels, pixels.astype("float32")):
        assert_close(normalizing(images), expected)
        assert_close(normalizing(keras_vit.preprocess_input(images, normalizing)), expected)
        assert_close(plain(keras_vit.preprocess_input(images, plain)), expected)


@pytest.mark.combination(
    "gray or RGBA images into preprocess_input of an RGB model", "refused; the message says how to convert them"
)
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 12), r"shape \(8, 12\)\.$"),
        ((2, 8, 12), r"\(H, W, 3\) or \(B, H, W, 3\)\. Received: images of shape \(2, 8, 12\)\.$"),
        ((2, 8, 12, 1), r"shape \(2, 8, 12, 1\)\. Convert gray images with np\.repeat\(images, 3, axis=-1\)"),
        ((8, 12, 4), r"shape \(8, 12, 4\)\. Leave out the alpha channel: images\[\.\.\., :3\]"),
        ((1, 2, 8, 12, 3), r"shape \(1, 2, 8, 12, 3\)"),
    ],
)
def test_preprocess_input_checks_shapes(shape, message):
    inputs = keras.Input((8, 12, 3))
    model = keras.Model(inputs, keras_vit.Preprocessing()(inputs))
    images = _pixels(*shape)
    for received in (images, keras.ops.convert_to_tensor(images)):
        with pytest.raises(ValueError, match=message):
            keras_vit.preprocess_input(received, model)
    if len(shape) in (3, 4):  # Without a model, the number of channels is unknown.
        assert keras_vit.preprocess_input(images).shape == shape
    else:
        with pytest.raises(ValueError, match=r"\(H, W, C\) or \(B, H, W, C\)"):
            keras_vit.preprocess_input(images)


def test_preprocess_input_of_other_objects():
    for received, dtype in (([["a.jpg"]], "str"), (None, "object"), (np.zeros((8, 12, 3), bool), "bool")):
        with pytest.raises(TypeError, match=f"must be integers or floats in .0, 255.* of type {dtype}"):
            keras_vit.preprocess_input(received)
    assert keras_vit.preprocess_input(_pixels(0, 8, 12, 3)).shape == (0, 8, 12, 3)


@pytest.mark.combination("pixels in [0, 1] or [-1, 1] into preprocess_input", "a warning")
def test_preprocess_input_warns_of_scaled_pixels():
    pixels = _pixels(2, 8, 12, 3)
    for scaled, largest in ((pixels / 255, "1"), ((pixels / 127.5 - 1).astype("float32"), "1"), (pixels / 510, "0.5")):
        with pytest.warns(UserWarning, match=rf"from 0 to 255, but the largest value of these images is {largest}\. "):
            keras_vit.preprocess_input(scaled)
    with warnings.catch_warnings(action="error"):
        for images in (
            pixels,
            pixels * 1.0,
            np.zeros((8, 12, 3)),
            np.ones((8, 12, 3), "uint8"),
            np.zeros((0, 8, 12, 3)),
        ):
            keras_vit.preprocess_input(images)


def test_preprocess_input_needs_one_preprocessing_layer():
    model = keras.Sequential([keras.Input((8, 12, 3)), keras.layers.Flatten()], name="other")
    with pytest.raises(ValueError, match="has one Preprocessing layer, but 'other' has 0"):
        keras_vit.preprocess_input(_pixels(2, 8, 12, 3), model)
    layers = [keras_vit.Preprocessing(), keras_vit.Preprocessing()]
    with pytest.raises(ValueError, match="'twice' has 2"):
        preprocessing_layer(keras.Sequential([keras.Input((8, 12, 3)), *layers], name="twice"))
