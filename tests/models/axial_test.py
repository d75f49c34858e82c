"""Building, nesting and saving Axial-ViT. Its equations are in equations_test.py, its counts in variants_test.py."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.tiny import CONFIG, SHAPE
from tests.test_case import assert_close, random_inputs, randomize, to_numpy


def _tiny(**arguments):
    return keras_vit.AxialViT(CONFIG, **{"input_shape": SHAPE, "classes": 5, **arguments})


@pytest.mark.slow
def test_is_a_vision_transformer_with_axial_blocks():
    arguments = {"input_shape": (64, 96, 1), "classes": 7, "classifier_activation": None, "num_layers": 1}
    model = keras_vit.AxialViT("Ti/16", position_embedding="learned_2d", **arguments)
    same = keras_vit.ViT("Ti/16", axial=True, pooling="avg", position_embedding="learned_2d", **arguments)
    assert model.get_config() == same.get_config()
    assert keras_vit.describe(model).config == keras_vit.VARIANTS["Ti/16"].replace(
        axial=True, pooling="avg", position_embedding="learned_2d", num_layers=1
    )
    assert model.name == "axial_vit_Ti16"


def test_functions_of_the_paper(monkeypatch):
    seen = []
    monkeypatch.setattr(keras_vit.models.vit, "build_model", lambda config, **arguments: seen.append(config))
    for build in (keras_vit.AxialViTB16, keras_vit.AxialViTB32):
        build()
        build(pooling="map", classes=3)
    keras_vit.AxialViT()
    expected = [
        keras_vit.VARIANTS[variant].replace(axial=True, pooling=pooling)
        for variant in ("B/16", "B/32")
        for pooling in ("avg", "map")
    ]
    assert seen == [*expected, expected[2]]
    assert "`keras_vit.ViT(\"B/16\", axial=True, pooling='avg', ...)`" in keras_vit.AxialViTB16.__doc__
    assert "published weights" not in keras_vit.AxialViTB16.__doc__


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "channels", "output_shape"),
    [("avg", 1, (12,)), ("map", 4, (12,)), (None, 1, (6, 12))],
)
def test_outputs(pooling, channels, output_shape):
    shape = (12, 6, channels)  # 3 x 2 patches.
    token = {"class_token": False} if pooling is None else {}
    model = _tiny(include_top=False, input_shape=shape, pooling=pooling, **token)
    assert model.output_shape == (None, *output_shape)
    assert tuple(model(random_inputs(shape)[0]).shape) == (2, *output_shape)


def test_has_no_class_token():
    with pytest.raises(ValueError, match="without class token and registers"):
        _tiny(pooling="token")


@pytest.mark.slow
def test_nested_in_another_model():
    changes = {"position_embedding": "learned_2d", "position_placement": "every_layer_shared", "drop_path_rate": 0.2}
    inner = _tiny(include_top=False, input_shape=(None, None, 3), name="inner", **changes)
    inputs = keras.Input(SHAPE)
    outer = randomize(keras.Model(inputs, keras.layers.Dense(4, name="after")(inner(inputs))))
    assert keras_vit.describe(outer).config == keras_vit.describe(inner).config
    keras_vit.rematerialize(outer)
    blocks = [inner.get_layer(f"encoder_block_{i}") for i in range(2)]
    assert all(part.use_rematerialization for block in blocks for part in (block.row, block.column))
    assert [cost.macs for cost in keras_vit.profile(outer).layers if cost.name == "encoder_block_1"] == [
        2 * (6 * 4 * 144 + 6 * 2 * 12 * 20) + 2 * 12 * (2 * 3**2 + 3 * 2**2)
    ]


@pytest.mark.slow
def test_own_weights_file(tmp_path):
    model = randomize(_tiny())
    names = [layer.name for layer in keras_vit.ViT(CONFIG, input_shape=SHAPE, pooling="avg").layers]
    assert [layer.name for layer in model.layers] == names
    model.save_weights(tmp_path / "mine.weights.h5")
    again = _tiny(weights=tmp_path / "mine.weights.h5", name="named")
    assert (model.name, again.name) == ("axial_vit", "named")
    [images] = random_inputs(SHAPE)
    assert_close(again(images), to_numpy(model(images)), 1e-6)


@pytest.mark.slow  # The tests of the layers cover this too.
def test_mixed_precision():
    def build():
        return randomize(_tiny(position_placement="every_layer", classifier_activation=None))

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build()
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.get_layer("encoder_block_0").row.attention.compute_dtype == "bfloat16"
    [images] = random_inputs(SHAPE)
    outputs, expected = to_numpy(model(images)), to_numpy(build()(images))
    assert np.abs(outputs - expected).max() < 0.05 * np.abs(expected).max()  # bfloat16: 30 roundings to 2^-9.
