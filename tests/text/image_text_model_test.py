"""Image-text models have the outputs of their owners' code. See tests/golden/README.md."""

import collections
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file

import keras_vit
from keras_vit.text.tokenizers import Tokenizer
from tests.reference import vit as reference
from tests.test_case import TENSORFLOW, assert_close, canonical_weights, rest_slow, to_numpy
from tests.text.models import CONTEXT, SHAPE, random_model

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
PUBLISHED = [
    ("clip_hf", "softmax", {}),
    ("siglip_hf", "sigmoid", {}),
    ("open_clip", "softmax", {}),
    ("tipsv2_hf", "softmax", {}),
    ("clip_hf_eos", "softmax", {}),
    ("open_clip_siglip", "sigmoid", {"num_heads": 2}),
]


@pytest.mark.parametrize("case", rest_slow(PUBLISHED))
@pytest.mark.on_torch
def test_outputs_are_those_of_the_owners(case):
    """The files of OpenCLIP with SigLIP do not show the number of heads of the image encoder."""
    name, activation, arguments = case
    arrays = np.load(GOLDEN / name / "io.npz")
    model = keras_vit.ImageTextModel.from_pretrained(GOLDEN / name, **arguments)
    image, text = model.image_embeddings(arrays["images"]), model.text_embeddings(arrays["ids"])
    assert_close(image, arrays["image"])
    assert_close(text, arrays["text"])
    logits = model.similarity(image, text, logits=True)
    assert_close(logits, arrays["logits_per_image"])
    outputs = model({"images": arrays["images"], "token_ids": arrays["ids"]})
    assert_close(to_numpy(outputs["image"]) @ to_numpy(outputs["text"]).T, logits)
    exponentials = np.exp(logits - logits.max())
    expected = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else exponentials / exponentials.sum(1)[:, None]
    assert_close(model.similarity(arrays["images"], arrays["ids"]), expected)


def test_perception_encoder(tmp_path):
    """The text encoders that are published have heads of 64 channels. This small one has two heads."""
    arrays, folder = np.load(GOLDEN / "pe_core_original" / "io.npz"), tmp_path / "pe"
    shutil.copytree(GOLDEN / "pe_core_original", folder)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"text_cfg": {"heads": 2}}}))
    model = keras_vit.ImageTextModel.from_pretrained(folder, family="pe", num_heads=2, grid_size=(4, 4))
    assert_close(model.text_embeddings(arrays["ids"]), arrays["text"])


