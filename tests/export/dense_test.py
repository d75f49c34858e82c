"""Exports of models that predict something for each pixel: depth, normals, and masks of objects."""

import itertools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from pycocotools import mask as run_lengths

import keras_vit
from keras_vit.export import functions, in_parts
from keras_vit.export.answers import ANSWERS
from keras_vit.export.parity import PHOTOGRAPHS, compare
from keras_vit.export.signatures import check_output, check_signatures
from keras_vit.heads import segments
from keras_vit.resampling import resize_matrix
from tests.export.model_cards_test import run_code
from tests.pictures import encoded, exif_segment, picture
from tests.test_case import TENSORFLOW, assert_close, randomize, rest_slow, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
CONFIG = keras_vit.ViTConfig(8, 24, num_layers=4, num_heads=3, mlp_dim=32, layer_scale=1.0)
SIZE, SHAPE = (40, 56), (40, 56, 3)
NAMES = ["ant", "bee", "cat", "dog", "elk"]


def eomt():
    head = keras_vit.heads.EoMTHead(num_queries=7, num_blocks=1, num_upscales=1)
    model = keras_vit.Segmenter(CONFIG, head, classes=5, input_shape=SHAPE, include_preprocessing=True)
    randomize(model, scale=0.5)
    randomize(model.get_layer("predictions"), scale=1.5)  # Some probabilities are almost 1.
    return model


def depth():
    head = keras_vit.heads.DPTHead(features=8, widths=(4, 6, 8, 10))
    return randomize(keras_vit.DepthEstimator(CONFIG, head, max_depth=10.0, input_shape=SHAPE), scale=0.15)


def linear():
    return randomize(keras_vit.Segmenter(CONFIG, "linear", classes=5, input_shape=SHAPE), scale=0.5)


MODELS = [(eomt, "masks", None), (depth, "depth", ["metres"])]
OUTPUTS = [(depth, {"depth": (1, *SIZE)}), (eomt, {"masks": (1, 10, 14, 7), "objects": (1, 7, 6)})]


def resized(maps, size):
    """Maps (..., h, w), resized bilinearly in float64."""
    down, right = (resize_matrix(*pair, "bilinear") for pair in zip(maps.shape[-2:], size, strict=True))
    return down @ maps @ right.T


def random_masks():
    """Discs and confident objects of one image: logits (1, 10, 14, 7) and (1, 7, 6)."""
    rng, (rows, columns) = np.random.default_rng(0), np.mgrid[:10, :14][..., None]
    discs = 7 - (rows - rng.uniform(0, 10, 7)) ** 2 - (columns - rng.uniform(0, 14, 7)) ** 2
    masks, objects = discs + rng.normal(size=(10, 14, 7)), 9 * rng.normal(size=(7, 6))
    masks[..., 3], objects[4, :5] = -abs(masks[..., 3]), -40  # A mask without pixels, and a query without an object.
    return masks[None].astype("float32"), objects[None].astype("float32")


@tensorflow_only
@pytest.mark.parametrize("size", [(23, 61), (9, 5)])
def test_pixels_of_an_original_image(size, monkeypatch):
    """Several strips, the last of which has fewer rows."""
    monkeypatch.setattr(in_parts, "_STRIP_VALUES", 5 * 4 * size[1])
    maps = np.random.default_rng(0).normal(size=(1, 10, 14, 4)).astype("float32")
    full = resized(maps.transpose(0, 3, 1, 2), size)[0].transpose(1, 2, 0)
    for kind, outputs, expected in (
        ("class_map", {"probabilities": maps}, {"mask": full.argmax(axis=-1), "score": full.max(axis=-1)}),
        ("normals", {"normals": maps[..., :3]}, {"normals": full[..., :3]}),
        ("depth", {"depth": maps[..., 0]}, {"depth": full[..., 0]}),
    ):
        found = in_parts.predict_original(ANSWERS[kind], None, SIZE, outputs, tf.constant(size))
        keras.tree.map_structure(assert_close, found, expected)


