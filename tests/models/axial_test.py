"""Building and saving Axial-ViT. Its equations are in equations_test.py, its counts in variants_test.py."""

import pytest

import keras_vit
from tests.models.tiny import CONFIG, SHAPE
from tests.test_case import assert_close, random_inputs, randomize, to_numpy


def _tiny(**arguments):
    return keras_vit.AxialViT(CONFIG, **{"input_shape": SHAPE, "classes": 5, **arguments})


def test_functions_of_the_paper(monkeypatch):
    seen = []
    monkeypatch.setattr(keras_vit.models.vit, "build_model", lambda config, shared, name: seen.append(config))
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


def test_has_no_class_token():
    with pytest.raises(ValueError, match="without class token and registers"):
        _tiny(pooling="token")


@pytest.mark.slow
def test_layers_and_own_weights_file(tmp_path):
    model = randomize(_tiny())
    names = [layer.name for layer in keras_vit.ViT(CONFIG, input_shape=SHAPE, pooling="avg").layers]
    assert [layer.name for layer in model.layers] == names
    keras_vit.rematerialize(model)
    blocks = [model.get_layer(f"encoder_block_{i}") for i in range(2)]
    assert all(part.use_rematerialization for block in blocks for part in (block.row, block.column))
    model.save_weights(tmp_path / "mine.weights.h5")
    again = _tiny(weights=tmp_path / "mine.weights.h5", name="named")
    assert (model.name, again.name) == ("axial_vit", "named")
    [images] = random_inputs(SHAPE)
    assert_close(again(images), to_numpy(model(images)), 1e-6)