def big_vision_text(arrays, num_heads, is_stacked):
    """The text encoder of SigLIP in transformers' layout, with big_vision's names.

    The names are those that transformers' conversion script reads.
    """
    layers = "text_model.encoder.layers."
    count = 1 + max(int(name.removeprefix(layers).partition(".")[0]) for name in arrays if name.startswith(layers))
    width = arrays["text_model.embeddings.token_embedding.weight"].shape[1]
    heads = (num_heads, width // num_heads)
    found = {
        "Embed_0/embedding": arrays["text_model.embeddings.token_embedding.weight"],
        "pos_embedding": arrays["text_model.embeddings.position_embedding.weight"][None],
        "Encoder_0/encoder_norm/scale": arrays["text_model.final_layer_norm.weight"],
        "Encoder_0/encoder_norm/bias": arrays["text_model.final_layer_norm.bias"],
        "head/kernel": arrays["text_model.head.weight"].T,
        "head/bias": arrays["text_model.head.bias"],
    }
    blocks = collections.defaultdict(list)
    for i in range(count):
        block = {name.removeprefix(f"{layers}{i}."): array for name, array in arrays.items()}
        for j in (0, 1):
            blocks[f"LayerNorm_{j}/scale"].append(block[f"layer_norm{j + 1}.weight"])
            blocks[f"LayerNorm_{j}/bias"].append(block[f"layer_norm{j + 1}.bias"])
            blocks[f"MlpBlock_0/Dense_{j}/kernel"].append(block[f"mlp.fc{j + 1}.weight"].T)
            blocks[f"MlpBlock_0/Dense_{j}/bias"].append(block[f"mlp.fc{j + 1}.bias"])
        for part in ("query", "key", "value"):
            name = f"MultiHeadDotProductAttention_0/{part}"
            blocks[f"{name}/kernel"].append(block[f"self_attn.{part[0]}_proj.weight"].T.reshape(width, *heads))
            blocks[f"{name}/bias"].append(block[f"self_attn.{part[0]}_proj.bias"].reshape(heads))
        name = "MultiHeadDotProductAttention_0/out"
        blocks[f"{name}/kernel"].append(block["self_attn.out_proj.weight"].T.reshape(*heads, width))
        blocks[f"{name}/bias"].append(block["self_attn.out_proj.bias"])
    for name, rows in blocks.items():
        if is_stacked:
            found[f"Encoder_0/encoderblock/{name}"] = np.stack(rows)
        else:
            found |= {f"Encoder_0/encoderblock_{i}/{name}": row for i, row in enumerate(rows)}
    return {f"params/txt/{name}": array for name, array in found.items()}


@pytest.mark.parametrize("is_stacked", rest_slow([True, False]))
@pytest.mark.skipif(not TENSORFLOW, reason="files do not depend on the backend")
def test_big_vision(is_stacked, tmp_path):
    """The owners' outputs, from the same weights in the layouts of big_vision: stacked blocks or not, NaFlex or not."""
    arrays, expected = load_file(GOLDEN / "siglip_hf" / "model.safetensors"), np.load(GOLDEN / "siglip_hf" / "io.npz")
    image = keras_vit.from_pretrained(GOLDEN / "siglip_hf")
    keras_vit.save_weights(image, tmp_path / "image.npz", "google")
    files = {
        f"params/img/{name.removeprefix('img/')}": array for name, array in np.load(tmp_path / "image.npz").items()
    }
    files |= big_vision_text(arrays, 2, is_stacked)
    files |= {"params/t": arrays["logit_scale"], "params/b": arrays["logit_bias"]}
    np.savez(tmp_path / "siglip.npz", **files)
    kernel, positions = (f"params/img/{name}" for name in ("embedding/kernel", "pos_embedding"))
    files[kernel] = files[kernel].reshape(-1, files[kernel].shape[-1])
    files[positions] = files[positions].reshape(4, 4, -1)
    np.savez(tmp_path / "naflex.npz", **files)
    for name, method in (("siglip", "align_corners"), ("naflex", "bilinear_antialias")):
        model = keras_vit.ImageTextModel.from_pretrained(tmp_path / f"{name}.npz", family="siglip", grid_size=(4, 4))
        assert keras_vit.describe(model.image_encoder).config.position_interpolation == method
        assert_close(model.text_embeddings(expected["ids"]), expected["text"])
        assert_close(model.similarity(expected["images"], expected["ids"], logits=True), expected["logits_per_image"])


@pytest.mark.skipif(not TENSORFLOW, reason="files do not depend on the backend")
def test_files_contain_the_tokenizer(tmp_path):
    model, images = random_model("sigmoid"), np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    texts = ["a photo of a cat", "it's a toy"]
    expected = model.similarity(images, texts)
    model.text_encoder.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.image_encoder.trainable_weights
    assert not loaded.text_encoder.trainable_weights
    np.testing.assert_array_equal(loaded.similarity(images, texts), expected)
    assert keras_vit.describe(loaded).config == keras_vit.describe(model.image_encoder).config


@pytest.mark.parametrize("case", rest_slow([("clip_hf", "huggingface"), ("open_clip", "open_clip")]))
def test_saved_weights_are_read_again(case, tmp_path):
    name, format = case
    model = keras_vit.ImageTextModel.from_pretrained(GOLDEN / name)
    words = {word: number for number, word in enumerate(("<|startoftext|>", "<|endoftext|>", "cat"))}
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel(words)).to_str().encode()
    model.tokenizer = Tokenizer("clip", vocabulary, model.text_config.context_length)
    keras_vit.save_weights(model, tmp_path / "saved", format)
    again = keras_vit.ImageTextModel.from_pretrained(tmp_path / "saved")
    assert (again.text_config, again.tokenizer("cat").tolist()) == (model.text_config, model.tokenizer("cat").tolist())
    for found, expected in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


