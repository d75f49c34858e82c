"""The arrays of each layout compute the same outputs as the original layer for the same input."""

import tempfile

import numpy as np
import pytest

from keras_vit.weights.formats.names import LAYOUTS, Names, Rule, read_rules

# B is the batch size, D the width, K the number of heads, W = D / K, and M another width. All differ.
B, D, K, W, M = 2, 12, 3, 4, 5
RNG = np.random.default_rng(0)
QKV = ("query", "key", "value")
TOKENS = RNG.normal(size=(B, D))


def _decoded(layout, array):
    """The arrays that a layout makes from one array. Encoding them must give the same array."""
    decode, encode = LAYOUTS[layout]
    arrays = decode(array, K)
    np.testing.assert_array_equal(encode(arrays, K), array)
    return arrays


def _linear(kernel):
    """PyTorch's Linear: y = x A^T."""
    return TOKENS @ kernel.T


def test_dense():
    kernel = RNG.normal(size=(M, D))
    [ours] = _decoded("dense", kernel)
    np.testing.assert_allclose(TOKENS @ ours, _linear(kernel))


def test_convolution():
    kernel = RNG.normal(size=(D, 3, 4, 5))  # (out, in, height, width)
    patch = RNG.normal(size=(4, 5, 3))
    [ours] = _decoded("convolution", kernel)
    expected = np.einsum("dchw,hwc->d", kernel, patch)
    np.testing.assert_allclose(np.einsum("hwcd,hwc->d", ours, patch), expected)


@pytest.mark.parametrize(("layout", "count"), [("heads", 1), ("key_value", 2), ("query_key_value", 3)])
def test_heads(layout, count):
    """The outputs of Linear are split into projections, and each projection into heads."""
    kernel, bias = RNG.normal(size=(count * D, D)), RNG.normal(size=count * D)
    expected = (_linear(kernel) + bias).reshape(B, count, K, W)
    for index, (ours, offset) in enumerate(zip(_decoded(layout, kernel), _decoded(layout, bias), strict=True)):
        assert offset.shape == (K, W)
        np.testing.assert_allclose(np.einsum("bd,dkw->bkw", TOKENS, ours) + offset, expected[:, index])


def test_merged_heads():
    kernel = RNG.normal(size=(D, K * W))
    [ours] = _decoded("merged_heads", kernel)
    np.testing.assert_allclose(np.einsum("bkw,kwd->bd", TOKENS.reshape(B, K, W), ours), _linear(kernel))


@pytest.mark.parametrize(
    ("layout", "shape", "older_shapes", "ours"),
    [
        ("same", (3, 1, 7), [], (3, 1, 7)),
        ("table", (1, 6, D), [(6, D)], (6, D)),
        ("token", (D,), [(1, D), (1, 1, 1, D)], (1, 1, D)),
        ("channels", (D,), [(1, 1, 1, D)], (D,)),
    ],
)
def test_shapes(layout, shape, older_shapes, ours):
    array = RNG.normal(size=shape)
    [decoded] = _decoded(layout, array)
    np.testing.assert_array_equal(decoded, array.reshape(ours))
    for older_shape in older_shapes:
        [decoded] = LAYOUTS[layout][0](array.reshape(older_shape), K)
        np.testing.assert_array_equal(decoded, array.reshape(ours))


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        *(("dense", (D,)), ("dense", (1, M, D)), ("convolution", (M, D)), ("table", (2, 6, D)), ("table", ())),
        *(("token", (2, 3, 4, D)), ("channels", (2, D)), ("heads", (D + 1, D)), ("heads", ())),
        *(("key_value", (2 * D + 1, D)), ("query_key_value", (3 * D + 1,)), ("query_key_value", (3 * D + 3, D))),
        *(("merged_heads", (D, D + 1)), ("merged_heads", (D,))),
    ],
)
def test_names_an_array_of_an_impossible_shape(layout, shape):
    count = {"key_value": 2, "query_key_value": 3}.get(layout, 1)
    paths = tuple(f"layer/{i}" for i in range(count))
    names = Names([Rule("array", paths, layout)])
    with pytest.raises(ValueError, match=r"array has the shape .* does not fit its weights .layer/0.* with 3 heads"):
        names.decode({"array": np.ones(shape, "float32")}, K)


TABLE = """
# Names of a model
blocks.{i}.norm1.weight      encoder_block_{i}/attention_norm/gamma
blocks.{i}.norm1.bias        encoder_block_{i}/attention_norm/beta
blocks.{i}.qkv.weight        encoder_block_{i}/attention/{query,key,value}/kernel  query_key_value
blocks.{i}.k.weight          encoder_block_{i}/attention/key/kernel                heads
blocks.{i}.k.bias            encoder_block_{i}/attention/key/bias                  heads
blocks.{i}.attn.proj.weight  encoder_block_{i}/attention/output/kernel             merged_heads

[other]
blocks.{i}.mlp.fc1.weight      encoder_block_{i}/mlp/hidden/kernel  dense
stages.{s}.blocks.{u}.weight   stem_stage_{s}_unit_{u}/kernel
first                          layer/kernel
second                         layer/kernel
f.rst                          layer/other  # not a pattern
"""


