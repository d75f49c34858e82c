"""The last block computes only the tokens that are used. The outputs equal those of the whole graph."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import RotaryConfig
from keras_vit.layers import EncoderBlock, TokenPooling
from tests.models.tiny import CONFIG, SHAPE, tiny_model
from tests.test_case import TENSORFLOW, assert_close, compute, gradients, random_inputs, randomize, to_numpy

T = 7  # Number of tokens of the tiny model: six patches and the class token.
# (changes of the tiny model, number of tokens that its last block returns)
CASES = [
    *(({}, 1), ({"pooling": "avg", "class_token": True}, T)),
    ({"token_merging": 2, "distillation_token": True, "num_layers": 1}, 2),
    ({"classifier_activation": "softmax", "representation_dim": 7, "layer_scale": 0.1, "qk_norm": True}, 1),
    ({"norm_placement": "after_pooling", "include_top": False}, 1),
    ({"num_register_tokens": 2, "position_embedding": "sincos_2d", "position_placement": "every_layer_shared"}, 1),
    ({"token_merging": 2}, 1),
    ({"include_top": False, "pooling": None, "class_token": True}, T),
    ({"position_embedding": "relative"}, T),
    ({"rotary": RotaryConfig(), "num_register_tokens": 2, "qkv_bias": "no_key"}, 1),
    ({"rotary": RotaryConfig("mixed"), "distillation_token": True, "attention_inner_norm": True}, 2),
    ({"block_norm": "post", "mlp_inner_norm": True, "qkv_bias": "none", "final_norm": False}, 1),
    ({"pooling": "map", "class_token": True, "pool_prefix_tokens": True}, T),
]


def _whole(model):
    """The same layers in a plain functional model."""
    return keras.Model(model.inputs, model.outputs[0])


@pytest.fixture
def num_computed(monkeypatch):
    """{block name: number of tokens that it last returned}"""
    counts, add_mlp = {}, EncoderBlock.add_mlp

    def counted(self, tokens, *arguments):
        counts[self.name] = tokens.shape[1]
        return add_mlp(self, tokens, *arguments)

    monkeypatch.setattr(EncoderBlock, "add_mlp", counted)
    return counts


@pytest.mark.parametrize("case", [*CASES[:3], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[3:])])
def test_numbers_are_those_of_the_whole_graph(case, num_computed):
    changes, expected = case
    model, images = randomize(tiny_model(**changes)), random_inputs(SHAPE)
    last = f"encoder_block_{keras_vit.describe(model).config.num_layers - 1}"
    num_computed.clear()
    outputs = compute(model, images)
    assert num_computed[last] == expected
    assert all(count > 2 for name, count in num_computed.items() if name != last)
    assert_close(outputs, compute(_whole(model), images))
    assert num_computed[last] > 2


def _after_a_step(model):
    """Weights after a step so large that a wrong gradient would show."""
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=TENSORFLOW,  # On TensorFlow, compiling a step takes longer than running it.
    )
    [images] = random_inputs(SHAPE, batch=4)
    model.train_on_batch(images, np.arange(4))
    return model.get_weights()


@pytest.mark.each_backend
def test_gradients_are_those_of_the_whole_graph(num_computed):
    model, images = randomize(tiny_model(num_layers=1)), random_inputs(SHAPE)
    found = gradients(model, images)
    assert num_computed["encoder_block_0"] == 1
    for path, expected in gradients(_whole(model), images).items():
        assert np.abs(expected).max() > 1e-4 or "key/bias" in path, path
        np.testing.assert_allclose(found[path], expected, rtol=0, atol=1e-5, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"token_merging": 2}, {"rotary": RotaryConfig("mixed"), "num_register_tokens": 2}])
def test_rematerialized_training_is_that_of_the_whole_graph(changes, num_computed):
    model = randomize(tiny_model(**changes))
    start = model.get_weights()
    expected = _after_a_step(_whole(model))
    model.set_weights(start)
    keras_vit.rematerialize(model)
    found = _after_a_step(model)
    assert num_computed["encoder_block_1"] == 1
    for weight, value, before, after in zip(model.weights, found, start, expected, strict=True):
        np.testing.assert_allclose(value, after, rtol=0, atol=1e-5, err_msg=weight.path)
        is_cancelled = "key/bias" in weight.path and "rotary" not in changes
        assert not np.array_equal(value, before) or is_cancelled, weight.path


def _shared_pooling(outputs):
    pooling = keras.layers.GlobalAveragePooling1D()
    pooling(keras.Input((T, 12)))
    return pooling(outputs[0])


def _nested_head(outputs):
    tokens = keras.Input((None, 12))
    return keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(tokens))(outputs[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "tail"),
    [
        *(({}, _shared_pooling), ({}, _nested_head)),
        *(({}, lambda outputs, index=index: TokenPooling(index)(outputs[0])) for index in (-2, -1)),
        ({"token_merging": 2}, lambda outputs: [TokenPooling()(outputs[0]), outputs[1]]),
        ({"token_merging": 2}, lambda outputs: TokenPooling(2)(outputs[0])),
        ({"token_merging": 2}, lambda outputs: keras.ops.sum(outputs[1], axis=1)),
    ],
)
def test_whoever_reads_more_gets_it(changes, tail):
    """A model of a ViT's class computes all tokens of the last block that its tail uses."""
    model = randomize(tiny_model(**changes))
    [images] = random_inputs(SHAPE)
    own = type(model)(model.inputs, tail(keras.tree.flatten(model.get_layer("encoder_block_1").output)))
    expected = keras.tree.flatten(keras.Model(own.inputs, own.outputs)(images))
    for found, value in zip(keras.tree.flatten(own(images)), expected, strict=True):
        assert_close(found, to_numpy(value))


@pytest.mark.slow
def test_a_block_that_is_called_twice_computes_all():
    model = randomize(tiny_model())
    block = model.get_layer("encoder_block_1")
    outputs = TokenPooling()(block(block.output))
    twice = type(model)(model.inputs, outputs)
    [images] = random_inputs(SHAPE)
    assert_close(twice(images), to_numpy(_whole(twice)(images)))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="TensorFlow and JAX do not support this scope")
@pytest.mark.parametrize("mode", ["full", "list_of_layers"])
def test_keras_may_compute_the_block_a_second_time(mode):
    start = randomize(tiny_model())
    blocks = ["encoder_block_0", "encoder_block_1"] if mode == "list_of_layers" else None
    with keras.RematScope(mode=mode, layer_names=blocks):
        model = tiny_model()
    model.set_weights(start.get_weights())
    for found, expected in zip(_after_a_step(model), _after_a_step(_whole(start)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="needs PyTorch's exporter")
def test_torch_exports_it_strictly():
    import torch

    model = randomize(tiny_model())
    images = torch.from_numpy(random_inputs(SHAPE)[0])
    exported = torch.export.export(model, (images,), strict=True)
    assert_close(exported.module()(images), to_numpy(model(images)))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"position_embedding": "learned_2d"}, {"rotary": RotaryConfig("mixed")}])
def test_images_of_any_size(changes, num_computed):
    model = randomize(keras_vit.ViT(CONFIG, classes=5, input_shape=(None, None, 3), **changes))
    calls = [model]
    if TENSORFLOW:  # Only TensorFlow traces graphs with unknown sizes.
        import tensorflow as tf

        calls.append(tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3))]))
    [images] = random_inputs((12, 9, 3))
    expected = to_numpy(_whole(model)(images))
    for call in calls:
        num_computed.clear()
        assert_close(call(images), expected)
        assert num_computed["encoder_block_1"] == 1
