"""The models compute what the authors' own code computes. See tests/golden/README.md."""

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import assert_close

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
MODELS = {
    "vit_token": {},
    "vit_token_prelogits": {"representation_dim": 10},
    "vit_gap": {"pooling": "avg"},
    "bv_gap_sincos_rep": {"pooling": "avg", "position_embedding": "sincos_2d", "representation_dim": 24},
    "bv_tok_learn": {"num_position_prefix_rows": 0},
}
# Names in the files (both generations of Flax) to canonical weight paths, replaced in this order.
RENAMES = [
    (r"^cls$", "class_token/token"),
    (r"^(Transformer/posembed_input/)?pos_embedding$", "position_embedding/embedding"),
    (r"^embedding/", "patch_embedding/"),
    (r"^head/", "predictions/"),
    (r"^Transformer/encoderblock_", "encoder_block_"),
    (r"^Transformer/", ""),
    (r"/LayerNorm_0/", "/attention_norm/"),
    (r"/LayerNorm_[12]/", "/mlp_norm/"),
    (r"/MultiHeadDotProductAttention_[01]/", "/attention/"),
    (r"/MlpBlock_[03]/", "/mlp/"),
    (r"/Dense_0/", "/hidden/"),
    (r"/(Dense_1|out)/", "/output/"),
    (r"/scale$", "/gamma"),
    (r"norm/bias$", "norm/beta"),
]


def _canonical(name):
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_the_authors_code(name):
    arrays = dict(np.load(GOLDEN / f"{name}.npz"))
    images, logits = arrays.pop("__input__"), arrays.pop("__logits__")
    representation = arrays.pop("__prelogits__", None)
    model = _model(images.shape[1:], classifier_activation=None, **MODELS[name])
    weights = {_canonical(key): value for key, value in arrays.items()}
    assert {weight.path for weight in model.weights} == set(weights)
    for weight in model.weights:
        value = weights[weight.path]
        weight.assign(value[0] if weight.path == "position_embedding/embedding" else value)
    assert_close(model(images), logits)
    if representation is not None:
        last = model.get_layer("predictions").input
        assert_close(keras.Model(model.inputs[0], last)(images), representation)


def test_every_file_is_tested():
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(MODELS)


def _model(input_shape, **arguments):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=24, num_layers=2, num_heads=3, mlp_dim=48)
    return keras_vit.ViT(config, input_shape=input_shape, classes=7, **arguments)
