"""timm's layout, tested without timm; tests/peers compares with timm itself."""

import json
import pathlib

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.opening import open_checkpoint
from keras_vit.weights.timm_architectures import check_architecture
from keras_vit.weights.timm_pretrained_cfg import read_pretrained_cfg
from tests.test_case import random_inputs, to_numpy
from tests.weights.converter_case import (
    CONFIG,
    SHAPE,
    assert_same_weights,
    contents,
    edit,
    make,
    make_shell,
    run_converter_test,
    run_spoiled_test,
    save,
)

EXACT = CONFIG.replace(mlp="gelu_exact")
CASES = {
    "token": {"config": EXACT},
    "average_fc_norm": {"config": EXACT, "pooling": "avg", "norm_placement": "after_pooling"},
    "average_beside_class_token": {"config": EXACT, "pooling": "avg", "class_token": True},
    "distilled": {"config": EXACT, "distillation_token": True},
    "registers": {"config": EXACT, "num_register_tokens": 3, "num_position_prefix_rows": 0},
    "layer_scale": {"config": EXACT, "layer_scale": 1e-5},
    "qk_norm": {"config": EXACT, "qk_norm": True},
    "map_no_head_tanh": {"pooling": "map", "include_top": False},
    "clip": {"config": CONFIG.replace(mlp="quick_gelu"), "pre_norm": True, "layer_norm_epsilon": 1e-5},
    "swiglu": {"config": CONFIG.replace(mlp="swiglu"), "layer_scale": 1e-5, "include_top": False},
    "hybrid": {
        "config": EXACT.replace(stem=keras_vit.StemConfig((), 64, 1e-5, 1e-8), patch_size=(3, 4)),
        "input_shape": (21, 30, 3),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(case, tmp_path):
    run_converter_test("timm", tmp_path, **{"num_layers": 2 if case == "token" else 1, **CASES[case]})


@pytest.mark.parametrize("case", ["token", "hybrid"])
def test_names_what_does_not_fit(case, tmp_path):
    run_spoiled_test("timm", tmp_path, **CASES[case])


@pytest.fixture
def token(saved, copy_of):
    """(weights of a model, folder of its files)"""
    weights, path = saved("timm", EXACT)
    return weights, copy_of(path)


def test_query_key_and_value_are_one_array(saved):
    weights, path = saved("timm", EXACT)
    arrays = contents(path)["model.safetensors"]
    tokens = np.random.default_rng(0).normal(size=(4, 12))
    projected = tokens @ arrays["blocks.1.attn.qkv.weight"].T + arrays["blocks.1.attn.qkv.bias"]
    for index, part in enumerate(("query", "key", "value")):
        kernel, bias = (weights[f"encoder_block_1/attention/{part}/{x}"] for x in ("kernel", "bias"))
        expected = np.einsum("td,dkw->tkw", tokens, kernel) + bias
        np.testing.assert_allclose(projected.reshape(4, 3, 3, 4)[:, index], expected, rtol=1e-5, atol=1e-5)
    merged = np.einsum("tkw,kwd->td", expected, weights["encoder_block_1/attention/output/kernel"])
    np.testing.assert_allclose(
        expected.reshape(4, 12) @ arrays["blocks.1.attn.proj.weight"].T, merged, rtol=1e-5, atol=1e-5
    )


def test_registers_have_no_position_for_the_class_token(tmp_path):
    """timm adds the class token's position row to the token. The sum is the same."""
    model = make(EXACT, num_register_tokens=2)
    path = save(model, tmp_path / "timm", "timm")
    assert contents(path)["model.safetensors"]["pos_embed"].shape == (1, 6, 12)
    assert contents(path)["config.json"]["pretrained_cfg"]["fixed_input_size"] is True
    again = keras_vit.from_pretrained(path, classifier_activation=None)
    [images] = random_inputs(SHAPE)
    np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(model(images)))


def test_asks_for_what_files_without_a_config_do_not_say(token):
    weights, path = token
    (path / "config.json").unlink()
    arguments = {}
    for match, answer in (
        (r"no config\.json .* contains an architecture.* Pass family=.* family='timm'.*deit3", {"family": "deit3"}),
        (r"the number of attention heads.* Pass num_heads=", {"num_heads": 3}),
        (r"7 position rows for patches of 4 x 3 pixels.* Pass grid_size=", {"grid_size": (2, 3)}),
    ):
        with pytest.raises(ValueError, match=match):
            keras_vit.from_pretrained(path, **arguments)
        arguments |= answer
    again = keras_vit.from_pretrained(path, **arguments)
    assert_same_weights(again, weights)
    assert open_checkpoint(path, **{**arguments, "family": "augreg"}).pixels["mean"] == 0.5
    assert keras_vit.describe(again).pixels["mean"] == [0.485, 0.456, 0.406]
    with pytest.raises(ValueError, match="hidden_dim must be a multiple of num_heads"):
        keras_vit.from_pretrained(path, **{**arguments, "num_heads": 5})


def test_a_model_knows_what_its_file_does_not_say(token):
    """If the file lacks the number of heads and the grid, they are taken from the model that gets the weights."""
    weights, path = token
    (path / "config.json").unlink()
    other = make(EXACT, seed=5)
    keras_vit.load_weights(other, path, family="timm")
    assert_same_weights(other, weights)


@pytest.mark.parametrize("num_rows", [196, 197])
def test_196_rows_are_never_195_and_one(num_rows, token):
    _, path = token
    (path / "config.json").unlink()
    kernel = np.random.default_rng(0).normal(size=(12, 3, 16, 16)).astype("float32")
    table = np.random.default_rng(1).normal(size=(1, num_rows, 12)).astype("float32")
    edit(path / "model.safetensors", lambda arrays: {**arrays, "patch_embed.proj.weight": kernel, "pos_embed": table})
    checkpoint = open_checkpoint(path, num_heads=3, family="timm")
    assert (checkpoint.image_size, checkpoint.channels) == ((224, 224), 3)
    assert checkpoint.config.position_prefix_rows == num_rows - 196
    np.testing.assert_array_equal(checkpoint.read()["position_embedding/embedding"], table[0])


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"act_layer": "relu"}, "activation 'relu' is not available. Accepted: gelu"),
        ({}, {"qkv_bias": False}, "has qkv_bias=False. This package supports only qkv_bias=True"),
        ({}, {"dynamic_img_pad": True}, "has dynamic_img_pad=True"),
        ({}, {"ref_feat_shape": [16, 16]}, r"has the unknown argument ref_feat_shape=\[16, 16\]"),
        ({"architecture": "vit_base_patch16_rope_224"}, {}, "vit_base_patch16_rope_224 has rotary positions"),
        ({"architecture": "mine_rope_small"}, {}, "mine_rope_small has rotary positions"),
        ({"architecture": "mine", "model_args": {}}, {}, "'mine' is not a known .* at least patch_size, embed_dim"),
    ],
)
def test_refuses_architectures_and_arguments_that_it_does_not_know(changes, arguments, message, token):
    _, path = token
    config = json.loads((path / "config.json").read_text()) | changes
    config["model_args"].update(arguments)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(path)