def test_what_formats_of_pairs_cannot_express(tmp_path):
    for name, format, message in (
        ("tipsv2_hf", "huggingface", "an image encoder of the kind dinov2_with_registers"),
        ("siglip_hf", "open_clip", r"cannot express pooling='map'.*pre_norm=False"),
        ("clip_hf", "timm", "format must be one of 'huggingface', 'open_clip'"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.save_weights(keras_vit.ImageTextModel.from_pretrained(GOLDEN / name), tmp_path / "a", format)
    model = random_model("sigmoid")
    model.image_encoder.get_layer("predictions").bias.assign(np.ones(20))
    with pytest.raises(ValueError, match="cannot express"):
        keras_vit.save_weights(model, tmp_path / "a", "huggingface")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def model():
    return random_model()


def test_maps_of_texts():
    """The cosines of the normalised patches and the texts. TIPSv2 has a class token and a register."""
    arrays = np.load(GOLDEN / "tipsv2_hf" / "io.npz")
    maps = keras_vit.ImageTextModel.from_pretrained(GOLDEN / "tipsv2_hf").text_maps(arrays["images"], arrays["ids"])
    patches = arrays["image_tokens"][:, 2:]
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    expected = (patches @ arrays["text"].T).transpose(0, 2, 1).reshape(2, 3, 4, 4)
    assert np.ptp(expected, axis=(2, 3)).min() > 0.1
    assert_close(maps, expected)


def test_attention_pooling_of_single_patches():
    arrays = np.load(GOLDEN / "siglip_hf" / "io.npz")
    model = keras_vit.ImageTextModel.from_pretrained(GOLDEN / "siglip_hf")
    weights = reference.part(canonical_weights(model.image_encoder), "pooling")
    patches = reference.attention_pooling(arrays["image_tokens"].reshape(-1, 1, 32), weights)
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    expected = (patches.reshape(2, 16, 32) @ arrays["text"].T).transpose(0, 2, 1).reshape(2, 4, 4, 4)
    assert_close(model.text_maps(arrays["images"], arrays["text"]), expected)


def test_padding_is_left_out_if_it_is_not_read(model):
    ids = model.tokenizer(["cat"])
    assert model._shortened(ids).shape == (1, 16)
    assert_close(model.text_embeddings(ids[:, :5]), model.text_embeddings("cat"))


@pytest.mark.parametrize("case", rest_slow([("sigmoid", True), ("softmax", False), ("softmax", True)]))
def test_classifiers_hold_embeddings(case, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    activation, projection = case
    model, images = random_model(activation, projection), np.random.default_rng(0).normal(size=(2, *SHAPE))
    classifier = model.classifier(["cat", "toy dog"], "photo", activation)
    expected = model.similarity(images, ["a photo of a cat.", "a photo of a toy dog."])
    assert np.ptp(expected, axis=0).max() > 1e-4
    assert_close(classifier.predict(images.astype("float32"), verbose=0), expected)
    described = keras_vit.describe(classifier)
    kind = {"softmax": "classes", "sigmoid": "labels"}[activation]
    assert described.outputs["predictions"] == keras_vit.Output(kind, activation, ["cat", "toy dog"])


def test_classes_have_several_names_and_sentences(model, tmp_path, monkeypatch):
    """The vector of a class is the mean of the unit vectors of its texts. It is embedded once."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    names = {"pet": ["cat", "dog"], "toy": "a toy"}
    classifier = model.classifier(names, ["the {}", "{}!"], none_of_these=["thing"])
    assert keras_vit.describe(classifier).label_space == ["pet", "toy", "none of these"]
    texts = [["the cat", "cat!", "the dog", "dog!"], ["the a toy", "a toy!"], ["the thing", "thing!"]]
    means = np.stack([model.text_embeddings(each).mean(axis=0) for each in texts])
    units = means / np.linalg.norm(means, axis=1, keepdims=True)
    kernel = to_numpy(classifier.get_layer("predictions").kernel)
    assert_close(kernel / np.linalg.norm(kernel, axis=0), units.T)
    monkeypatch.setattr(model, "text_embeddings", None)
    model.classifier(names, ["the {}", "{}!"], none_of_these=["thing"])
    monkeypatch.setattr(model.text_encoder.get_layer("encoder_block_0").mlp_block, "activation", "relu")
    with pytest.raises(TypeError, match="NoneType"):  # The embeddings of another architecture are computed.
        model.classifier(names, ["the {}", "{}!"], none_of_these=["thing"])


def test_no_images_and_no_texts(model):
    width = model.text_config.embedding_dim
    assert model.image_embeddings(np.zeros((0, *SHAPE))).shape == (0, width)
    assert model.image_embeddings([], max_patches=9).shape == (0, width)
    assert model.text_embeddings([]).shape == (0, width)


def test_what_is_refused(model):
    for call, message in (
        (lambda: model.classifier([]), "At least one name"),
        (lambda: model.text_config.replace(padding_id=573), "below vocabulary_size=573. Received: 573"),
        (lambda: model.classifier("cat"), r"names must be a list of names.*Received: 'cat'"),
        (lambda: model.classifier(["cat", "cat"]), "several times: 'cat'"),
        (lambda: model.classifier(["cat", " "]), "needs a label and names that are texts"),
        (lambda: model.classifier(["cat"], "photos"), "Did you mean 'photo'"),
        (lambda: model.classifier(["cat"], ["a photo"]), "must contain {} for the name"),
        (lambda: model.classifier(["none of these"], none_of_these=["x"]), "is a label already"),
        (lambda: model.text_embeddings([[1] * 25]), "at most 24 tokens"),
        (
            lambda: keras_vit.ImageTextModel(model.image_encoder, model.text_encoder, "relu"),
            "activation must be one of",
        ),
        (lambda: keras_vit.ImageTextModel.from_pretrained(GOLDEN / "eomt_hf"), "no text encoder that can be read"),
        (lambda: keras_vit.ImageTextModel.from_pretrained(GOLDEN / "clip_hf").text_embeddings("cat"), "no tokenizer"),
        (
            lambda: keras_vit.ImageTextModel(
                model.image_encoder, model.text_config.replace(vocabulary_size=500), tokenizer=model.tokenizer
            ),
            "has 573 tokens, but the text encoder reads only 500",
        ),
        (lambda: model.image_embeddings(np.zeros((1, 24, 16, 3))), r"\(None, 16, 24, 3\).*\(1, 24, 16, 3\)\.$"),
        (
            lambda: model.text_maps(np.zeros(SHAPE), "cat"),
            r"of shape \(16, 24, 3\)\. For one image, pass image\[None\]",
        ),
        (lambda: model.similarity(["cat.jpg"], "cat"), r"must be arrays of pixels.*Received: \['cat.jpg'\]"),
        (lambda: model.similarity(None, "cat"), "must be arrays of pixels.*Received: None"),
        (lambda: model.text_embeddings([[1, 573]]), "must be from 0 to 572. Received: 1 to 573"),
        (lambda: model.similarity(np.ones((2, 19)), "cat"), r"must be \(N, 20\).*\(2, 19\)"),
        (lambda: model.text_embeddings("cat", -1), "batch_size must be a positive integer"),
        (
            lambda: keras_vit.ImageTextModel(
                model.image_encoder,
                model.text_config.replace(attention="all"),
                tokenizer=Tokenizer("clip", model.tokenizer.vocabulary, CONTEXT - 1),
            ),
            "reads 24 tokens. Received: a tokenizer with context_length=23",
        ),
        (lambda: random_model(attention="all").text_embeddings([[1] * 23]), r"with 24 tokens\. Received: \(1, 23\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\. Needed: tokenizer\.json"):
        keras_vit.ImageTextModel.from_pretrained(GOLDEN / "clip_hf", tokenizer=GOLDEN / "clip_hf")
    for texts in (None, b"cat", ["cat", None], [None], [[1, 2], [1]]):
        with pytest.raises(TypeError, match="Texts must be"):
            model.text_embeddings(texts)
    with pytest.raises(TypeError, match=r"tokenizer\(texts\).*'cat'"):
        model.fit({"images": np.zeros((1, *SHAPE)), "token_ids": ["cat"]})
    wide = keras_vit.TextConfig(573, CONTEXT, 12, num_layers=1, num_heads=3, mlp_dim=16)
    with pytest.raises(ValueError, match=r"same width.*TextConfig\(projection_dim=20\)"):
        keras_vit.ImageTextModel(model.image_encoder, wide)