@tensorflow_only
@pytest.mark.parametrize(
    ("signature", "is_thing"), [("instances", None), ("panoptic", None), ("panoptic", [False] * 5)]
)
def test_objects_as_run_lengths(signature, is_thing, monkeypatch):
    """Masks are resized to the input size, and then to that of the image. pycocotools decodes the run lengths."""
    (masks, objects), size = random_masks(), (61, 33)
    monkeypatch.setattr(in_parts, "_STRIP_VALUES", 4 * 7 * size[1])
    full = segments.resized(masks, SIZE, size)
    options = {} if is_thing is None else {"is_thing": is_thing}
    inside, classes, scores = (to_numpy(each)[0] for each in getattr(segments, signature)(full, objects, **options))
    if signature == "instances":
        is_kept = inside.any(axis=(0, 1)) & (to_numpy(keras.ops.softmax(objects))[0, :, :-1].max(axis=-1) >= 0.05)
    else:
        inside, is_kept = inside[..., None] == np.arange(7), scores > 0
    queries = sorted(np.flatnonzero(is_kept), key=lambda query: -scores[query])
    outputs = {"masks": masks, "objects": objects}
    found = in_parts.MEANINGS[signature](None, is_thing, SIZE, outputs, tf.constant(size))
    assert 1 < len(queries) < 7
    np.testing.assert_array_equal(found["classes"], classes[queries])
    assert_close(found["scores"], scores[queries])
    for query, counts in zip(queries, found["counts"], strict=True):
        code = run_lengths.frPyObjects({"size": [*size], "counts": counts.numpy().tolist()}, *size)
        np.testing.assert_array_equal(run_lengths.decode(code), inside[..., query])
    nothing = outputs | {"objects": tf.one_hot([[5] * 7], 6) * 99}
    assert in_parts.MEANINGS[signature](None, is_thing, SIZE, nothing, tf.constant(size))["counts"].shape[0] == 0


FILES = [encoded(picture(30, 64), "PNG"), b"no image", encoded(picture(61, 20), "JPEG", exif=exif_segment(6, ">"))]
"""Files of 30 x 64 pixels and, after the rotation of EXIF, 20 x 61 pixels. The second one cannot be read."""
SIZES = [(30, 64), (0, 0), (20, 61)]