def test_reads_an_architecture_of_ones_own_whose_arguments_are_known(token):
    weights, path = token
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architecture": "mine"}))
    assert_same_weights(keras_vit.from_pretrained(path), weights)


def test_another_architecture_is_named_as_one_and_not_by_an_array(token):
    _, path = token
    edit(path / "model.safetensors", lambda arrays: {name: arrays[name] for name in arrays if "mlp.fc2" not in name})
    with pytest.raises(ValueError, match="timm's VisionTransformer, but arrays or settings are missing") as caught:
        open_checkpoint(path)
    assert "fc2" not in str(caught.value)


def test_positions_without_an_array_are_none_only_if_a_config_says_so(token):
    _, path = token
    edit(path / "model.safetensors", lambda arrays: {name: arrays[name] for name in arrays if name != "pos_embed"})
    with pytest.raises(ValueError, match=r"no table of positions .* not stored in an array"):
        open_checkpoint(path)
    config = json.loads((path / "config.json").read_text())
    config["model_args"]["pos_embed"] = "none"
    (path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(path).config.position_embedding == "none"


@pytest.mark.parametrize("text", ["[1]", "{", "\xff"])
def test_refuses_a_broken_config(text, token):
    _, path = token
    (path / "config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=r"config\.json is not a configuration: .* Download it again, or remove it"):
        keras_vit.from_pretrained(path)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"representation_dim": 7}, r"representation_dim=7 \(accepted: None\)"),
        ({"layer_norm_epsilon": 1e-3}, r"layer_norm_epsilon=0\.001 \(accepted: 1e-06 or 1e-05\)"),
        ({"pooling": "map", "class_token": True}, "prefix tokens with attention pooling"),
        ({"mlp": "swiglu", "layer_norm_epsilon": 1e-5}, "this combination of stem"),
    ],
)
def test_refuses_what_timm_cannot_express(arguments, reason, tmp_path):
    with pytest.raises(ValueError, match=f"timm cannot express .*{reason}.* not saved"):
        keras_vit.save_weights(make_shell(EXACT, **arguments), tmp_path / "timm", "timm")
    assert not list(tmp_path.iterdir())


def _architectures():
    """{architecture: its unsupported part, or `None`} from docs/support.md."""
    read, refused = (pathlib.Path(__file__).parents[2] / "docs" / "support.md").read_text().split("## Unsupported\n")
    found = {name: None for names, *_ in _rows(read) for name in names.split(", ")}
    return found | {name: kind for kind, names in _rows(refused) for name in names.split(", ")}


def _rows(text):
    """The cells of a table, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_architectures_are_read_and_refused_as_documented():
    """`make support-matrix` compares the document with timm."""
    found = _architectures()
    assert len(found) > 270
    for name, kind in found.items():
        if kind is None:
            check_architecture({"architecture": name})
        else:
            with pytest.raises(ValueError, match=f"timm's {name} has {kind}, which this package does not support"):
                check_architecture({"architecture": name})


@pytest.mark.parametrize(
    ("mode", "ratio", "resize", "crop"),
    [
        ("center", 0.95, 370, (384, 352)),
        ("squash", 1.0, (384, 352), None),
        ("squash", 0.95, (404, 370), (384, 352)),
    ],
)
def test_resizing_is_that_of_timm(mode, ratio, resize, crop):
    settings = {"mean": (0.5, 0.4, 0.3), "std": (0.3, 0.2, 0.1), "crop_pct": ratio, "crop_mode": mode}
    pixels = read_pretrained_cfg(settings, (384, 352))
    assert (pixels["resize"], pixels["crop"]) == (resize, crop)
