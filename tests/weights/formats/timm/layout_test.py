"""timm's layout, tested without timm; tests/peers compares with timm itself."""

import json
import re

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import random_inputs, slow_except, to_numpy
from tests.weights.converter_case import (
    CONFIG,
    SHAPE,
    assert_same_arrays,
    assert_same_weights,
    contents,
    edit,
    make,
    run_converter_test,
    save,
)
from tests.weights.rotary_configs import DINOV3, EVA02, MIXED, PE

EXACT = CONFIG.replace(mlp="gelu_exact")
SWIGLU = CONFIG.replace(mlp="swiglu")
CASES = {
    "token": {"config": EXACT},
    "positions_of_registers": {
        "config": EXACT.replace(pooling="avg", num_register_tokens=2, num_position_prefix_rows=2, qkv_bias="none")
    },
    "dinov3": {
        "config": EXACT.replace(rotary=DINOV3, position_embedding="none", num_register_tokens=4, qkv_bias="no_key"),
        "layer_norm_epsilon": 1e-5,
    },
    "eva02": {
        "config": SWIGLU.replace(rotary=EVA02, mlp_inner_norm=True, qkv_bias="no_key", pooling="avg", class_token=True),
        "norm_placement": "after_pooling",
    },
    "eva_post_norm": {"config": EXACT, "block_norm": "post", "qkv_bias": "no_key"},
    "pe_core": {
        "config": EXACT.replace(rotary=PE, pooling="map", class_token=True, pool_prefix_tokens=True, pre_norm=True),
        "pooling_num_heads": 2,
        "pooling_mlp_dim": 7,
    },
    "rope_mixed": {"config": EXACT, "rotary": MIXED, "layer_scale": 0.1},
    "hybrid": {
        "config": EXACT.replace(stem=keras_vit.StemConfig((), 64, 1e-5, 1e-8), patch_size=(3, 4)),
        "input_shape": (21, 30, 3),
    },
}


@pytest.mark.parametrize("case", slow_except(["eva02"], CASES))
def test_there_and_back(case, tmp_path):
    run_converter_test("timm", tmp_path, **{"num_layers": 2 if case == "token" else 1, **CASES[case]})


@pytest.fixture
def token(saved, copy_of):
    """(weights of a model, folder of its files)"""
    weights, path = saved("timm", EXACT)
    return weights, copy_of(path)


def test_query_key_and_value_are_one_array(saved):
    weights, path = saved("timm", EXACT)
    assert contents(path)["config.json"]["pretrained_cfg"]["first_conv"] == "patch_embed.proj"
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


@pytest.mark.slow
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
    checkpoint = open_checkpoint(path, **arguments)
    assert_same_arrays(checkpoint.read(), weights)
    assert open_checkpoint(path, **{**arguments, "family": "augreg"}).preprocessing["mean"] == 0.5
    assert list(checkpoint.preprocessing["mean"]) == [0.485, 0.456, 0.406]
    with pytest.raises(ValueError, match="hidden_dim must be a multiple of num_heads"):
        keras_vit.from_pretrained(path, **{**arguments, "num_heads": 5})


@pytest.mark.slow
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
        ({}, {"proj_bias": False}, "contains proj_bias=False. This package supports only proj_bias=True"),
        ({}, {"dynamic_img_pad": True}, "contains dynamic_img_pad=True"),
        ({}, {"ref_feat_shape": [16, 16]}, r"contains the unknown setting ref_feat_shape=\[16, 16\]"),
        ({"architecture": "samvit_base_patch16"}, {}, "samvit_base_patch16 has windowed attention"),
        ({"architecture": "mine_rope_small"}, {}, "mine_rope_small has rotary positions of an unknown kind"),
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


@pytest.mark.combination(
    "a file without an array, such as a bias, a norm or a part of a block", "refused; the array is named"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "missing"),
    [
        *(("attn.qkv.bias", "attention/query/bias"), ("norm.weight", "encoder_norm/gamma")),
        *(("norm.bias", "encoder_norm/beta"), ("head.bias", "predictions/bias")),
        ("blocks.1.mlp.fc1.weight", "encoder_block_1/mlp/hidden/kernel"),
    ],
)
def test_arrays_that_the_architecture_needs_are_missed(part, missing, token):
    """A file without biases or without the last norm is incomplete, unless its architecture has none."""
    _, path = token
    edit(path / "model.safetensors", lambda arrays: {name: x for name, x in arrays.items() if not name.endswith(part)})
    with pytest.raises(ValueError, match=f"missing: .*{missing}"):
        keras_vit.from_pretrained(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(
            *("blocks.0.attn.qkv.lora_A.weight", (2, 12)),
            marks=pytest.mark.combination(
                "a file with LoRA arrays that are not merged", "refused; the arrays are named"
            ),
        ),
        pytest.param(
            *("norm_extra.weight", (12,)),
            marks=pytest.mark.combination("a file with an additional norm", "refused; the array is named"),
        ),
    ],
)
def test_arrays_that_no_architecture_has_are_named(name, shape, token):
    _, path = token
    edit(path / "model.safetensors", lambda arrays: {**arrays, name: np.zeros(shape, "float32")})
    with pytest.raises(ValueError, match=rf"unknown names: {re.escape(name)}"):
        keras_vit.from_pretrained(path)


