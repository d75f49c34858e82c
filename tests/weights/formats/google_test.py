"""Files in the format of Google's code load; tests/models/golden_test.py compares the outputs with that code.

Most tests check the config and the weights of `open_checkpoint`, so they build no model.
"""

import functools
import pathlib

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.formats import google
from keras_vit.weights.formats.format import ModelDescription
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import slow_except
from tests.weights.converter_case import CONFIG, SHAPE, assert_refused, assert_same_arrays, run_converter_test

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
MODELS = [
    *("vit_token", "vit_token_prelogits", "vit_gap", "hybrid_r2stage", "hybrid_r2stage_odd", "hybrid_stem_only"),
    *("bv_gap_sincos_rep", "bv_tok_learn", "bv_map_learn", "bv_map_scan"),
]
PRE_LINEN = {"LayerNorm_2": "LayerNorm_1", "MlpBlock_3": "MlpBlock_0"}
PRE_LINEN |= {"HeadDotProductAttention_1": "HeadDotProductAttention_0"}
VIT_POSITIONS = "Transformer/posembed_input/pos_embedding"
POSITIONS = "position_embedding/embedding"
SIZE = (16, 16)
"""Image size of most golden models."""


def _golden(name):
    """The arrays of a golden file."""
    arrays = dict(np.load(GOLDEN / f"{name}.npz"))
    return {key: array for key, array in arrays.items() if not key.startswith("__")}


def _read(arrays, folder, **hints):
    """(checkpoint of a file with these arrays, {canonical path: array} of its weights)"""
    np.savez(folder / "published.npz", **arrays)
    checkpoint = open_checkpoint(folder / "published.npz", **{"model_image_size": SIZE, **hints})
    return checkpoint, checkpoint.read()


def _load(arrays, folder, **arguments):
    """The model of a file with these arrays. Its images have 16 x 16 pixels by default."""
    np.savez(folder / "published.npz", **arrays)
    return keras_vit.from_pretrained(folder / "published.npz", **{"input_shape": (*SIZE, 3), **arguments})


def _linen(arrays):
    for old, new in PRE_LINEN.items():
        arrays = {name.replace(f"{old}/", f"{new}/"): array for name, array in arrays.items()}
    return arrays


def _assert_same_model(arrays, expected, folder, **hints):
    """Asserts that both files describe the same model with the same weights."""
    (checkpoint, weights), (theirs, their_weights) = (_read(file, folder, **hints) for file in (arrays, expected))
    for field in ("config", "classes", "grid_size"):
        assert getattr(checkpoint, field) == getattr(theirs, field)
    assert_same_arrays(weights, their_weights)
    assert all(array.dtype == their_weights[path].dtype for path, array in weights.items())


STEM = {"config": CONFIG.replace(stem=keras_vit.StemConfig((1,), 32), patch_size=(3, 4)), "input_shape": (21, 30, 3)}
# test_writes_what_the_authors_code_reads tests the kinds of model that have golden files.
CASES = {
    "token": {},
    "average_pre_logits_no_bias": {"pooling": "avg", "representation_dim": 7, "head_bias": -10.0},
    "hybrid": STEM,
    "map_no_head": {"pooling": "map", "include_top": False},
    "grid_only": {"num_position_prefix_rows": 0},
    "sincos": {"position_embedding": "sincos_2d"},
}


@pytest.mark.parametrize(
    "case", [pytest.param("token", marks=pytest.mark.each_backend), *slow_except(["map_no_head"], [*CASES][1:])]
)
def test_there_and_back(case, tmp_path):
    arguments = {"num_layers": 2 if case == "token" else 1, **CASES[case]}
    run_converter_test("google", tmp_path, hints={"input_shape": arguments.get("input_shape", SHAPE)}, **arguments)


@pytest.mark.parametrize("name", MODELS)
def test_writes_what_the_authors_code_reads(name, tmp_path):
    """The names and arrays are the same, except that blocks are not stacked and GroupNorm's arrays are vectors."""
    arrays = _golden(name)
    size = np.load(GOLDEN / f"{name}.npz")["__input__"].shape[1:3]
    checkpoint, weights = _read(arrays, tmp_path, model_image_size=size)
    assert sum(array.size for array in weights.values()) == sum(array.size for array in arrays.values())
    description = ModelDescription(checkpoint.config, size, 3, checkpoint.classes, checkpoint.preprocessing)
    [written] = google.FORMAT.write(weights, description).values()
    if name == "bv_map_scan":
        block = "Transformer/encoderblock"
        written = {key.replace(f"{block}_0", block): array for key, array in written.items() if f"{block}_1" not in key}
        arrays = {key: array[0] if f"{block}/" in key else array for key, array in arrays.items()}
    assert written.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(written[key], array.reshape(-1) if "gn" in key else array, err_msg=key)


