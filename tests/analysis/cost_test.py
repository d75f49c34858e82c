import keras
import pytest

import keras_vit
from tests.reference.vit import num_macs, num_parameters

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)


def test_layers_of_keras():
    inputs = keras.Input((10, 12, 3))
    x = keras.layers.Conv2D(5, (3, 2), strides=2, padding="valid", name="convolution")(inputs)  # (4, 6, 5)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Dense(7, use_bias=False, name="dense")(x)  # (4, 6, 7)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(x))
    cost = keras_vit.profile(model)
    assert {layer.name: (layer.output_shape, layer.parameters, layer.macs) for layer in cost.layers} == {
        "convolution": ((None, 4, 6, 5), 3 * 2 * 3 * 5 + 5, 4 * 6 * 3 * 2 * 3 * 5),
        "norm": ((None, 4, 6, 5), 4 * 5, 0),
        "dense": ((None, 4, 6, 7), 5 * 7, 4 * 6 * 5 * 7),
        "pool": ((None, 7), 0, 0),
        "head": ((None, 2), 7 * 2 + 2, 7 * 2),
    }
    assert cost.parameters == model.count_params() == sum(layer.parameters for layer in cost.layers)
    assert cost.macs == sum(layer.macs for layer in cost.layers)


def test_grouped_and_one_dimensional_convolutions():
    inputs = keras.Input((9, 6))
    x = keras.layers.Conv1D(4, 3, groups=2, name="grouped")(inputs)  # (7, 4). Each output uses 3 of the 6 channels.
    [grouped] = keras_vit.profile(keras.Model(inputs, x)).layers
    assert (grouped.parameters, grouped.macs) == (3 * 3 * 4 + 4, 7 * 3 * 3 * 4)


def test_vision_transformer_equals_the_formula():
    model = keras_vit.ViT(CONFIG, input_shape=(8, 12, 3), classes=5)
    cost = keras_vit.profile(model)
    letters = (12, 2, 20, 4, 6, 5)
    assert cost.parameters == num_parameters(*letters) == model.count_params()
    assert cost.macs == num_macs(*letters)
    by_name = {layer.name: layer.macs for layer in cost.layers}
    assert by_name["patch_embedding"] == 6 * 4 * 4 * 3 * 12
    assert by_name["predictions"] == 12 * 5
    assert by_name["encoder_norm"] == by_name["pooling"] == 0


def test_a_layer_that_asks_for_the_shapes_of_all_its_inputs():
    model = keras_vit.ViT(CONFIG, input_shape=(None, None, 3), num_layers=1, pooling="avg", axial=True)
    by_name = {layer.name: layer.macs for layer in keras_vit.profile(model, input_shape=(8, 12, 3)).layers}
    rest = 2 * 6 * (4 * 12**2 + 2 * 12 * 20)
    assert by_name["encoder_block_0"] == rest + 2 * (2 * 3**2 + 3 * 2**2) * 12  # 2 rows of 3, 3 columns of 2.


def test_nested_models():
    backbone = keras_vit.ViT(CONFIG, input_shape=(8, 12, 3), include_top=False)
    model = keras.Sequential([keras.Input((8, 12, 3)), backbone, keras.layers.Dense(9, name="mine")])
    cost, inner = keras_vit.profile(model), keras_vit.profile(backbone)
    assert [layer.name for layer in cost.layers] == [layer.name for layer in inner.layers] + ["mine"]
    assert cost.layers[:-1] == inner.layers
    assert cost.macs == inner.macs + 12 * 9
    assert cost.parameters == inner.parameters + 13 * 9


def test_a_layer_that_is_used_twice_costs_twice_and_counts_once():
    inputs = keras.Input((6,))
    shared = keras.layers.Dense(6, name="shared")
    model = keras.Model(inputs, shared(shared(inputs)))
    cost = keras_vit.profile(model)
    assert cost.parameters == 42
    assert cost.macs == 2 * 36


def test_variable_size_needs_an_input_shape():
    model = keras_vit.ViT(CONFIG, input_shape=(None, None, 3), classes=5)
    with pytest.raises(ValueError, match=r"\(None, None, 3\).*Give input_shape"):
        keras_vit.profile(model)
    cost = keras_vit.profile(model, input_shape=(8, 12, 3))
    assert cost.macs == num_macs(12, 2, 20, 4, 6, 5)
    assert keras_vit.profile(model, (16, 12, 3)).macs == num_macs(12, 2, 20, 4, 12, 5)
    assert {layer.name: layer for layer in cost.layers}["encoder_norm"].output_shape == (None, 7, 12)


class _Scale(keras.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=input_shape[1:])

    def call(self, x):
        return x * self.scale


class _CountedScale(_Scale):
    def macs(self, input_shape):
        return input_shape[-1]


def test_unknown_layers_with_weights_are_refused():
    inputs = keras.Input((6,))
    with pytest.raises(TypeError, match=r"MACs of layer 'mine' \(_Scale\) are not known.*macs\(input_shape\)"):
        keras_vit.profile(keras.Model(inputs, _Scale(name="mine")(inputs)))
    assert keras_vit.profile(keras.Model(inputs, _CountedScale()(inputs))).macs == 6


def test_only_functional_models():
    class Subclassed(keras.Model):
        input_shape = (None, 6)

    for other in (Subclassed(), keras.Sequential([keras.layers.Dense(3)]), keras.layers.Dense(3), "B/16"):
        with pytest.raises(TypeError, match=r"A functional keras\.Model is needed"):
            keras_vit.profile(other, input_shape=(6,))


def test_printed():
    inputs = keras.Input((10, 12, 30))
    x = keras.layers.Dense(50, name="projection")(inputs)
    assert str(keras_vit.profile(keras.Model(inputs, x))).splitlines() == [
        "layer       output shape        parameters     MACs",
        "projection  (None, 10, 12, 50)       1,550  180,000",
        "total                                1,550  180,000",
    ]
