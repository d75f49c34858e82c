"""Token ids are those of the owners' tokenizers, and those of all texts are defined."""

import json
import pathlib

import numpy as np
import pytest

from keras_vit.text.prompts import TEMPLATES
from keras_vit.text.tokenizers import Tokenizer

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "modern"
FOLDERS = {kind: f"tokenizers/{kind}" for kind in ("clip", "siglip", "siglip2")} | {"tipsv2": "tipsv2_tokenizer"}
LENGTH = 16


def tokenizer(kind, length=LENGTH):
    return Tokenizer.from_file(kind, GOLDEN / FOLDERS[kind], length)


@pytest.mark.parametrize("kind", FOLDERS)
def test_ids_are_those_of_the_owners(kind):
    """transformers pads the texts of CLIP with the end token, 572. The owners pad with 0."""
    arrays = np.load(GOLDEN / ("tipsv2_tokenizer" if kind == "tipsv2" else "tokenizers") / "io.npz")
    expected = arrays["ids" if kind == "tipsv2" else kind]
    if kind == "clip":
        expected = np.where(np.cumsum(expected == 572, axis=1) > 1, 0, expected)
    found = tokenizer(kind, expected.shape[1])(json.loads(str(arrays["texts"])))
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a\ud800b", "a\ufffdb"),  # A lone surrogate.
        ("A CAT", "a cat"),
        ("cat " * 9999, "cat " * 99),
        ("a" * 10_001, "a" * 10_000),
    ],
)
def test_texts_with_the_same_ids(kind, text, same):
    tokenize = tokenizer(kind)
    np.testing.assert_array_equal(tokenize(text), tokenize([same]))


@pytest.mark.parametrize("kind", FOLDERS)
def test_all_texts_have_ids(kind):
    tokenize = tokenizer(kind)
    texts = ["", "\x00\x07\u200f", "\U0001f600", "\u0645\u0631\u062d\u0628\u0627", "\udc80", "\u0e2a\u0e27\u0e31", "\n"]
    ids = tokenize(texts)
    assert ids.shape == (len(texts), LENGTH)
    assert ids.min() >= 0
    end = {"clip": 572, "siglip": 1, "siglip2": 1}.get(kind)
    long = tokenize("cat " * 99)
    assert (long != tokenize.padding_id).sum() >= LENGTH - 1
    assert end is None or (long[0, -1] == end and (ids == end).any(axis=1).all())


@pytest.mark.parametrize(
    ("kind", "text", "same"),
    [
        ("clip", "  caf\u00c3\u00a9 &amp;amp;\n cat ", "caf\u00e9 & cat"),
        ("siglip", "A_cat,  it's\ta  TOY!", "a cat its a toy"),
    ],
)
def test_texts_are_prepared_as_by_the_owners(kind, text, same):
    """The encoding is repaired, and HTML entities are replaced (CLIP); punctuation is removed (SigLIP)."""
    tokenize = tokenizer(kind)
    np.testing.assert_array_equal(tokenize(text), tokenize(same))


def test_wrong_files_are_refused(tmp_path):
    for content, message in ((b"{}", "cannot be read by tokenizers"), (b"abc", "cannot be read by SentencePiece")):
        with pytest.raises(ValueError, match=message):
            Tokenizer("clip", content, 8)
    with pytest.raises(ValueError, match=r"has no '<\|startoftext\|>', so it is not of kind='clip'"):
        Tokenizer.from_file("clip", GOLDEN / FOLDERS["siglip2"], 8)
    with pytest.raises(ValueError, match=r"has no '<eos>', so it is not of kind='siglip2'"):
        Tokenizer.from_file("siglip2", GOLDEN / FOLDERS["clip"], 8)


def test_template_sets():
    assert {name: len(set(texts)) for name, texts in TEMPLATES.items()} == {
        **{"name": 1, "photo": 1, "clip_best": 7, "clip": 80}
    }
    assert set(TEMPLATES["clip_best"]) <= set(TEMPLATES["clip"])
    assert all(text.count("{}") == 1 for texts in TEMPLATES.values() for text in texts)
