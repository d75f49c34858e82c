import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.parity import Parity, compare, computes_in_float32, full_precision, verified
from tests.models.tiny import tiny_model
from tests.test_case import TENSORFLOW, quantize, randomize, to_numpy


@pytest.mark.usefixtures("eagerly")
def test_the_difference_of_each_signature():
    """The model returns logits."""
    model = randomize(tiny_model(num_layers=1), scale=0.5)
    pixels = np.random.default_rng(0).integers(0, 256, (5, *model.input_shape[1:])).astype("uint8")
    images = keras_vit.preprocess_input(pixels, model)
    probabilities = to_numpy(keras.ops.softmax(model.predict(images, verbose=0)))
    known = keras_vit.features(model, images, ["pooling", "encoder_norm"])
    answers = {
        "serving_default": probabilities,
        "predict_pixels": probabilities[:3] + np.array([0, 0.125, 0, 0, 0]),
        "embed": known["pooling"][:2] * 1.5,
        "tokens": known["encoder_norm"],
        "explain": keras_vit.attention_rollout(model, images),
    }
    parity = compare(model, pixels, answers)
    assert parity.images == 5
    expected = {"serving_default": 0, "predict_pixels": 0.125, "embed": 0.5, "tokens": 0, "explain": 0}
    assert parity.max_difference == pytest.approx(expected, abs=1e-5)
    assert parity.top_1_agreement == 1
    assert parity.predicted_classes == sorted(set(probabilities.argmax(axis=1)))
    negative = model.predict(keras_vit.preprocess_input(255 - pixels[:1], model), verbose=0)
    effect = np.abs(to_numpy(keras.ops.softmax(negative)) - probabilities).max()
    assert parity.effect == pytest.approx(effect, abs=1e-5)
    assert effect > 0.05
    other = np.roll(probabilities, 1, axis=1)
    half = np.concatenate([probabilities[:3], other[3:]])
    assert compare(model, pixels, {"serving_default": half}).top_1_agreement == pytest.approx(0.6)


@pytest.mark.each_backend
def test_products_are_of_all_bits_of_float32():
    """Without the context, products have full precision on CPUs only."""
    before = _precision()
    with full_precision():
        assert _precision() in (False, "highest", None)
    with pytest.raises(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert _precision() == before


def _precision():
    """Whether TensorFlow multiplies with reduced precision, or the precision of products in JAX."""
    if TENSORFLOW:
        import tensorflow as tf

        return tf.config.experimental.tensor_float_32_execution_enabled()
    if keras.backend.backend() == "jax":
        import jax

        return jax.config.jax_default_matmul_precision
    return None


def test_check():
    def check(**differences):
        Parity(8, differences, 1.0, 1.0, [0]).check(exact=True, tolerance=1e-5, min_agreement=0.0)

    check(serving_default=1e-5, embed=1e-4)
    for differences, message in (
        ({"serving_default": 2e-5}, "'serving_default' by 2.0e-05 on 8 images, but at most 1e-05 is allowed"),
        ({"predict_pixels": 2e-5, "embed": 0.0}, "'predict_pixels' by 2.0e-05"),
        ({"serving_default": 0.0, "embed": 2e-4}, "'embed' by 2.0e-04 on 8 images, but at most 1e-04 is allowed"),
        ({"serving_default": 0.0, "tokens": float("nan")}, "'tokens' by nan"),
    ):
        with pytest.raises(ValueError, match=message):
            check(**differences)
    with pytest.raises(ValueError, match="'embed' by nan"):
        Parity(8, {"serving_default": 0.0, "embed": float("nan")}, 1.0, 1.0, [0]).check(False, 0.0, 0.0)
    Parity(8, {"serving_default": 9e-5}, 1.0, 1.0, [0], has_pixels=True).check(True, 1e-5, 0.0)
    smaller = Parity(8, {"serving_default": 0.1}, 0.875, 1.0, [0])
    smaller.check(exact=False, tolerance=0.0, min_agreement=0.875)
    with pytest.raises(ValueError, match=r"87.5% of 8 images, but min_agreement=0.9 requires 90.0%"):
        smaller.check(exact=False, tolerance=0.0, min_agreement=0.9)


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_a_fresh_classifier_hides_no_mistake(tmp_path):
    """A new classifier has constant probabilities, so a second export with another classifier is compared too."""
    model = tiny_model(num_layers=1, distillation_token=True, classifier_activation="softmax")
    pixels = np.random.default_rng(0).integers(0, 256, (3, *model.input_shape[1:])).astype("uint8")
    folders = []

    def write(model, folder, answered=pixels):
        folders.append(folder)
        answers = model.predict(keras_vit.preprocess_input(answered, model), verbose=0)
        return compare(model, pixels, {"serving_default": answers})

    parity = verified(write, model, tmp_path, True, 1e-5, 1.0)
    assert parity.max_difference["serving_default"] < 1e-5
    assert parity.effect > 1e-3
    assert folders[0] == tmp_path != folders[1]
    for layer in ("predictions", "distillation_predictions"):
        assert not to_numpy(model.get_layer(layer).kernel).any()  # The model's own classifier is unchanged.
    with pytest.raises(
        ValueError, match=r"export differ from the model's: 'serving_default' by .*Nothing was exported"
    ):
        verified(lambda *arguments: write(*arguments, 255 - pixels), model, tmp_path, True, 1e-5, 1.0)


@pytest.mark.usefixtures("eagerly")
def test_a_model_that_looks_at_no_image_cannot_be_compared(tmp_path):
    model = randomize(tiny_model(num_layers=1), scale=0)
    pixels = np.zeros((1, *model.input_shape[1:]), "uint8")

    def write(model, folder):
        return compare(model, pixels, {"serving_default": np.full((1, 5), 0.2)})

    with pytest.raises(ValueError, match=r"output does not depend on the image: .* 0\.0e\+00, .*Nothing was exported"):
        verified(write, model, tmp_path, True, 1e-5, 1.0)


def test_computes_in_float32():
    model = tiny_model(num_layers=1)
    assert computes_in_float32(model)
    quantize(model, "int8", filters="hidden")
    assert not computes_in_float32(model)
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        mixed = tiny_model(num_layers=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert not computes_in_float32(mixed)
    assert not computes_in_float32(keras.Sequential([keras.Input(mixed.input_shape[1:]), mixed]))
