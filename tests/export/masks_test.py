"""Segmentation models are served with masks as outputs."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import functions
from keras_vit.export.parity import PHOTOGRAPHS, compare_masks
from tests.models.segmenters import BACKBONE, tiny_segmenter
from tests.test_case import TENSORFLOW, assert_close, random_model, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
SIZE = (26, 37)
IMAGES = sorted(PHOTOGRAPHS.glob("*.jpg"))
LABELS = ["ground", "road", "sky", "tree", "car"]


def tiny(function="VTFPN", size=SIZE, channels=3, **arguments):
    return random_model(tiny_segmenter(function, (*size, channels), **{"stage_depths": (1, 1), **arguments}))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(model, its loaded export, folder)"""
    import tensorflow as tf

    model = tiny("PanopticFPN")
    path = tmp_path_factory.mktemp("models") / "streets"
    folder = keras_vit.export_saved_model(model, path, labels=LABELS, images=IMAGES[:2])
    return model, tf.saved_model.load(str(folder)), folder


def _assert_masks(outputs, probabilities):
    mask, score = outputs["mask"].numpy(), to_numpy(outputs["score"])
    best = probabilities.max(-1)
    assert mask.shape == probabilities.shape[:-1]
    assert_close(score, best)
    # If two classes have the same probability, either is correct.
    assert_close(np.take_along_axis(probabilities, mask[..., None].astype(int), -1)[..., 0], best)
    assert (mask == probabilities.argmax(-1)).mean() > 0.99
    assert len(np.unique(mask)) > 1


@pytest.mark.slow
@tensorflow_only
def test_signatures_and_what_is_known_of_the_model(exported):
    model, loaded, path = exported
    pixel_signatures = {
        "predict_pixels": ("uint8", {"mask", "score"}),
        "predict_pixels_float": ("float32", {"mask", "score", "valid"}),
    }
    for name, (dtype, outputs) in pixel_signatures.items():
        [spec] = loaded.signatures[name].structured_input_signature[1].values()
        assert (spec.shape.as_list(), spec.dtype.name) == ([None, *SIZE, 3], dtype)
        assert set(loaded.signatures[name].structured_outputs) == outputs
    facts = json.loads((path / "keras_vit.json").read_text())
    assert (facts["output"]["kind"], facts["classes"], facts["labels"]) == ("class_map", 5, LABELS)
    assert facts["config"] == keras_vit.describe(model).config.to_dict()
    assert facts["options"]["batch_sizes"] == [1, 4]
    assert (path / "assets" / "labels.txt").read_text().splitlines() == LABELS
    assert set(loaded.signatures) == set(facts["signatures"])
    assert set(facts["parity"]["max_difference"]) == set(loaded.signatures) - {"predict_original"}
    assert 0 <= max(facts["parity"]["max_difference"].values()) <= 1e-5
    assert facts["parity"]["images"] == 2
    assert facts["parity"]["top_1_agreement"] > 0.999
    import tensorflow as tf

    # Each signature with each batch size.
    requests = tf.data.TFRecordDataset(str(path / "assets.extra" / "tf_serving_warmup_requests"))
    assert len(list(requests)) == 8


def _signatures(model, labels=None, image_size=None, jit_compile=False):
    labels = labels or [str(index) for index in range(model.output_shape[-1])]
    return functions.build_signatures(
        model,
        [],
        ["serving_default", "predict_pixels", "predict_pixels_float"],
        labels,
        top_k=1,
        jit_compile=jit_compile,
        image_size=image_size,
        max_image_pixels=10_000,
        batch_sizes=(1, 2),
    )


@tensorflow_only
@pytest.mark.combination("`predict_pixels_float` with NaN, infinity, -1, 256, 1e30", "`valid` is `False`")
def test_invalid_pixels_in_a_mask_of_8_bits(tmp_path):
    """With 255 classes, a mask has 8 bits, and 255 marks an image that is invalid."""
    import tensorflow as tf

    images = np.random.default_rng(0).uniform(0, 255, (2, *SIZE, 3)).astype("float32")
    images[0, 4, 5] = [-0.5, 255.5, 0]  # Rounding gives 0 and 255.
    bad = np.repeat(images[:1], 5, axis=0)
    bad[range(5), 4, 5, 1] = [np.nan, np.inf, -1, 256, 1e30]
    model = tiny("PanopticFPN", classes=255)
    with pytest.raises(ValueError, match="labels must be a list of names for the model's 255 classes"):
        keras_vit.export_saved_model(model, tmp_path, labels=LABELS)
    serve = _signatures(model)["predict_pixels_float"]
    assert serve(tf.constant(images[:0]))["mask"].shape == (0, *SIZE)
    outputs = serve(tf.constant(np.concatenate([images[:1], bad])))
    mask, score, valid = (outputs[name].numpy() for name in ("mask", "score", "valid"))
    assert (mask.dtype, valid.tolist()) == ("uint8", [True, *5 * [False]])
    assert (mask[1:] == 255).all()
    assert (score[1:] == 0).all()
    assert mask[0].max() < 255
    assert score[0].min() > 0


