"""The SavedModel of an image-text model, and the client of its server."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.text.client import Client
from tests.pictures import encoded, picture
from tests.test_case import TENSORFLOW, assert_close
from tests.text.models import CONTEXT, random_model

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="exports run on TensorFlow")
TEXTS = ["a cat", "two toy dogs on a sofa"]


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_client_of_a_served_export(activation, tmp_path):
    import tensorflow as tf

    from keras_vit.data.decoding import image_decoder
    from tests.export.stand_in import serve

    model = random_model(activation, include_preprocessing=True)
    model.similarity_layer.log_scale.assign(1.0)
    folder = keras_vit.export_image_text_model(model, tmp_path / "pets")
    signatures = tf.saved_model.load(str(folder)).signatures
    assert set(signatures) == {"image", "text", "similarity"}
    file = encoded(picture(60, 40), "PNG")
    images = np.stack([image_decoder(model.image_encoder)(file)]).astype("float32")
    expected = {"image": model.image_embeddings(images), "text": model.text_embeddings(TEXTS)}

    with serve(signatures) as (rest, _):
        client = Client(f"http://localhost:{rest}/v1/models/pets/labels/stable", folder)
        image, text, both = client.image([b"no image", file]), client.text(TEXTS), client.similarity([file, b""], TEXTS)
        with pytest.raises(ValueError, match="answers with status 400"):
            Client(f"http://localhost:{rest}/v1/models/dogs/labels/stable", model.tokenizer).text("cat")
        with pytest.raises(TypeError, match="Pass a list with the contents of image files"):
            client.image(file)
        for call in (lambda: client.image([]), lambda: client.similarity([file], [])):
            with pytest.raises(ValueError, match="Pass at least one"):
                call()
    with pytest.raises(ConnectionError, match=r"cannot be reached.*Does the server run"):
        client.text("cat")
    with pytest.raises(FileNotFoundError, match="not the folder of an exported version"):
        Client("http://localhost", folder.parent)
    assert_close(image["embedding"][1:], expected["image"])
    assert_close(text["embedding"], expected["text"])
    assert_close(both["probabilities"][:1], model.similarity(images, TEXTS))
    assert_close(both["logits"][:1], model.similarity(images, TEXTS, logits=True))
    assert image["valid"].tolist() == [False, True]
    assert both["valid"].tolist() == [True, False]
    assert not image["embedding"][0].any()
    assert not both["probabilities"][1].any()

    facts = json.loads((folder / "keras_vit.json").read_text())
    vectors = expected["image"] @ expected["text"].T
    found = facts["similarity"]["scale"] * vectors + facts["similarity"]["bias"]
    assert_close(found, model.similarity(images, TEXTS, logits=True))
    outside = signatures["text"](token_ids=tf.constant([[0] * CONTEXT, [573] * CONTEXT], tf.int32))
    assert outside["valid"].numpy().tolist() == [True, False]
    assert not outside["embedding"][1].numpy().any()


@pytest.mark.slow
def test_lower_precision_and_no_tokenizer(tmp_path):
    import tensorflow as tf

    model = random_model(include_preprocessing=True)
    model.tokenizer = None
    for precision in ("float32", "bfloat16", "int8"):
        folder = keras_vit.export_image_text_model(model, tmp_path / precision, precision=precision)
        facts = json.loads((folder / "keras_vit.json").read_text())
        assert (max(facts["parity"]["max_difference"].values()) > 1e-5) == (precision != "float32")
    with pytest.raises(FileNotFoundError, match="no image-text model with a tokenizer"):
        Client("http://localhost", folder)
    similarity = tf.saved_model.load(str(folder)).signatures["similarity"]
    none = similarity(image_bytes=tf.constant([], tf.string), token_ids=tf.zeros((0, 2, CONTEXT), tf.int32))
    assert none["logits"].shape == (0, 2)


@pytest.mark.slow
def test_images_of_different_sizes(tmp_path):
    import tensorflow as tf

    model = random_model("sigmoid", include_preprocessing=True)
    folder = keras_vit.export_image_text_model(model, tmp_path / "naflex", max_patches=9)
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert facts["options"]["max_patches"] == 9
    pictures = [picture(30, 20), picture(7, 50), picture(40, 40)]
    files = [b"no image", *(encoded(each, "PNG") for each in pictures)]
    image = tf.saved_model.load(str(folder)).signatures["image"](image_bytes=tf.constant(files))
    assert image["valid"].numpy().tolist() == [False, True, True, True]
    expected = model.image_embeddings([np.array(each) for each in pictures], max_patches=9)
    np.testing.assert_allclose(image["embedding"][1:], expected, atol=1e-3)  # Pixels may differ by one level.
    assert np.ptp(expected, axis=0).max() > 0.02


@pytest.mark.slow
def test_a_model_of_mixed_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = random_model(include_preprocessing=True)
    finally:
        keras.config.set_dtype_policy("float32")
    folder = keras_vit.export_image_text_model(model, tmp_path / "mixed")
    assert max(json.loads((folder / "keras_vit.json").read_text())["parity"]["max_difference"].values()) < 0.14


def test_what_is_refused(tmp_path):
    model = random_model(include_preprocessing=True)
    with pytest.raises(ValueError, match=r"Write both with keras_vit\.export_image_text_model"):
        keras_vit.export_saved_model(model, tmp_path / "both")
    with pytest.raises(ValueError, match=r"are written by keras_vit\.export_saved_model"):
        keras_vit.export_image_text_model(model.image_encoder, tmp_path / "image")
    assert not list(tmp_path.glob("*/1"))


@pytest.mark.slow
def test_a_model_that_cannot_be_checked(tmp_path):
    model = random_model(include_preprocessing=True)
    for weight in model.text_encoder.weights:
        weight.assign(np.zeros(weight.shape))
    with pytest.raises(ValueError, match="embeddings of all texts are equal"):
        keras_vit.export_image_text_model(model, tmp_path / "zeros")
    assert not list(tmp_path.glob("*/1"))
