import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MaskedPatchPrediction
from keras_vit.pretraining.masking import PatchCorruption
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.reference import masked as reference
from tests.reference import vit
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, slow_except, to_numpy
from tests.weights.converter_case import make_shell

COLORED = keras_vit.ViTConfig(patch_size=(4, 8), hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20)


def pixels(shape, batch=2, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (batch, *shape)).astype("uint8")


def in_numpy(outputs):
    return {name: to_numpy(values) for name, values in outputs.items()}


def test_equals_the_equations():
    """The equations corrupt the patch embeddings, as in the paper, with a corruption layer of the same seed."""
    model = randomize(tiny_model(num_register_tokens=2))
    pretraining = MaskedPatchPrediction(model, seed=5)
    randomize(pretraining.corruption), randomize(pretraining.head)
    [images] = random_inputs(SHAPE)
    outputs = in_numpy(pretraining(images))
    weights = canonical_weights(model)
    same = PatchCorruption(0.5, seed=5)
    same.build((None, 2, 3, 12))
    same.mask_embedding.assign(pretraining.corruption.mask_embedding)
    kernel = weights["patch_embedding/kernel"]
    patches = vit.patchify(images.astype("float64"), 4, 3) @ kernel.reshape(-1, 12) + weights["patch_embedding/bias"]
    patches, mask = same(patches.reshape(2, 2, 3, 12).astype("float32"))
    prefix, _ = vit.prefix_tokens(weights)
    tokens = [np.repeat(prefix, 2, axis=0), to_numpy(patches).reshape(2, 6, 12)]
    tokens = np.concatenate(tokens, axis=1)
    table = weights["position_embedding/embedding"]
    tokens[:, :1] += table[:1]
    tokens[:, 3:] += table[1:]
    expected = reference.encoder(tokens, weights)[:, 3:]
    head = {path.split("/")[-1]: value for path, value in canonical_weights(pretraining.head).items()}
    expected = (expected @ head["kernel"] + head["bias"]).reshape(2, 6, 1, 512)
    np.testing.assert_array_equal(outputs["mask"], to_numpy(mask))
    assert_close(outputs["predictions"], expected, 2e-5)  # The float32 rounding errors of two passes add up.


@pytest.mark.parametrize(
    ("target", "channels", "parts", "normalize"), [("mean_color", 4, 1, False), ("small_patch", 1, 4, True)]
)
def test_classes(target, channels, parts, normalize):
    shape = (11, 16, channels)  # The last three rows do not fill a patch.
    model = keras_vit.ViT(COLORED, input_shape=shape, include_preprocessing=normalize, crop_to_patches=True)
    mean, std = list(np.linspace(0.3, 0.6, channels)), list(np.linspace(0.2, 0.3, channels))
    model.get_layer("preprocessing").set_preprocessing(mean=mean, std=std)
    images = pixels(shape)
    images[0, :4, :8] = 255
    given = images if normalize else keras_vit.preprocess_input(images, model)
    outputs = MaskedPatchPrediction(model, target=target)(given)
    expected = np.array([reference.color_classes(image / 255, 4, 8, parts) for image in images])
    assert outputs["predictions"].shape == (2, 4, parts**2, 8**channels)
    np.testing.assert_array_equal(to_numpy(outputs["targets"]), expected)


def test_pixels():
    model = tiny_model(include_preprocessing=True)
    images = pixels(SHAPE)
    pretraining = MaskedPatchPrediction(model, target="pixels")
    outputs = pretraining(images)
    assert outputs["predictions"].shape == (2, 6, 36)
    assert "accuracy" not in pretraining.compute_metrics(images, None, outputs)
    assert_close(outputs["targets"], vit.patchify(images / 255, 4, 3))


@pytest.fixture(scope="module")
def model():
    """A model that takes pixels, with random weights. No test trains it."""
    return randomize(keras_vit.ViT(COLORED, input_shape=(8, 16, 3), include_preprocessing=True))


@pytest.mark.parametrize("target", slow_except(["small_patch"], ["mean_color", "small_patch", "pixels"]))
def test_the_loss_is_that_of_the_corrupted_patches(target, model):
    """The loss equals NumPy's. Predictions and targets of the other patches do not change it."""
    pretraining = MaskedPatchPrediction(model, target=target, corruption_rate=0.3, seed=0)
    randomize(pretraining.head)
    images = pixels((8, 16, 3), batch=3)
    outputs = in_numpy(pretraining(images))
    is_corrupted = outputs["mask"] == 1
    assert is_corrupted.sum() == 3
    logits, targets = outputs["predictions"][is_corrupted], outputs["targets"][is_corrupted]
    if target == "pixels":
        losses = ((logits - targets) ** 2).mean(axis=-1)
    else:
        chosen = np.take_along_axis(logits, targets[..., None].astype(int), axis=-1)[..., 0]
        losses = (np.log(np.exp(logits).sum(axis=-1)) - chosen).mean(axis=-1)
    assert_close(pretraining.compute_loss(images, y_pred=outputs), losses.mean())
    weights = np.array([2.0, 0.0, 1.0], "float32")
    weighted = pretraining.compute_loss(images, y_pred=outputs, sample_weight=weights)
    assert_close(weighted, (weights * losses).sum() / 3)
    for name in ("targets", "predictions"):
        for where, expected_to_change in ((~is_corrupted, False), (is_corrupted, True)):
            changed = outputs | {name: outputs[name].copy()}
            changed[name][where] = (changed[name][where] + np.arange(changed[name].shape[-1]) + 1) % 512
            loss = float(to_numpy(pretraining.compute_loss(images, y_pred=changed)))
            assert (loss != float(to_numpy(pretraining.compute_loss(images, y_pred=outputs)))) == expected_to_change


def test_accuracy_counts_the_corrupted_patches(model):
    pretraining = MaskedPatchPrediction(model, corruption_rate=0.34, seed=0)
    images = pixels((8, 16, 3), batch=4)
    outputs = in_numpy(pretraining(images))
    right = np.array([True, False] * 2)[:, None] & (outputs["mask"] == 1)  # Every second image has correct predictions.
    outputs["predictions"] = np.eye(512)[np.where(right, outputs["targets"][..., 0].astype(int), 511)][:, :, None]
    metrics = pretraining.compute_metrics(images, None, outputs)
    assert_close(metrics["accuracy"], 0.5)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"target": "color"}, r"target must be one of 'mean_color', 'small_patch', 'pixels'. Received: 'color'"),
        ({}, {"corruption_rate": 1.0}, r"corruption_rate must be between 0 and 1"),
        ({}, {"target": "small_patch"}, r"multiples of 4 pixels. Received: patches of 4 x 3"),
        ({"input_shape": (8, 9, 5)}, {}, r"at most 4 channels. Received: 5 channels. Use target='pixels'"),
    ],
)
def test_refusals(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedPatchPrediction(make_shell(CONFIG, **changes), **arguments)


def test_a_stem_must_not_pad():
    config = CONFIG.replace(stem=STEM, patch_size=1, num_layers=1)
    model = keras_vit.ViT(config, input_shape=(24, 20, 3), include_top=False)
    with pytest.raises(ValueError, match=r"multiples of 8 x 8 pixels\..*images of 24 x 20"):
        MaskedPatchPrediction(model)(random_inputs((24, 20, 3))[0])
