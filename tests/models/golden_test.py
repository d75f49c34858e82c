"""Files in the layout of the authors' code give models with the same outputs. See tests/golden/README.md."""

import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import assert_close, compute, on_each_backend

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_dim=24, num_layers=2, num_heads=3, mlp_dim=48)
AVERAGE = {"pooling": "avg", "class_token": False}
ATTENTION = {"pooling": "map", "class_token": False}
HYBRID = {"stem": keras_vit.StemConfig((2, 1), width=32), "patch_size": 1}
# How the model of each file differs from CONFIG.
MODELS = {
    "vit_token": {},
    "vit_token_prelogits": {"representation_dim": 10},
    "vit_gap": AVERAGE,
    "bv_gap_sincos_rep": {**AVERAGE, "position_embedding": "sincos_2d", "representation_dim": 24},
    "bv_map_learn": ATTENTION,
    "bv_map_scan": ATTENTION,
    "bv_tok_learn": {"num_position_prefix_rows": 0},
    "hybrid_r2stage": HYBRID,
    "hybrid_r2stage_odd": HYBRID,
    "hybrid_stem_only": {"stem": keras_vit.StemConfig((), width=32), "patch_size": 2},
}
# These files contain tables and kernels. tests/resampling_test.py uses them.
OTHER_FILES = {"posemb_zoom", "posemb_torch", "patch_pi_torch", "eomt_loss"}


@pytest.mark.parametrize("name", on_each_backend(["vit_token", "bv_map_scan"], list(MODELS)))
def test_logits_equal_those_of_the_authors_code(name, tmp_path):
    arrays = dict(np.load(GOLDEN / f"{name}.npz"))
    images, logits = arrays.pop("__input__"), arrays.pop("__logits__")
    representation = arrays.pop("__prelogits__", None)
    np.savez(tmp_path / "weights.npz", **arrays)
    model = keras_vit.from_pretrained(
        tmp_path / "weights.npz", input_shape=images.shape[1:], classifier_activation=None
    )
    config = keras_vit.describe(model).config
    expected = CONFIG.replace(**MODELS[name])
    assert config == expected.replace(num_position_prefix_rows=config.num_position_prefix_rows)
    assert config.position_prefix_rows == expected.position_prefix_rows
    assert_close(compute(model, [images]), logits)
    if representation is not None:
        last = model.get_layer("predictions").input
        assert_close(compute(keras.Model(model.inputs[0], last), [images]), representation)


def test_every_file_is_tested():
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(MODELS) | OTHER_FILES
