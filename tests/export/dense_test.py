"""Exports of models that predict something for each pixel: depth, normals, and masks of objects."""

import json

import keras
import numpy as np
import pytest
from pycocotools import mask as run_lengths

import keras_vit
from keras_vit.export.answers import ANSWERS
from keras_vit.export.parity import PHOTOGRAPHS, compare
from keras_vit.export.signatures import check_output, check_signatures
from keras_vit.heads import segments
from keras_vit.resampling import resize_matrix
from tests.export.model_cards_test import run_code
from tests.pictures import encoded, exif_segment, picture
from tests.test_case import TENSORFLOW, assert_close, randomize, to_numpy

tensorflow_only = pytest.mark.skipif(not TENSORFLOW, reason="elsewhere_test.py tests other backends")
CONFIG = keras_vit.ViTConfig(8, 24, num_layers=4, num_heads=3, mlp_dim=32, layer_scale=1.0)
SIZE, SHAPE = (40, 56), (40, 56, 3)
NAMES = ["ant", "bee", "cat", "dog", "elk"]


def eomt():
    head = keras_vit.heads.EoMTHead(num_queries=7, num_blocks=1, num_upscales=1)
    model = keras_vit.Segmenter(CONFIG, head, classes=5, input_shape=SHAPE, include_preprocessing=True)
    randomize(model, scale=0.5)
    kernel = model.get_layer("predictions").kernel
    kernel.assign(3 * kernel)  # Some probabilities are almost 1.
    return model


def depth(**changes):
    head = keras_vit.heads.DPTHead(features=8, widths=(4, 6, 8, 10))
    model = keras_vit.DepthEstimator(CONFIG, head, **{"max_depth": 10.0, "input_shape": SHAPE} | changes)
    return randomize(model, scale=0.15)


def linear():
    return randomize(keras_vit.Segmenter(CONFIG, "linear", classes=5, input_shape=SHAPE), scale=0.5)


def resized(maps, *sizes):
    """Maps (..., h, w) resized bilinearly to each size in turn, in float64."""
    for size in sizes:
        down, right = (resize_matrix(*pair, "bilinear") for pair in zip(maps.shape[-2:], size, strict=True))
        maps = down @ maps @ right.T
    return maps


def decoded(counts, size):
    """The mask (H, W) of COCO's run lengths."""
    return run_lengths.decode(run_lengths.frPyObjects({"size": [*size], "counts": counts.tolist()}, *size)) > 0