def test_frequencies_of_another_number_of_blocks_are_refused(saved, copy_of):
    path = copy_of(saved("timm", EXACT, rotary=MIXED).path)
    edit(path / "model.safetensors", lambda arrays: {**arrays, "rope.freqs": arrays["rope.freqs"][:, :1]})
    with pytest.raises(ValueError, match=r"rope\.freqs has frequencies for 1 blocks, but the model has 2"):
        keras_vit.from_pretrained(path)


def test_a_naflexvit_of_radio_is_refused(token):
    _, path = token
    config = json.loads((path / "config.json").read_text()) | {"architecture": "naflexvit_base_patch16_radio_v3"}
    (path / "config.json").write_text(json.dumps(config))
    edit(path / "model.safetensors", lambda arrays: {"embeds.proj.weight": arrays["blocks.0.attn.proj.weight"]})
    with pytest.raises(ValueError, match="naflexvit_base_patch16_radio_v3 has the positions of C-RADIO, which this"):
        open_checkpoint(path)


@pytest.mark.slow
def test_another_pooling_drops_the_settings_of_the_attention_pooling(saved):
    weights, path = saved("timm", **CASES["pe_core"])
    model = keras_vit.from_pretrained(path, include_top=False, pooling=None)
    assert model.output_shape == (None, 1 + 6, 12)
    config = keras_vit.describe(model).config
    assert (config.pooling_num_heads, config.pooling_mlp_dim, config.pool_prefix_tokens) == (None, None, False)
    assert_same_weights(model, {path: x for path, x in weights.items() if not path.startswith(("pooling/", "predict"))})


@pytest.mark.slow
@pytest.mark.parametrize(("tag", "activation"), [("openai", "linear"), ("openai_ft_in1k", "softmax")])
def test_projections_have_no_softmax(tag, activation, saved, copy_of):
    path = copy_of(saved("timm", EXACT, classes=512, layer_norm_epsilon=1e-5).path)
    config = json.loads((path / "config.json").read_text())
    assert config["architecture"] == "vit_base_patch16_clip_224"
    config["pretrained_cfg"]["tag"] = tag
    (path / "config.json").write_text(json.dumps(config))
    assert keras_vit.from_pretrained(path).get_layer("predictions").activation.__name__ == activation


def test_reads_an_architecture_of_ones_own_whose_arguments_are_known(token):
    weights, path = token
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architecture": "mine"}))
    assert_same_arrays(open_checkpoint(path).read(), weights)


def test_another_architecture_is_named_as_one_and_not_by_an_array(token):
    _, path = token
    edit(path / "model.safetensors", lambda arrays: {name: arrays[name] for name in arrays if "mlp.fc2" not in name})
    with pytest.raises(
        ValueError, match="timm's VisionTransformer, but arrays or settings are missing or invalid"
    ) as caught:
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
    edit(path / "model.safetensors", lambda arrays: {**arrays, "pos_embed": np.ones((1, 7, 12), "float32")})
    message = "belongs to another model: .* without a table of positions, but the file has"
    with pytest.raises(ValueError, match=message):
        open_checkpoint(path)


@pytest.mark.slow
def test_names_of_classes_survive_the_round_trip(token, tmp_path):
    _, path = token
    config = json.loads((path / "config.json").read_text())
    names = [f"class {index}" for index in range(config["num_classes"])]
    (path / "config.json").write_text(json.dumps(config | {"label_names": names}))
    model = keras_vit.from_pretrained(path, classifier_activation="sigmoid")
    assert keras_vit.describe(model).label_space == names
    again = save(model, tmp_path / "again", "timm")
    assert contents(again)["config.json"]["pretrained_cfg"]["label_names"] == names
    assert open_checkpoint(again).output.kind == "labels"


@pytest.mark.parametrize("text", ["[1]", "{", "\xff"])
def test_refuses_a_broken_config(text, token):
    _, path = token
    (path / "config.json").write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=r"config\.json is not a configuration: .* Download it again, or remove it"):
        keras_vit.from_pretrained(path)