OTHERS = {
    "": {"opt/state/step": np.int64(3), "opt/state/param_states/head/bias/mu": np.ones(7, "float32")},
    "opt/target/": {"opt/state/step": np.int64(3), "opt/state/param_states/cls/grad_ema": np.ones(24, "float32")},
    "params/": {"opt/0/count": np.int32(7), "opt/0/mu/head/bias": np.ones(7, "float32"), "step": np.arange(2)},
    "params/img/": {
        "params/txt/head/bias": np.ones(3, "float32"),
        "params/t": np.ones(1, "float32"),
        "opt/n": np.uint8(3),
    },
    "img/": {
        "txt/embedding/kernel": np.ones((4, 3), "float32"),
        "t": np.ones((), "float32"),
        "b": np.ones(1, "float32"),
    },
}


@pytest.mark.parametrize("prefix", OTHERS)
def test_finds_the_model_in_a_training_state(prefix, tmp_path):
    arrays = _golden("vit_token")
    file = {**OTHERS[prefix], **{f"{prefix}{name}": array for name, array in arrays.items()}}
    _assert_same_model(file, arrays, tmp_path)
    checkpoint, _ = _read(file, tmp_path)
    assert set(checkpoint.skipped) == set(OTHERS[prefix])
    # A model of images and texts has no classes.
    assert checkpoint.output.kind == ("embedding" if prefix.endswith("img/") else "classes")


def test_both_generations_of_names(tmp_path):
    arrays = _golden("vit_token")
    linen = _linen(arrays)
    assert len(linen.keys() - arrays.keys()) == 2 * (2 + 8 + 4)
    _assert_same_model(linen, arrays, tmp_path)


def test_stacked_blocks(tmp_path):
    arrays = _golden("bv_map_learn")
    first = {name for name in arrays if "encoderblock_0/" in name}
    stacked = {name: array for name, array in arrays.items() if "encoderblock_" not in name}
    for name in first:
        pair = [arrays[name], arrays[name.replace("encoderblock_0", "encoderblock_1")]]
        stacked[name.replace("encoderblock_0", "encoderblock")] = np.stack(pair)
    _assert_same_model(stacked, arrays, tmp_path)


def test_bfloat16(tmp_path):
    arrays = _golden("vit_token")
    bits = {name: np.ascontiguousarray(array).view("uint32") >> 16 for name, array in arrays.items()}
    rounded = {name: (array << 16).view("float32") for name, array in bits.items()}
    stored = {name: array.astype("uint16").view("V2") for name, array in bits.items()}
    assert stored["cls"].dtype == "V2"
    _assert_same_model(stored, rounded, tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_floating_point_numbers(dtype, tmp_path):
    stored = {name: array.astype(dtype) for name, array in _golden("vit_token").items()}
    _, weights = _read(stored, tmp_path)
    _, expected = _read({name: array.astype("float32") for name, array in stored.items()}, tmp_path)
    assert_same_arrays({path: array.astype("float32") for path, array in weights.items()}, expected)


@pytest.mark.parametrize(("name", "own_place"), [("bv_map_learn", "pos_embedding"), ("vit_gap", VIT_POSITIONS)])
def test_old_places_of_positions(name, own_place, tmp_path):
    arrays = _golden(name)
    table = arrays.pop(own_place)
    for place in {"Transformer/pos_embedding", "pos_embedding", VIT_POSITIONS} - {own_place}:
        _assert_same_model({**arrays, place: table}, {**arrays, own_place: table}, tmp_path)


@pytest.mark.parametrize("place", ["pos_embedding", "Transformer/pos_embedding", VIT_POSITIONS])
def test_old_files_of_big_vision_have_a_row_for_the_class_token(place, tmp_path):
    arrays = _golden("vit_token")
    table = arrays.pop(VIT_POSITIONS)
    checkpoint, weights = _read({**_linen(arrays), place: table}, tmp_path)
    assert checkpoint.config.position_prefix_rows == 1
    np.testing.assert_array_equal(weights[POSITIONS], table[0])


def test_inlined_attention_pooling(tmp_path):
    arrays = _golden("bv_map_learn")
    inlined = {name.removeprefix("MAPHead_0/"): array for name, array in arrays.items()}
    assert "probe" in inlined
    _assert_same_model(inlined, arrays, tmp_path)


def test_shapes_of_group_norm(tmp_path):
    arrays = _golden("hybrid_r2stage_odd")
    flat = {name: array.reshape(-1) if "gn" in name else array for name, array in arrays.items()}
    assert arrays["gn_root/scale"].shape == (1, 1, 1, 32)
    _assert_same_model(flat, arrays, tmp_path, model_image_size=(57, 57))


def test_empty_modules(tmp_path):
    arrays = _golden("vit_token")
    empty = {"pre_logits": np.zeros((0,)), "Transformer/encoderblock_0/Dropout_0": np.zeros((3, 0), "int64")}
    _assert_same_model({**arrays, **empty}, arrays, tmp_path)
    checkpoint, _ = _read({**arrays, **empty}, tmp_path)
    assert set(checkpoint.skipped) == set(empty)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models with the class token's golden file, for three image shapes. Two shapes need adapted arrays."""
    np.savez(path := tmp_path_factory.mktemp("models") / "good.npz", **_golden("vit_token"))
    shapes = (16, 16, 3), (16, 16, 1), (8, 32, 3)
    return path, [keras_vit.from_pretrained(path, grid_size=(4, 4), input_shape=shape) for shape in shapes]


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        pytest.param(VIT_POSITIONS, np.nan, "position_embedding/embedding", marks=pytest.mark.slow),
        ("Transformer/encoderblock_1/LayerNorm_2/scale", -np.inf, "encoder_block_1/mlp_norm/gamma"),
    ],
)
def test_refuses_what_is_not_finite(name, value, path, models, tmp_path):
    arrays = _golden("vit_token")
    arrays[name].reshape(-1)[-1] = value
    np.savez(tmp_path / "published.npz", **arrays)
    match = f"published.npz: Weights contain NaN or infinite values: {path}.*. The file is damaged"
    for model in models[1]:  # Two of them need adapted arrays.
        load = functools.partial(keras_vit.load_weights, model, tmp_path / "published.npz", grid_size=(4, 4))
        assert_refused(load, model, match)
    with pytest.raises(ValueError, match=match):
        _load(arrays, tmp_path, input_shape=model.input_shape[1:], grid_size=(4, 4))