def _read(*sections):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(TABLE)
        file.flush()
        return read_rules(file.name, *sections)


NAMES = Names(_read(), ignored=(r"mask_token", r"decoder_.*"))


def test_read_rules():
    rules = _read()
    assert rules[2:4] == [
        Rule(
            "blocks.{i}.qkv.weight", tuple(f"encoder_block_{{i}}/attention/{x}/kernel" for x in QKV), "query_key_value"
        ),
        Rule("blocks.{i}.k.weight", ("encoder_block_{i}/attention/key/kernel",), "heads"),
    ]
    assert rules[-1] == Rule("f.rst", ("layer/other",), "same")
    assert _read("other") == rules[6:]


def test_find():
    assert NAMES.find("blocks.10.norm1.weight")[1] == ("encoder_block_10/attention_norm/gamma",)
    assert NAMES.find("blocks.1.norm1.bias")[1] == ("encoder_block_1/attention_norm/beta",)
    assert NAMES.find("blocks.2.k.bias") == (
        Rule("blocks.{i}.k.bias", ("encoder_block_{i}/attention/key/bias",), "heads"),
        ("encoder_block_2/attention/key/bias",),
    )
    assert NAMES.find("stages.3.blocks.12.weight")[1] == ("stem_stage_3_unit_12/kernel",)
    assert NAMES.find("first")[1] == ("layer/kernel",)
    for x in ("blocks.1xnorm1.weight", "blocks.x.norm1.weight", "a.blocks.1.norm1.weight", "first.", "blocks.1.norm1"):
        assert NAMES.find(x) is None


def test_there_and_back():
    shapes = {
        "blocks.0.norm1.weight": (D,),
        "blocks.1.k.weight": (D, D),
        "blocks.1.k.bias": (D,),
        "blocks.11.attn.proj.weight": (D, D),
        "blocks.11.mlp.fc1.weight": (M, D),
        "stages.0.blocks.1.weight": (2, 3),
        "first": (7,),
    }
    file = {name: RNG.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    weights = NAMES.decode(file, K)
    assert {path: array.shape for path, array in weights.items()} == {
        "encoder_block_0/attention_norm/gamma": (D,),
        "encoder_block_1/attention/key/kernel": (D, K, W),
        "encoder_block_1/attention/key/bias": (K, W),
        "encoder_block_11/attention/output/kernel": (K, W, D),
        "encoder_block_11/mlp/hidden/kernel": (D, M),
        "stem_stage_0_unit_1/kernel": (2, 3),
        "layer/kernel": (7,),
    }
    again = NAMES.encode(weights, K)
    assert again.keys() == file.keys()
    for name, array in file.items():
        np.testing.assert_array_equal(again[name], array)


def test_ignores():
    ones = np.ones(3, "float32")
    file = {"mask_token": ones, "decoder_blocks.0.x": np.ones(3, "int64"), "first": ones}
    assert NAMES.decode(file, K).keys() == {"layer/kernel"}
    assert NAMES.ignores("mask_token")
    assert not NAMES.ignores("mask_token2")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("blocks.1.norm1.wieght", "'blocks.1.norm1.weight'"),
        ("blocks.12.mlp.fc_1.weight", "'blocks.12.mlp.fc1.weight'"),
        ("stages.3.block.7.weight", "'stages.3.blocks.7.weight'"),
        ("blocks.x.norm1.weight", "'blocks.1.norm1.weight'"),
    ],
)
def test_names_what_is_not_known(name, nearest):
    with pytest.raises(ValueError, match=r"contains 1 arrays with unknown names") as caught:
        NAMES.decode({name: np.ones(3, "float32")}, K)
    assert f"unknown names: {name}. Did you mean {nearest}" in str(caught.value)


def test_lists_not_too_many():
    with pytest.raises(ValueError, match=r"contains 11 arrays .* names: \?0, \?1, .*, \?7 and 3 more\.$"):
        NAMES.decode({f"?{i}": np.ones(3, "float32") for i in range(11)}, K)


@pytest.mark.combination("a file with arrays of int8, uint8 or bool", "refused; the array and its type are named")
def test_refusals():
    ones = np.ones(3, "float32")
    for dtype in ("int8", "int32", "bool", "complex64", "uint8"):
        with pytest.raises(ValueError, match=f"first is of type {dtype}. Weights must be floating-point numbers"):
            NAMES.decode({"first": ones.astype(dtype)}, K)
    with pytest.raises(ValueError, match="second and another array of the file both contain layer/kernel"):
        NAMES.decode({"first": ones, "second": ones}, K)
    with pytest.raises(ValueError, match="no names for these weights: layer/third, encoder_block_0/mlp/hidden/other"):
        NAMES.encode(dict.fromkeys(["layer/kernel", "layer/third", "encoder_block_0/mlp/hidden/other"], np.ones(3)), K)