@tensorflow_only
def test_a_nested_model_of_any_size_that_ends_with_logits_of_many_classes(monkeypatch):
    """The decoder is replaced by one that chooses an image by the length of the file. Empty files are invalid."""
    import tensorflow as tf

    decoded, asked = np.random.default_rng(1).integers(0, 256, (3, 32, 40, 1)).astype("uint8"), []

    def batch_decoder(model, *options):
        asked.append(options)
        return lambda files: (tf.gather(decoded, tf.strings.length(files)), tf.strings.length(files) > 0)

    monkeypatch.setattr(functions, "batch_decoder", batch_decoder)
    arguments = {"classes": 256, "classifier_activation": None, "include_preprocessing": True, "channels": 1}
    inner = tiny("PanopticFPN", size=(None, None), **arguments)
    inputs = keras.Input((None, None, 1))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 21, 34, 1)).astype("uint8")
    logits = to_numpy(inner(pixels))
    bias, means = inner.get_layer("predictions").bias, logits.mean((0, 1, 2))
    bias.assign(bias - means)  # No class may dominate everywhere.
    served = _signatures(keras.Model(inputs, inner(inputs)), image_size=(32, 40))
    expected = to_numpy(keras.ops.softmax(logits - means))
    _assert_masks(served["predict_pixels"](tf.constant(pixels)), expected)
    assert served["predict_pixels"](tf.constant(pixels[:0]))["mask"].shape == (0, 21, 34)
    assert asked == [((32, 40), 10_000)]
    outputs = served["serving_default"](tf.constant(["a", "", "bc"]))
    good = {name: tf.gather(outputs[name], [0, 2]) for name in ("mask", "score")}
    _assert_masks(good, to_numpy(keras.ops.softmax(inner(decoded[1:]))))
    bad = outputs["mask"].numpy()[1]
    assert (bad.shape, bad.dtype) == ((32, 40), "int32")
    assert (bad == -1).all()


@pytest.mark.usefixtures("eagerly")
def test_the_difference_of_masks():
    model = tiny("PanopticFPN")
    pixels = np.random.default_rng(0).integers(0, 256, (3, *SIZE, 3)).astype("uint8")
    known = model.predict(keras_vit.preprocess_input(pixels, model), verbose=0)
    right = np.stack([known.argmax(-1), known.max(-1)], axis=-1)
    second = np.argsort(known[0, 4, 5])[-2]
    other_class, other_score = right.copy(), right[:2].copy()
    other_class[0, 4, 5] = second, known[0, 4, 5, second]  # The score is right, but the class is not the best.
    other_score[1, 2, 3, 1] += 0.125
    answers = {"serving_default": other_class, "predict_pixels": right, "predict_pixels_float": other_score}
    parity = compare_masks(model, pixels, answers)
    assert parity.images == 3
    assert parity.top_1_agreement == pytest.approx(1 - 1 / (3 * SIZE[0] * SIZE[1]))
    assert parity.predicted_classes == np.unique(known.argmax(-1)).tolist()
    margin = known[0, 4, 5].max() - known[0, 4, 5, second]
    assert margin > 1e-4
    expected = {"serving_default": margin, "predict_pixels": 0, "predict_pixels_float": 0.125}
    assert parity.max_difference == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="'serving_default' by"):
        parity.check(exact=True, tolerance=1e-5, min_agreement=0.5)


@pytest.mark.slow
def test_refused_models(tmp_path):
    for model in (
        tiny("PanopticFPN", classes=1, classifier_activation="sigmoid"),
        keras_vit.ResNet("R18", include_top=False, pooling=None, input_shape=(32, 32, 3), **BACKBONE),
    ):
        with pytest.raises(ValueError, match="at least two classes for each pixel"):
            keras_vit.export_saved_model(model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize(
    ("name", "format", "function", "size"),
    [("model.tflite", "litert", "VTFPN", SIZE), ("model.xml", "openvino", "PanopticFPN", (None, None))],
)
def test_files_of_other_runtimes(name, format, function, size, tmp_path):
    written = keras_vit.export_model(tiny(function, size), tmp_path / name, format)
    assert written.max_difference <= 1e-5
    assert written.top_1_agreement > 0.999