def test_as_many_patches_in_another_arrangement(models):
    """An error asks for the grid, although the file has as many patches as the model, which has 2 x 8."""
    path, [*_, model] = models
    assert_refused(lambda: keras_vit.load_weights(model, path), model, r"Pass grid_size=")


def test_asks_how_positions_are_arranged(tmp_path):
    arrays = _golden("vit_token")
    for input_shape in (None, (8, 32, 3)):
        with pytest.raises(ValueError, match=r"has 17 position rows for patches of 4 x 4 pixels.* Pass grid_size="):
            _load(arrays, tmp_path, input_shape=input_shape)
    model = _load(arrays, tmp_path, input_shape=None, grid_size=(2, 8))
    assert model.input_shape == (None, 8, 32, 3)
    assert keras_vit.describe(model).adaptations == {}
    with pytest.raises(ValueError, match=r"Pass grid_size=.* Received: grid_size=\(3, 5\)"):
        _load(arrays, tmp_path, grid_size=(3, 5))


def _published(num_rows, name="bv_tok_learn"):
    """The arrays of a file with patches of 16 pixels and this number of position rows."""
    arrays = _golden(name)
    rng = np.random.default_rng(4)
    place = "pos_embedding" if name == "bv_tok_learn" else VIT_POSITIONS
    kernel = rng.normal(size=(16, 16, 3, 24), scale=0.05).astype("float32")
    return {**arrays, "embedding/kernel": kernel, place: rng.normal(size=(1, num_rows, 24)).astype("float32")}


def test_196_rows_are_never_195_and_one(tmp_path):
    for num_rows in (196, 197):
        checkpoint, weights = _read(_published(num_rows), tmp_path, model_image_size=None)
        assert (checkpoint.image_size, checkpoint.grid_size) == ((224, 224), (14, 14))
        assert checkpoint.config.position_prefix_rows == num_rows - 196
        assert weights[POSITIONS].shape == (num_rows, 24)
    with pytest.raises(ValueError, match=r"has 196 position rows .* Pass grid_size="):  # One row is the class token's.
        _load(_published(196, "vit_token"), tmp_path, input_shape=None)


def test_refuses_two_places_of_positions(tmp_path):
    arrays = _golden("bv_tok_learn")
    with pytest.raises(ValueError, match=r"published\.npz.* both contain position_embedding/embedding"):
        _load({**arrays, VIT_POSITIONS: np.ones((1, 17, 24), "float32")}, tmp_path)


def test_refuses_patches_instead_of_images(tmp_path):
    arrays = _golden("bv_map_learn")
    arrays["embedding/kernel"] = arrays["embedding/kernel"].reshape(48, 24)
    with pytest.raises(ValueError, match=r"embedding/kernel must be .* the shape \(48, 24\)"):
        _load(arrays, tmp_path)
    arrays |= {"embedding/kernel": np.zeros((50, 24), "float32"), "pos_embedding": np.zeros((4, 4, 24), "float32")}
    with pytest.raises(ValueError, match=r"square, with 3 channels. Received: 50 numbers"):  # Of a NaFlex model.
        _load(arrays, tmp_path)


@pytest.mark.parametrize("lost", ["Transformer/encoderblock_", "MlpBlock_3/Dense_0", "embedding/kernel"])
def test_refuses_half_a_file(lost, tmp_path):
    arrays = _golden("vit_token")
    with pytest.raises(ValueError, match=r"published\.npz"):
        _load({name: array for name, array in arrays.items() if lost not in name}, tmp_path)
