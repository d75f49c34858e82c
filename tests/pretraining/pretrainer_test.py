"""The properties that all pre-training models share."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MaskedAutoencoder, MaskedPatchPrediction
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.test_case import MIXED_POLICY, TENSORFLOW, assert_close, random_inputs, randomize, rest_slow, to_numpy

PRETRAININGS = {
    "masked_patches": MaskedPatchPrediction,
    "mae": lambda model, **options: MaskedAutoencoder(model, 0.5, 1, 8, 2, **options),
}
both = pytest.mark.parametrize("build", PRETRAININGS.values(), ids=list(PRETRAININGS))


@pytest.fixture(scope="module")
def model():
    """A model with random weights. No test trains it."""
    return randomize(tiny_model(num_layers=1))


def step(pretraining, images):
    """The loss of one step. It runs eagerly on TensorFlow, where tracing takes longer than the step."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01)
    pretraining.compile(optimizer, run_eagerly=TENSORFLOW)
    return np.ravel(pretraining.train_on_batch(images))[0]


def values(variables):
    return {variable.path: np.array(to_numpy(variable)) for variable in variables}


def changed(before, variables):
    """Names of the layers with changed weights."""
    after = values(variables)
    return {path.split("/")[0] for path in before if (before[path] != after[path]).any()}


MASKED_PATCHES, MAE = PRETRAININGS.values()


CASES = [
    (MASKED_PATCHES, {"distillation_token": True, "mlp": "swiglu", "dropout_rate": 0.1, "drop_path_rate": 0.2}),
    (MAE, {"pooling": "map", "num_register_tokens": 2, "position_embedding": "learned_2d", "representation_dim": 7}),
    (MAE, {"pooling": "avg", "norm_placement": "after_pooling", "position_embedding": "sincos_2d", "pre_norm": True}),
    # MAE cannot train the following encoders.
    (MASKED_PATCHES, {"stem": STEM, "patch_size": 1, "num_layers": 1}),
    (MASKED_PATCHES, {"axial": True, "pooling": "avg", "position_placement": "every_layer"}),
    (MASKED_PATCHES, {"rotary": keras_vit.RotaryConfig("mixed"), "position_embedding": "none", "final_norm": False}),
]


@pytest.mark.parametrize("case", [pytest.param(CASES[0], marks=pytest.mark.each_backend), *rest_slow(CASES)[1:]])
def test_trains_the_encoder_of_every_model_and_nothing_behind_it(case):
    build, changes = case
    config = CONFIG.replace(**changes)
    shape = (16, 24, 3) if config.stem else SHAPE
    model = randomize(keras_vit.ViT(config, input_shape=shape, classes=5, include_top=config.pooling is not None))
    before = values(model.variables)
    assert np.isfinite(step(build(model, seed=0), random_inputs(shape)[0]))
    behind = {"pooling", "pooled_norm", "pre_logits", "predictions", "distillation_predictions"}
    with_weights = {layer.name for layer in model.layers if layer.trainable_variables}
    assert changed(before, model.variables) - {"seed_generator"} == with_weights - behind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "policy"), [(MASKED_PATCHES, MIXED_POLICY), (MAE, "mixed_bfloat16")], ids=list(PRETRAININGS)
)
def test_mixed_precision(build, policy):
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        pretraining = build(tiny_model(include_preprocessing=True, num_layers=1))
        images = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype("uint8")
        loss = step(pretraining, images)
        outputs = pretraining(images)
    finally:
        keras.config.set_dtype_policy(previous)
    assert np.isfinite(loss)
    assert {keras.backend.standardize_dtype(outputs[name].dtype) for name in ("predictions", "mask")} == {"float32"}
    expected = build(tiny_model(include_preprocessing=True, num_layers=1))(images)["targets"]
    assert_close(outputs["targets"], to_numpy(expected))  # The colours are computed from float32 pixels.