def random_masks(seed=0):
    """Discs and confident objects of one image: logits (1, 10, 14, 7) and (1, 7, 6)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:10, :14][..., None]
    masks = (
        7 - (rows - rng.uniform(0, 10, 7)) ** 2 - (columns - rng.uniform(0, 14, 7)) ** 2 + rng.normal(size=(10, 14, 7))
    )
    objects = rng.normal(size=(7, 6)) * 9
    masks[..., 3], objects[4, :5] = -abs(masks[..., 3]), -40  # A mask without pixels, and a query without an object.
    return masks[None].astype("float32"), objects[None].astype("float32")


@tensorflow_only
@pytest.mark.parametrize("size", [(23, 61), (9, 5)])
def test_pixels_of_an_original_image(size, monkeypatch):
    """Several strips, the last of which has fewer rows."""
    import tensorflow as tf

    from keras_vit.export import in_parts

    monkeypatch.setattr(in_parts, "_STRIP_VALUES", 5 * 4 * size[1])
    maps = np.random.default_rng(0).normal(size=(1, 10, 14, 4)).astype("float32")
    expected = resized(maps.transpose(0, 3, 1, 2), size)[0].transpose(1, 2, 0)
    found = in_parts.predict_original(ANSWERS["class_map"], NAMES[:4], SIZE, {"probabilities": maps}, tf.constant(size))
    np.testing.assert_array_equal(found["mask"], expected.argmax(axis=-1))
    assert_close(found["score"], expected.max(axis=-1))
    found = in_parts.predict_original(ANSWERS["normals"], "xyz", SIZE, {"normals": maps[..., :3]}, tf.constant(size))
    assert_close(found["normals"], expected[..., :3])
    found = in_parts.predict_original(ANSWERS["depth"], ["d"], SIZE, {"depth": maps[..., 0]}, tf.constant(size))
    assert_close(found["depth"], expected[..., 0])


@tensorflow_only
def test_instances_as_run_lengths():
    """Masks are resized to the input size, and then to that of the image."""
    import tensorflow as tf

    from keras_vit.export import in_parts

    masks, objects = random_masks()
    size = (61, 33)
    outputs = {"masks": tf.constant(masks), "objects": tf.constant(objects)}
    found = in_parts.instances(None, NAMES, SIZE, outputs, tf.constant(size))
    probabilities = to_numpy(keras.ops.softmax(objects))[0, :, :-1]
    expected = {}
    for query, mask in enumerate(resized(masks[0].transpose(2, 0, 1), SIZE, size)):
        inside = mask > 0
        if inside.any() and probabilities[query].max() >= 0.05:
            score = probabilities[query].max() * (1 / (1 + np.exp(-mask[inside]))).mean()
            expected[score] = inside, probabilities[query].argmax()
    scores = sorted(expected, reverse=True)
    assert len(scores) == 5
    assert_close(found["scores"], scores)
    for i, score in enumerate(scores):
        inside, label = expected[score]
        counts = found["counts"][i].numpy()
        assert (found["classes"][i], found["num_counts"][i]) == (label, len(counts))
        np.testing.assert_array_equal(decoded(counts, size), inside)


@tensorflow_only
def test_panoptic_segments_as_run_lengths(monkeypatch):
    import tensorflow as tf

    from keras_vit.export import in_parts

    masks, objects = random_masks(3)
    size = (31, 47)
    monkeypatch.setattr(in_parts, "_STRIP_VALUES", 4 * 7 * size[1])
    outputs = {"masks": tf.constant(masks), "objects": tf.constant(objects)}
    found = in_parts.panoptic(None, NAMES, SIZE, outputs, tf.constant(size))
    regions, classes, scores = segments.panoptic(segments.resized(masks, SIZE, size), objects)
    queries = sorted(np.flatnonzero(to_numpy(scores)[0]), key=lambda query: -to_numpy(scores)[0, query])
    assert len(queries) > 1
    for i, query in enumerate(queries):
        np.testing.assert_array_equal(decoded(found["counts"][i].numpy(), size), to_numpy(regions)[0] == query)
    np.testing.assert_array_equal(found["classes"], to_numpy(classes)[0, queries])
    assert_close(found["scores"], to_numpy(scores)[0, queries])
    nothing = {"masks": outputs["masks"], "objects": tf.zeros_like(outputs["objects"])}
    assert in_parts.panoptic(None, NAMES, SIZE, nothing, tf.constant(size))["counts"].shape[0] == 0


def _signatures(model, names):
    from keras_vit.export.functions import build_signatures

    options = {"top_k": 5, "jit_compile": False, "image_size": None, "max_image_pixels": 10_000, "batch_sizes": (1, 2)}
    return build_signatures(model, [], names, NAMES, **options)


FILES = [encoded(picture(30, 64), "PNG"), b"no image", encoded(picture(61, 20), "JPEG", exif=exif_segment(6, ">"))]
"""Files of 30 x 64 pixels and, after the rotation of EXIF, 20 x 61 pixels. The second one cannot be read."""


@pytest.mark.slow
@tensorflow_only
def test_depth_in_pixels_of_the_original_images():
    """An image that cannot be read leaves the others alone."""
    import tensorflow as tf

    from keras_vit.data.decoding import image_decoder

    model = depth()
    outputs = _signatures(model, ["predict_original"])["predict_original"](tf.constant(FILES))
    assert outputs["valid"].numpy().tolist() == [True, False, True]
    assert outputs["sizes"].numpy().tolist() == [[30, 64], [0, 0], [20, 61]]
    assert outputs["depth"].shape == (3, 30, 64)
    for row, (file, (height, width)) in enumerate(zip(FILES, outputs["sizes"].numpy(), strict=True)):
        found = outputs["depth"].numpy()[row]
        assert not found[height:].any()
        assert not found[:, width:].any()
        if height:
            pixels = image_decoder(model)(file).numpy()
            expected = to_numpy(model(keras_vit.preprocess_input(pixels[None], model)))[0, ..., 0]
            assert np.ptp(expected) > 0.1
            assert_close(found[:height, :width], resized(expected, (height, width)))


@tensorflow_only
def test_objects_of_a_batch(monkeypatch):
    """The decoder is replaced by one that chooses an image by the length of the file. Empty files are invalid."""
    import tensorflow as tf

    from keras_vit.export import functions

    pixels = np.random.default_rng(1).integers(0, 256, (3, *SHAPE)).astype("uint8")
    sizes = tf.constant([[90, 99], [30, 47], [61, 20]], tf.int64)

    def decode(files):
        return tf.gather(pixels, tf.strings.length(files)), tf.strings.length(files) > 0

    monkeypatch.setattr(functions, "batch_decoder", lambda *arguments: decode)
    monkeypatch.setattr(functions, "upright_size", lambda files: tf.gather(sizes, tf.strings.length(files)))
    model = eomt()
    served = _signatures(model, ["serving_default", "predict_original", "instances"])
    files = tf.constant(["a", "", "bc"])
    outputs = {name: {key: each.numpy() for key, each in serve(files).items()} for name, serve in served.items()}
    logits = {name: to_numpy(each) for name, each in model(pixels[1:].astype("float32")).items()}
    raw, maps, found = outputs.values()
    for name, expected in logits.items():
        np.testing.assert_allclose(raw[name][[0, 2]], expected, rtol=1e-4, atol=1e-4)
        assert not raw[name][1].any()
    assert (raw["classes"][1] == -1).all()
    assert not raw["scores"][1].any()
    assert not any(raw["labels"][1])
    for row, size in ((0, (30, 47)), (2, (61, 20))):
        masks, objects = (each[row // 2][None] for each in logits.values())
        _, classes, scores = map(to_numpy, segments.instances(masks, objects))
        assert_close(raw["scores"][row], scores[0], 1e-4)
        assert raw["labels"][row].tolist() == [NAMES[int(label)].encode() for label in classes[0]]
        semantic = to_numpy(segments.semantic_scores(segments.resized(masks, SIZE), objects))[0]
        best = resized(semantic.transpose(2, 0, 1), size).argmax(axis=0)
        assert (maps["mask"][row][: size[0], : size[1]] == best).mean() > 0.999
        count = found["num_objects"][row]
        assert count > 1
        assert found["sizes"][row].tolist() == [*size]
        assert found["counts"][row].sum(axis=1)[:count].tolist() == [size[0] * size[1]] * count
        assert found["labels"][row][:count].tolist() == [NAMES[i].encode() for i in found["classes"][row][:count]]
        assert (np.diff(found["scores"][row]) <= 0).all()
        assert (found["classes"][row][count:] == -1).all()
    assert maps["mask"].shape == (3, 61, 47)
    assert (maps["mask"][1] == 255).all()
    assert (maps["mask"][0][30:] == 255).all()
    assert (found["num_objects"][1], found["sizes"][1].tolist()) == (0, [0, 0])
    empty = {name: each.shape for name, each in served["instances"](files[:0]).items()}
    assert (empty["counts"], empty["num_objects"]) == ((0, 0, 0), (0,))
    assert served["serving_default"](files[:0])["masks"].shape == (0, 10, 14, 7)

    def find(image, size):
        return {"classes": tf.range(size[0] // 10), "mask": tf.ones(size, tf.int32)}

    padded = {name: each.numpy() for name, each in functions._in_original(find, decode, files).items()}
    assert padded["classes"].tolist() == [[0, 1, 2, -1, -1, -1], 6 * [-1], [0, 1, 2, 3, 4, 5]]
    assert padded["num_objects"].tolist() == [3, 0, 6]
    assert [(mask == 1).sum() for mask in padded["mask"]] == [30 * 47, 0, 61 * 20]
    assert padded["mask"].min() == -1


def test_what_is_exported():
    common = ["serving_default", "predict_pixels", "predict_pixels_float", "predict_original"]
    assert check_signatures(depth(), None) == common
    assert check_signatures(eomt(), None) == [*common, "instances", "panoptic"]
    for model in (depth(), eomt()):
        check_output(model)
    model = eomt()
    others = (
        (keras.Model(model.input, model.output["masks"]), r"returns masks of shape \(None, 10, 14, 7\)"),
        (linear(), r"returns depth of shape \(None, 40, 56, 5\)"),
    )
    for other, message in others:
        keras_vit.set_output(other, "masks" if "masks" in message else "depth")
        with pytest.raises(ValueError, match=message):
            check_output(other)


@pytest.mark.usefixtures("eagerly")
def test_differences_of_depth_and_masks():
    pixels = np.random.default_rng(0).integers(0, 256, (3, *SHAPE)).astype("uint8")
    model = depth()
    known = to_numpy(model(keras_vit.preprocess_input(pixels, model)))[..., 0]
    found = known.copy()
    found[0, :10] += 0.1 * np.ptp(known[0])
    found[1] += 0.04 * np.ptp(known[1])
    parity = compare(model, pixels, {"serving_default": found})
    assert parity.top_1_agreement == pytest.approx(1 - 10 / 40 / 3)
    assert parity.max_difference["serving_default"] == pytest.approx(0.1 * np.ptp(known[0]) / known.max(), rel=1e-3)
    assert (parity.has_values, parity.predicted_classes) == (True, [])
    near, far = np.ones((1, 4, 5)) * np.linspace(0, 1, 5), np.ones((1, 4, 5)) * np.linspace(0, 10, 5)
    maps = np.concatenate([near, far])
    assert ANSWERS["depth"].agreement([maps + 0.06], [maps], None) == 0.5  # Each image has its own range.
    model = eomt()
    outputs = {name: to_numpy(each) for name, each in model(pixels.astype("float32")).items()}
    classes = to_numpy(segments.semantic_scores(outputs["masks"], outputs["objects"])).argmax(axis=-1)
    other = {name: each.copy() for name, each in outputs.items()}
    other["objects"][1] = np.roll(other["objects"][1], 1, axis=-1)
    changed = to_numpy(segments.semantic_scores(other["masks"], other["objects"])).argmax(axis=-1)
    parity = compare(model, pixels, {"serving_default": other})
    assert parity.top_1_agreement == pytest.approx((classes == changed).mean())
    assert parity.top_1_agreement < 0.9
    assert parity.predicted_classes == np.unique(classes).tolist()
    assert parity.max_difference["serving_default"] > 0.1
    parity = compare(model, pixels, {"serving_default": outputs})
    assert parity.max_difference["serving_default"] < 1e-5
    assert parity.effect > 1e-3
    kernel = model.get_layer("predictions").kernel
    kernel.assign(0 * kernel)  # The objects do not depend on the image any more.
    assert compare(model, pixels, {"serving_default": outputs}).effect == 0


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("make", "kind", "units"), [(depth, "depth", ["metres"]), (eomt, "masks", None)])
def test_saved_models(make, kind, units, precision, tmp_path):
    model = make()
    options = {"precision": precision, "min_agreement": 0.9, "images": sorted(PHOTOGRAPHS.glob("*.jpg")), "card": True}
    folder = keras_vit.export_saved_model(model, tmp_path, **options)
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["output"] == {"kind": kind, "activation": None, "units": units}
    assert facts["signatures"] == sorted(check_signatures(model, None))
    assert facts["parity"]["has_values"]
    assert facts["labels"] == (["depth"] if kind == "depth" else ["0", "1", "2", "3", "4"])
    card = (folder / "README.md").read_text()
    assert ("pipeline_tag: depth-estimation" in card, "| classes | 5 |" in card) == (kind == "depth", kind == "masks")


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("make", [depth, eomt])
@pytest.mark.parametrize(("format", "suffix"), [("onnx", "onnx"), ("litert", "tflite"), ("openvino", "xml")])
def test_files_of_other_runtimes(make, format, suffix, tmp_path, monkeypatch):
    model, images = make(), np.random.default_rng(0).integers(0, 256, (12, *SHAPE)).astype("uint8")
    written = keras_vit.export_model(model, tmp_path / f"a.{suffix}", format, images=images, card=True)
    assert written.max_difference < 1e-5
    assert written.top_1_agreement > 0.999
    _, _, names = run_code(tmp_path, monkeypatch)
    assert {name: names[name].shape for name in ("depth", "masks", "objects") if name in names} == (
        {"depth": (1, *SIZE)} if make is depth else {"masks": (1, 10, 14, 7), "objects": (1, 7, 6)}
    )
    smaller = keras_vit.export_model(
        model, tmp_path / f"b.{suffix}", format, images=images, precision="int8", min_agreement=0.9
    )
    assert 0 < smaller.max_difference < 0.3