@tensorflow_only
def test_outputs_of_a_batch_are_padded(monkeypatch):
    monkeypatch.setattr(functions, "upright_size", lambda files: tf.constant(SIZES))
    outputs = functions._in_original(
        lambda image, size: {"classes": tf.range(size[0] // 10), "mask": tf.ones(size, tf.int32)},
        lambda files: (tf.zeros([3, 4, 5, 3]), tf.constant([True, False, True])),
        tf.constant(FILES),
    )
    mask, classes = np.full((3, 30, 64), -1), [[0, 1, 2], [-1, -1, -1], [0, 1, -1]]
    mask[0] = mask[2, :20, :61] = 1
    expected = {"mask": mask, "classes": classes, "num_objects": [3, 0, 2], "sizes": SIZES}
    np.testing.assert_equal({name: outputs[name].numpy() for name in expected}, expected)


@tensorflow_only
def test_signatures_of_masks():
    """`predict_pixels_float` of a valid and an invalid image, and of no image."""
    options = {"top_k": 5, "jit_compile": False, "image_size": None, "max_image_pixels": 10_000, "batch_sizes": (1, 2)}
    model = eomt()
    [serve] = functions.build_signatures(model, [], ["predict_pixels_float"], NAMES, **options).values()
    pixels = np.random.default_rng(1).uniform(0, 255, (3, *SHAPE)).astype("float32")
    pixels[1, 2, 3] = np.nan
    outputs = {name: each.numpy() for name, each in serve(tf.constant(pixels)).items()}
    logits = {name: to_numpy(each) for name, each in model(pixels[::2]).items()}
    _, classes, scores = map(to_numpy, segments.instances(*logits.values()))
    for name, expected in (logits | {"scores": scores, "classes": classes}).items():
        np.testing.assert_allclose(outputs[name][::2], expected, rtol=1e-4, atol=1e-4)
        assert (outputs[name][1] == (-1 if name == "classes" else 0)).all()
    assert outputs["labels"][2].tolist() == [NAMES[int(label)].encode() for label in classes[1]]
    assert not any(outputs["labels"][1])
    assert serve(tf.constant(pixels[:0]))["masks"].shape == (0, 10, 14, 7)
    maps = ANSWERS["masks"].maps({name: each[:1] for name, each in logits.items()}, SIZE)
    expected = segments.semantic_scores(segments.resized(logits["masks"], SIZE), logits["objects"])
    assert_close(maps[0], to_numpy(expected)[0])


def test_what_is_exported():
    common = ["serving_default", "predict_pixels", "predict_pixels_float", "predict_original"]
    for model, names in ((depth(), common), (eomt(), [*common, "instances", "panoptic"])):
        check_output(model)
        assert check_signatures(model, None) == names
    only_masks = keras.Model(model.input, model.output["masks"])
    for model, kind, shape in ((only_masks, "masks", "(None, 10, 14, 7)"), (linear(), "depth", "(None, 40, 56, 5)")):
        keras_vit.set_output(model, kind)
        with pytest.raises(ValueError, match=re.escape(f"returns {kind} of shape {shape}")):
            check_output(model)


@pytest.mark.usefixtures("eagerly")
def test_differences_of_depth_and_masks():
    pixels, model = np.random.default_rng(0).integers(0, 256, (3, *SHAPE)).astype("uint8"), depth()
    known = to_numpy(model(keras_vit.preprocess_input(pixels, model)))[..., 0]
    changes = np.reshape([0.1 * np.ptp(known), 0, 0], (3, 1, 1))
    parity = compare(model, pixels, {"serving_default": known + changes})
    assert parity.top_1_agreement == pytest.approx(2 / 3)
    assert parity.max_difference["serving_default"] == pytest.approx(0.1 * np.ptp(known) / known.max(), rel=1e-3)
    maps = np.ones((2, 4, 5)) * np.linspace(0, 1, 5) * [[[1]], [[10]]]
    assert ANSWERS["depth"].agreement([maps + 0.06], [maps], None) == 0.5  # Each image has its own range.
    model = eomt()
    outputs = {name: to_numpy(each) for name, each in model(pixels.astype("float32")).items()}
    other = outputs | {"objects": np.roll(outputs["objects"], 1, axis=-1)}
    classes, changed = (to_numpy(segments.semantic_scores(*each.values())).argmax(axis=-1) for each in (outputs, other))
    parity = compare(model, pixels, {"serving_default": other})
    assert parity.top_1_agreement == pytest.approx((classes == changed).mean())
    assert (parity.has_values, parity.predicted_classes) == (True, np.unique(classes).tolist())
    assert parity.max_difference["serving_default"] > 0.1
    randomize(model.get_layer("predictions"), scale=0)  # The objects do not depend on the image any more.
    assert compare(model, pixels, {"serving_default": outputs}).effect == 0 < parity.effect


@tensorflow_only
@pytest.mark.parametrize("case", rest_slow(itertools.product(["float32", "bfloat16", "int8"], MODELS)))
def test_saved_models(case, tmp_path):
    precision, (make, kind, units) = case
    options = {"precision": precision, "min_agreement": 0.9, "images": sorted(PHOTOGRAPHS.glob("*.jpg")), "card": True}
    options |= {} if precision == "int8" else {"signatures": ["serving_default", "predict_original"]}
    folder = keras_vit.export_saved_model(make(), tmp_path, **options)
    facts, card = json.loads((folder / "keras_vit.json").read_text()), (folder / "README.md").read_text()
    assert facts["output"] == {"kind": kind, "activation": None, "units": units}
    assert facts["labels"] == (["depth"] if kind == "depth" else ["0", "1", "2", "3", "4"])
    assert ("pipeline_tag: depth-estimation" in card, "| classes | 5 |" in card) == (kind == "depth", kind == "masks")


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize(("make", "shapes"), OUTPUTS)
@pytest.mark.parametrize(("format", "suffix"), [("onnx", "onnx"), ("litert", "tflite"), ("openvino", "xml")])
def test_files_of_other_runtimes(make, shapes, format, suffix, tmp_path, monkeypatch):
    model, images = make(), np.random.default_rng(0).integers(0, 256, (12, *SHAPE)).astype("uint8")
    written = keras_vit.export_model(model, tmp_path / f"a.{suffix}", format, images=images, card=True)
    assert written.max_difference < 1e-5
    _, _, names = run_code(tmp_path, monkeypatch)
    assert all(names[name].shape == shape for name, shape in shapes.items())
    options = {"images": images, "precision": "int8", "min_agreement": 0.9}
    smaller = keras_vit.export_model(model, tmp_path / f"b.{suffix}", format, **options)
    assert 0 < smaller.max_difference < 0.3
