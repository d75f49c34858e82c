"""Image-text models of transformers with random weights are read, and token ids are those of OpenCLIP."""

import unicodedata

import keras
import numpy as np
import open_clip
import pytest
import tokenizers
import torch
import transformers
from open_clip.tokenizer import SimpleTokenizer
from tokenizers import models, pre_tokenizers

import keras_vit
from keras_vit.text.contrastive import contrastive_loss
from keras_vit.text.tokenizers import Tokenizer
from tests.test_case import assert_close
from tests.test_case import randomize as keras_randomize

TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
TEXT = {**TOWER, "hidden_size": 36, "vocab_size": 50, "max_position_embeddings": 9}
# First and last code point of 20 scripts.
SCRIPTS = [
    *((0x41, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58F), (0x5D0, 0x5EA), (0x620, 0x6FF), (0x900, 0x97F)),
    *(
        (0x980, 0x9FF),
        (0xB80, 0xBFF),
        (0xC00, 0xC7F),
        (0xE01, 0xE5B),
        (0xF00, 0xFFF),
        (0x10A0, 0x10FF),
        (0x1200, 0x137F),
    ),
    *((0x1780, 0x17FF), (0x3041, 0x309F), (0x30A0, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF)),
]


def randomize(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.5)
    return model.eval()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_towers(kind, tmp_path):
    vision = {**TOWER, "image_size": 32, "patch_size": 8}
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config={**TEXT, "eos_token_id": 49}, vision_config=vision, projection_dim=20
        )
        model = randomize(transformers.CLIPModel(config))
    else:
        text = {**TEXT, "projection_size": 24, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 1}
        model = randomize(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)))
    model.save_pretrained(tmp_path / "theirs")
    rng = np.random.default_rng(0)
    images, ids = rng.normal(size=(2, 32, 32, 3)).astype("float32"), rng.integers(3, 49, (4, 9))
    ids[[0, 1, 2], [8, 5, 2]] = 49  # End tokens.
    inputs = {"input_ids": torch.tensor(ids), "pixel_values": torch.tensor(images.transpose(0, 3, 1, 2))}
    with torch.no_grad():
        expected = model(**inputs)
    ours = keras_vit.ImageTextModel.from_pretrained(tmp_path / "theirs")
    scale = np.abs(expected.logits_per_image.numpy()).max()
    assert_close(ours.similarity(images, ids, logits=True) / scale, expected.logits_per_image.numpy() / scale)
    assert_close(ours.text_embeddings(ids), expected.text_embeds.numpy())
    keras_vit.save_weights(ours, tmp_path / "ours", "huggingface")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits_per_image, expected.logits_per_image)


def test_files_for_open_clip(tmp_path):
    image = {"pre_norm": True, "mlp": "quick_gelu", "layer_norm_epsilon": 1e-5}
    config = keras_vit.ViTConfig(8, 24, num_layers=2, num_heads=3, mlp_dim=48, **image)
    images = keras_vit.ViT(config, input_shape=(32, 32, 3), classes=20, classifier_activation=None)
    text = keras_vit.TextConfig(50, 9, 36, num_layers=2, num_heads=3, mlp_dim=72, mlp="quick_gelu", projection_dim=20)
    model = keras_randomize(keras_vit.ImageTextModel(images, text), scale=0.3)
    images.get_layer("predictions").bias.assign(np.zeros(20))
    keras_vit.save_weights(model, tmp_path / "ours", "open_clip")
    theirs, rng = open_clip.create_model(f"local-dir:{tmp_path / 'ours'}").eval(), np.random.default_rng(0)
    pixels, ids = rng.normal(size=(2, 32, 32, 3)).astype("float32"), rng.integers(0, 50, (4, 9))
    with torch.no_grad():
        image = theirs.encode_image(torch.tensor(pixels.transpose(0, 3, 1, 2)), normalize=True)
        text = theirs.encode_text(torch.tensor(ids), normalize=True)
    assert_close(model.image_embeddings(pixels), image.numpy())
    assert_close(model.text_embeddings(ids), text.numpy())
    assert_close(np.exp(model.get_layer("similarity").log_scale), theirs.logit_scale.exp().item())


def test_token_ids_of_twenty_scripts():
    """Code points that Unicode 14 does not define are left out: the libraries have other versions of Unicode."""
    theirs, rng = SimpleTokenizer(), np.random.default_rng(0)
    ends = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {ends.get(token, token): id for token, id in theirs.encoder.items()}
    merges = sorted(theirs.bpe_ranks, key=theirs.bpe_ranks.get)
    options = {"unk_token": "<|endoftext|>", "continuing_subword_prefix": "", "end_of_word_suffix": "</w>"}
    model = tokenizers.Tokenizer(models.BPE(vocabulary, merges, **options))
    pattern = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    words = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
    model.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    model.add_special_tokens(list(ends.values()))
    ascii_texts, texts = [*map(chr, range(32, 127)), "\n", "\t", "&amp;amp;", "'s ", "  ", "\x07"], []
    for number in range(2000):
        first, last = SCRIPTS[number % len(SCRIPTS)]
        known = [chr(each) for each in range(first, last + 1) if unicodedata.category(chr(each)) != "Cn"]
        pieces = [rng.choice(known if rng.random() < 0.7 else ascii_texts) for _ in range(rng.integers(0, 50))]
        texts.append("".join(pieces))
    ours = Tokenizer("clip", model.to_str().encode(), 77)
    np.testing.assert_array_equal(ours(texts), theirs(texts).numpy())


def test_losses():
    random = np.random.default_rng(0)
    image, text = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in random.normal(size=(2, 6, 4)))
    scale, bias = 5.0, -3.0
    rows = np.c_[scale * image, np.full(6, bias)], np.c_[text, np.ones(6)]
    arguments = [torch.tensor(value) for value in (image, text, scale, bias)]
    expected = {
        "softmax": open_clip.loss.ClipLoss()(*arguments[:3]),
        "sigmoid": open_clip.loss.SigLipLoss()(*arguments),
    }
    for activation, loss in expected.items():
        assert_close(keras.ops.convert_to_numpy(contrastive_loss(*rows, activation)), loss.numpy())
