"""Models that merge tokens (ToMe, arXiv 2210.09461): equations, weights and errors."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.steps import train
from tests.models.tiny import CONFIG, tiny_model
from tests.reference import token_merging as reference
from tests.test_case import assert_close, canonical_weights, parts, random_inputs, randomize, run_parity_test, to_numpy

SHAPE = (16, 15, 3)  # 4 x 5 patches.
merging_model = functools.partial(tiny_model, input_shape=SHAPE, token_merging=3)


@pytest.fixture(scope="module")
def model():
    """A model with random weights, for tests that do not change it."""
    return randomize(merging_model())


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        pytest.param({}, "token", marks=pytest.mark.on_torch),
        ({"pooling": "avg", "num_register_tokens": 3}, "avg"),
        # In the third block, 7 is more than half of the patches.
        pytest.param(
            *({"token_merging": 7, "num_layers": 3, "distillation_token": True, "qk_norm": True}, "token"),
            marks=pytest.mark.slow,
        ),
        pytest.param({"pooling": "map"}, "map", marks=pytest.mark.slow),
    ],
)
def test_equals_the_equations(changes, pooling):
    model = merging_model(**changes)
    merged = keras_vit.describe(model).config.token_merging
    run_parity_test(model, functools.partial(reference.model, r=merged, pooling=pooling), random_inputs(SHAPE))


@pytest.mark.slow
def test_tokens_become_fewer_from_block_to_block():
    model = merging_model(num_layers=4, token_merging=7, include_top=False, pooling=None)
    shapes = [model.get_layer(f"encoder_block_{i}").output[0].shape for i in range(4)]
    assert shapes == [(None, 14, 12), (None, 8, 12), (None, 5, 12), (None, 3, 12)]  # 20 patches, halved at most.
    assert model.output_shape == (None, 3, 12)
    outputs = [model.output, model.get_layer("encoder_block_3").output[1]]
    tokens, sizes = keras.Model(model.inputs[0], outputs)(random_inputs(SHAPE)[0])
    assert tokens.shape == (2, 3, 12)
    np.testing.assert_array_equal(to_numpy(sizes).sum(1), [21, 21])
    np.testing.assert_array_equal(to_numpy(sizes)[:, 0], [1, 1])


def test_all_layers_are_built(model):
    # Otherwise, Keras's `predict` on JAX runs the model eagerly before each batch.
    assert [layer for layer in parts(model) if not layer.built] == []


@pytest.mark.slow
def test_published_weights_go_in(tmp_path):
    """Published weights can be loaded, but not saved: their files cannot express token merging."""
    arguments = {"patch_size": 4, "input_shape": (16, 20, 3), "mlp": "gelu_exact"}
    merging, without = randomize(merging_model(**arguments)), merging_model(token_merging=0, **arguments)
    without.set_weights(merging.get_weights())
    with pytest.raises(ValueError, match=r"timm cannot express token_merging=3 \(accepted: 0\)"):
        keras_vit.save_weights(merging, tmp_path / "a", "timm")
    keras_vit.save_weights(without, tmp_path / "a", "timm")
    again = keras_vit.from_pretrained(tmp_path / "a", token_merging=3, classifier_activation=None)
    [images] = random_inputs((16, 20, 3))
    assert_close(again(images), to_numpy(merging(images)))
    assert not np.allclose(to_numpy(without(images)), to_numpy(merging(images)), atol=1e-3)


@pytest.mark.slow
def test_images_of_any_size():
    fixed = randomize(merging_model(pooling="avg", position_embedding="sincos_2d"))
    model = merging_model(pooling="avg", position_embedding="sincos_2d", input_shape=(None, None, 3))
    model.set_weights(fixed.get_weights())
    [images] = random_inputs(SHAPE)
    expected = to_numpy(fixed(images))
    assert_close(model(images), expected)
    # One or two patches allow at most one merge.
    for width in (3, 6):
        assert model(images[:, :4, :width]).shape == (2, 5)
    assert keras_vit.profile(model, SHAPE).macs == keras_vit.profile(fixed).macs


@pytest.mark.on_torch
def test_training():
    """A step changes every weight but the biases of the keys. Rematerialised blocks give the same step."""
    before, trained = randomize(merging_model(num_layers=1)), []
    for is_rematerialized in (False, True):
        keras.utils.set_random_seed(0)  # This seeds PyTorch too.
        model = merging_model(num_layers=1, dropout_rate=0.2, drop_path_rate=0.4)
        model.set_weights(before.get_weights())
        keras_vit.rematerialize(model, is_rematerialized)
        train(model, SHAPE, keras.optimizers.SGD(1.0), batch=4)
        trained.append(canonical_weights(model))
    for path, value in canonical_weights(before).items():
        after, after_rematerialized = (weights[path] for weights in trained)
        assert np.isfinite(after).all()
        assert path.endswith("key/bias") or not np.array_equal(value, after), path
        np.testing.assert_allclose(after_rematerialized, after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"axial": True, "pooling": "avg"}, "axial=True"),
        ({"position_embedding": "relative"}, "position_embedding='relative'"),
        ({"position_placement": "every_layer"}, "position_placement='every_layer'"),
        ({"position_placement": "every_layer_shared"}, "position_placement='every_layer_shared'"),
    ],
)
def test_refuses_what_needs_the_grid(changes, received):
    with pytest.raises(ValueError, match=f"token_merging=3 leaves no grid .* Received: {received}$"):
        CONFIG.replace(token_merging=3, **changes)
    CONFIG.replace(token_merging=0, **changes)


def test_analyses_of_patches_are_refused(model):
    images = np.zeros((1, *SHAPE), "float32")
    for look in (
        *(keras_vit.attention_maps, keras_vit.attention_rollout, keras_vit.mean_attention_distance),
        *(keras_vit.attention_entropy, keras_vit.local_attention_ratio),
        functools.partial(keras_vit.features, layers=["patch_embedding", "encoder_block_0"]),
        functools.partial(keras_vit.features, layers=["encoder_norm/class_token"]),
    ):
        with pytest.raises(ValueError, match=r"token_merging=3. Build the model with token_merging=0, .* same weights"):
            look(model, images)


@pytest.mark.parametrize("kind", ["MaskedPatchPrediction", "MaskedAutoencoder"])
def test_pretraining_is_refused(kind, model):
    with pytest.raises(ValueError, match=r"token_merging=3 merges tokens. Pre-train the model with token_merging=0"):
        getattr(keras_vit.pretraining, kind)(model)
