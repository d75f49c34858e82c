"""Detectors: files of YOLOS, OWL-ViT and OWLv2 with transformers' outputs. See tests/golden/README.md."""

import json
import pathlib

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.heads import BoxHead, DetectionTokens
from keras_vit.heads.boxes import overlaps, to_corners
from tests.test_case import TENSORFLOW, assert_close, rest_slow, to_numpy, without_values

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
YOLOS, OWL = ("yolos_mid_hf", "yolos_hf"), ("owlv2_hf", "owlvit_hf")
SIZES = ("", "_other") if TENSORFLOW else ("",)


def golden(name):
    return GOLDEN / name, dict(np.load(GOLDEN / name / "io.npz"))


@pytest.mark.each_backend
@pytest.mark.parametrize("name", rest_slow(YOLOS))
@pytest.mark.parametrize("size", SIZES)
def test_yolos(name, size):
    folder, arrays = golden(name)
    images = arrays[f"images{size}"]
    model = keras_vit.from_pretrained(folder, input_shape=images.shape[1:])
    outputs = model(images)
    assert_close(outputs["objects"], arrays[f"logits{size}"])
    assert_close(outputs["boxes"], arrays[f"boxes{size}"])
    tokens = to_numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(images))
    num_tokens = model.get_layer("head").num_tokens
    assert_close(np.concatenate([tokens[:, :1], tokens[:, 1 + num_tokens :]], axis=1), arrays[f"tokens{size}"][:, :-6])
    kinds = {name: output.kind for name, output in keras_vit.describe(model).outputs.items()}
    assert kinds == {"boxes": "boxes", "predictions": "objects"}


@pytest.mark.parametrize("name", rest_slow(YOLOS))
def test_yolos_is_written(name, tmp_path):
    """The file and the settings are those of transformers, except for settings of its loss."""
    folder, _ = golden(name)
    keras_vit.save_weights(keras_vit.from_pretrained(folder), tmp_path / "yolos", "huggingface")
    old, new = (safetensors.numpy.load_file(each / "model.safetensors") for each in (folder, tmp_path / "yolos"))
    assert old.keys() == new.keys()
    for path in old:
        np.testing.assert_array_equal(old[path], new[path], path)
    old, new = (json.loads((each / "config.json").read_text("utf-8")) for each in (folder, tmp_path / "yolos"))
    assert {key: old[key] for key in new} == new


def test_new_detection_tokens_are_written_with_rows_of_zeros(tmp_path):
    config = keras_vit.ViTConfig(8, 16, num_layers=2, num_heads=2, mlp_dim=24)
    model = keras_vit.Detector(config, DetectionTokens(num_tokens=3), classes=2, input_shape=(24, 40, 3))
    keras_vit.save_weights(model, tmp_path / "yolos", "huggingface")
    images = np.random.default_rng(0).normal(size=(2, 24, 40, 3)).astype("float32")
    again = keras_vit.from_pretrained(tmp_path / "yolos")
    assert again.get_layer("position_embedding").num_prefix_rows == 1 + 3
    for name, expected in model(images).items():
        assert_close(again(images)[name], to_numpy(expected))


def test_what_transformers_cannot_express(tmp_path):
    config = keras_vit.ViTConfig(8, 16, num_layers=2, num_heads=2, mlp_dim=32)
    for encoder, head, message in (
        (config, "box", "a BoxHead"),
        (config.replace(num_register_tokens=2), "detection_tokens", "registers"),
        (config.replace(position_embedding="sincos_2d"), "detection_tokens", "position_embedding='sincos_2d'"),
        (config.replace(layer_scale=1.0), "detection_tokens", "an encoder of the kind dinov2"),
        (config.replace(position_placement="every_layer_shared"), "detection_tokens", "every_layer_shared"),
        (config.replace(class_token=False, pooling="avg"), "detection_tokens", "without a class token"),
    ):
        model = keras_vit.Detector(encoder, head, classes=2, input_shape=(24, 24, 3))
        with pytest.raises(ValueError, match=message):
            keras_vit.save_weights(model, tmp_path / "model", "huggingface")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("size", "image_size", "is_placed_in_all", "count"),
    [
        ((192, 12, 3, 768), (800, 1328), False, 6_488_736),
        ((384, 12, 6, 1536), (512, 864), True, 30_684_768),
        ((330, 14, 6, 1320), (512, 864), True, 27_561_696),
        ((768, 12, 12, 3072), (800, 1344), True, 127_798_368),
    ],
)
def test_parameters_of_yolos(size, image_size, is_placed_in_all, count):
    """The counts are those of transformers, with 91 classes. YOLOS has a row of positions for each detection token."""
    placement = "every_layer" if is_placed_in_all else "stem"
    encoder = keras_vit.ViTConfig(16, *size, position_placement=placement)
    with without_values():
        model = keras_vit.Detector(encoder, "detection_tokens", classes=91, input_shape=(*image_size, 3))
    num_tables = encoder.num_layers if is_placed_in_all else 1
    assert model.count_params() + 100 * encoder.hidden_dim * num_tables == count