@pytest.mark.slow
@both
def test_images_of_any_size(build):
    pretraining = build(tiny_model(input_shape=(None, 9, 3), include_top=False, num_layers=1), seed=0)
    for height in (8, 12):
        [images] = random_inputs((height, 9, 3))
        outputs = pretraining(images)
        assert outputs["mask"].shape == (2, 3 * height // 4)
        assert np.isfinite(pretraining.compute_loss(images, y_pred=outputs))


def test_a_seed_decides(model):
    [images] = random_inputs(SHAPE, batch=9)
    first, same, other = (to_numpy(MAE(model, seed=seed)(images)["mask"]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_what_layers_add_to_the_loss():
    pretraining = MASKED_PATCHES(tiny_model(num_layers=1), seed=0)
    [images] = random_inputs(SHAPE)
    outputs = pretraining(images)
    plain = to_numpy(pretraining.compute_loss(images, y_pred=outputs))
    [kernel] = [variable for variable in pretraining.trainable_variables if variable.path == "patch_embedding/kernel"]
    kernel.regularizer = keras.regularizers.L2(0.1)
    expected = plain + 0.1 * np.square(to_numpy(kernel)).sum()
    assert_close(pretraining.compute_loss(images, y_pred=outputs), expected)


def test_an_optimizer_has_its_variables_before_the_step_is_traced(model):
    """Otherwise TensorFlow traces the step twice, which takes seconds."""
    pretraining = MASKED_PATCHES(model, seed=0)
    pretraining.compile("adam")
    pretraining.make_train_function()
    assert len(pretraining.optimizer.variables) > 2 * len(pretraining.trainable_variables)


@pytest.mark.slow
def test_labels_are_not_read(model):
    import tensorflow as tf

    images, labels = random_inputs(SHAPE, batch=6)[0], np.arange(6) % 5
    losses = []
    for data in (images, (images, labels), (images, labels, np.ones(6))):
        pretraining = MASKED_PATCHES(model, seed=0)
        pretraining.compile("sgd", run_eagerly=True)
        losses.append(pretraining.evaluate(tf.data.Dataset.from_tensor_slices(data).batch(6), verbose=0))
    assert losses[0] == losses[1] == losses[2]


@both
def test_weights_of_images_are_read(build, model):
    images = random_inputs(SHAPE, batch=6)[0]
    pretraining = build(model, seed=0)
    outputs = pretraining(images)
    weights = np.array([1, 0, 0, 2, 0, 0], "float32")
    kept = {name: to_numpy(array)[[0, 3, 3]] for name, array in outputs.items()}
    assert_close(
        pretraining.compute_loss(images, y_pred=outputs, sample_weight=weights),
        to_numpy(pretraining.compute_loss(images[[0, 3, 3]], y_pred=kept)),
    )


@both
def test_reload(build, tmp_path):
    """The encoder, the decoder or head, and the optimizer are restored, and training continues identically."""
    images = random_inputs(SHAPE)[0]
    pretraining = build(tiny_model(num_register_tokens=2, num_layers=1), seed=4, name="mine")
    step(pretraining, images)
    pretraining.save(tmp_path / "mine.keras")
    again = keras.saving.load_model(tmp_path / "mine.keras")
    configs = [{**one.get_config(), "model": one.model.name} for one in (again, pretraining)]
    assert configs[0] == configs[1]
    for mine, theirs in ((pretraining, again), (pretraining.optimizer, again.optimizer)):
        weights = [variable for variable in mine.variables if "seed" not in variable.path]
        reloaded = [variable for variable in theirs.variables if "seed" not in variable.path]
        assert len(weights) > 50 / 2
        for variable, copy in zip(weights, reloaded, strict=True):
            np.testing.assert_array_equal(to_numpy(variable), to_numpy(copy), err_msg=variable.path)
    seeds, others = (
        [variable for variable in one.variables if "seed" in variable.path] for one in (pretraining, again)
    )
    for seed, other in zip(seeds, others, strict=True):  # Files do not contain seeds.
        other.assign(keras.ops.convert_to_numpy(seed))  # A copy, because a step on JAX deletes its inputs.
    losses = [np.ravel(one.train_on_batch(images))[0] for one in (pretraining, again)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for variable, copy in zip(pretraining.trainable_variables, again.trainable_variables, strict=True):
        np.testing.assert_allclose(to_numpy(variable), to_numpy(copy), rtol=1e-6, atol=1e-6, err_msg=variable.path)


@pytest.mark.slow
def test_frozen_and_rematerialised():
    model = tiny_model()
    keras_vit.freeze(model, up_to="encoder_block_0")
    keras_vit.rematerialize(model)
    before = values(model.variables)
    step(MAE(model), random_inputs(SHAPE)[0])
    assert changed(before, model.variables) == {"encoder_block_1", "encoder_norm"}


def test_refusals(model):
    with pytest.raises(TypeError, match=r"model must be a model of keras_vit. Received: 'B/16'"):
        MASKED_PATCHES("B/16")
    around = keras.Sequential([keras.Input(SHAPE), model])
    with pytest.raises(ValueError, match=rf"contains a model of keras_vit\. Pass the inner model, '{model.name}'"):
        MASKED_PATCHES(around)
    with pytest.raises(ValueError, match=r"A model of keras_vit has one Preprocessing layer"):
        MASKED_PATCHES(keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()]))
    front = keras.Model(model.inputs[0], model.get_layer("preprocessing").output)
    with pytest.raises(ValueError, match=r"has no layer 'patch_embedding'. Build the model with keras_vit.ViT"):
        MASKED_PATCHES(front)
    pretraining = MASKED_PATCHES(model)
    with pytest.raises(ValueError, match=r"defines its own loss and metrics\. Received: loss, metrics. Leave out"):
        pretraining.compile("adam", loss="mse", metrics=["mse"])
    with pytest.raises(ValueError, match=r"takes images of shape .*8, 9, 3"):
        pretraining(np.zeros((2, 9, 8, 3), "float32"))