@pytest.mark.each_backend
@pytest.mark.parametrize("name", rest_slow(OWL))
@pytest.mark.parametrize("size", SIZES)
def test_owl(name, size):
    """The queries of the second image end with padding, whose logits transformers replaces."""
    folder, arrays = golden(name)
    images = arrays[f"images{size}"]
    model = keras_vit.from_pretrained(folder, output="boxes", classes=3, input_shape=images.shape[1:])
    for i, image in enumerate(images):
        model.get_layer("predictions").kernel.assign(arrays["text"][i].T)
        outputs, used = model(image[None]), 3 - i
        assert_close(outputs["objects"][0, :, :used], arrays[f"logits{size}"][i, :, :used])
        assert_close(outputs["boxes"][0], arrays[f"boxes{size}"][i])
    if size:
        return
    embeddings, _, _, *objectness = keras.Model(model.input, model.get_layer("head").output)(images)
    embeddings = to_numpy(embeddings)
    assert_close(embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True), arrays["class_embeds"])
    assert len(objectness) == (name == "owlv2_hf")
    if objectness:
        assert_close(objectness[0][..., 0], arrays["objectness"])
    kinds = {name: output.kind for name, output in keras_vit.describe(model).outputs.items()}
    assert kinds == {"boxes": "boxes", "predictions": "object_labels"}


@pytest.mark.parametrize("name", rest_slow(OWL))
def test_owl_with_texts_and_images(name):
    folder, arrays = golden(name)
    model = keras_vit.ImageTextModel.from_pretrained(folder)
    assert_close(model.similarity(arrays["images"], arrays["ids"], logits=True), arrays["logits_per_image"])
    assert_close(model.image_embeddings(arrays["images"]), arrays["image"])
    texts = model.text_embeddings(arrays["ids"][:3])
    detector = model.detector(["cat", "dog", "rat"], embeddings=texts)
    assert_close(detector(arrays["images"][:1])["objects"], arrays["logits"][:1])
    assert keras_vit.describe(detector).outputs["predictions"].names == ["cat", "dog", "rat"]
    assert keras_vit.describe(detector).adaptations == {}
    queries = model.image_queries(arrays["query_images"], batch_size=1)
    assert_close(queries, arrays["query_embeds"][:, 0])
    for image, query, logits in zip(arrays["images"], queries, arrays["guided_logits"], strict=True):
        found = model.detector(["it"], embeddings=query[None])(image[None])
        assert_close(found["objects"][0], logits)


def test_classes_that_are_texts():
    folder, _ = golden("owlvit_hf")
    with pytest.raises(ValueError, match=r"The classes of this detector are texts. Call .*\.detector\(names\)"):
        keras_vit.from_pretrained(folder, output="boxes")
    model = keras_vit.ImageTextModel.from_pretrained(folder)
    with pytest.raises(ValueError, match=r"embeddings must be of shape \(2, 24\). Received: \(1, 24\)"):
        model.detector(["cat", "dog"], embeddings=np.ones((1, 24)))
    with pytest.raises(ValueError, match="has no tokenizer"):
        model.detector(["cat", "dog"])
    clip = keras_vit.ImageTextModel.from_pretrained(GOLDEN / "clip_hf")
    width = clip.text_encoder.output_shape[-1]
    with pytest.raises(ValueError, match=r"has outputs of the kind 'embedding'\. Received: output='boxes'"):
        clip.detector(["cat"], embeddings=np.ones((1, width)))
    new = keras_vit.ImageTextModel(clip.image_encoder, clip.text_encoder)
    with pytest.raises(ValueError, match="this model was not read from one"):
        new.image_queries(np.zeros((1, 32, 32, 3)))


def test_a_new_box_head_predicts_the_boxes_of_patches():
    config = keras_vit.ViTConfig(8, 16, num_layers=2, num_heads=2, mlp_dim=24)
    model = keras_vit.Detector(config, BoxHead(), classes=2, input_shape=(16, 32, 3))
    outputs = model(np.random.default_rng(0).normal(size=(1, 16, 32, 3)).astype("float32"))
    found = to_numpy(outputs["boxes"])[0]
    expected = [(x / 4, y / 2, 1 / 4, 1 / 2) for y in (1, 2) for x in (1, 2, 3, 4)]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    probabilities = 1 / (1 + np.exp(-to_numpy(outputs["objects"])))
    assert (probabilities < 0.03).all()


def test_overlaps_of_boxes():
    """Areas that are counted by hand."""
    boxes = to_corners(np.array([[2, 2, 4, 4], [5, 3, 2, 2], [9, 2, 2, 4]], "float32"))
    shared, generalized = map(to_numpy, overlaps(boxes, boxes[:1]))
    np.testing.assert_allclose(shared[:, 0], [1, 0, 0])
    np.testing.assert_allclose(generalized[:, 0], [1, -(6 * 4 - 16 - 4) / 24, -(10 * 4 - 16 - 8) / 40])
    half = np.array([[[0, 0, 4, 2]]], "float32")
    assert [to_numpy(each).item() for each in overlaps(half, boxes[None, :1])] == [0.5, 0.5]


def test_an_encoder_that_accepts_no_further_tokens():
    axial = keras_vit.ViTConfig(8, 16, 2, 2, 24, axial=True, class_token=False, pooling="avg")
    with pytest.raises(ValueError, match="Axial blocks accept no tokens besides those of the patches"):
        keras_vit.Detector(axial, "detection_tokens", classes=2, input_shape=(16, 32, 3))
    with pytest.raises(ValueError, match="head of a detector must be one of 'box', 'detection_tokens'"):
        keras_vit.Detector("Ti/16", "linear")
