import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.pretraining import MaskedAutoencoder, masking
from keras_vit.pretraining.mae import Decoder
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.reference import masked as reference
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, rest_slow, to_numpy
from tests.weights.converter_case import make_shell

SMALL = {"decoder_layers": 2, "decoder_dim": 16, "decoder_heads": 2}
SMALLEST = {"decoder_layers": 1, "decoder_dim": 8, "decoder_heads": 2}


@pytest.fixture(scope="module")
def model():
    """A model with random weights. No test trains it."""
    return randomize(tiny_model())


def noise_of(batch, num_patches, seed=4):
    return np.random.default_rng(seed).random((batch, num_patches)).astype("float32")


def decoder_weights(pretraining):
    weights = canonical_weights(pretraining.decoder)
    return {path.split("decoder/")[-1]: value for path, value in weights.items()}


@pytest.mark.parametrize(
    ("changes", "arguments", "normalize"),
    [
        ({"num_register_tokens": 2, "distillation_token": True}, {}, True),
        (
            {"pooling": "avg", "position_embedding": "sincos_2d", "num_layers": 1},
            {"position_embedding": "sincos_2d"},
            False,
        ),
    ],
)
def test_equals_the_equations(changes, arguments, normalize):
    model = randomize(tiny_model(**changes))
    pretraining = MaskedAutoencoder(model, mask_ratio=0.6, normalize_targets=normalize, **SMALL)
    randomize(pretraining.decoder)
    [images] = random_inputs(SHAPE)
    noise = noise_of(2, 6)
    outputs = {name: to_numpy(values) for name, values in pretraining(images, noise=noise).items()}
    weights = canonical_weights(model)
    expected = reference.mae(
        images.astype("float64"), weights, decoder_weights(pretraining), noise, 2, normalize, **arguments
    )
    for name, array in zip(("predictions", "targets", "mask"), expected, strict=True):
        assert_close(outputs[name], array)
    predictions, targets, mask = expected
    loss = (((predictions - targets) ** 2).mean(-1) * mask).sum() / mask.sum()
    assert_close(pretraining.compute_loss(images, y_pred=outputs), loss)
    for where in (outputs["mask"] == 0, outputs["mask"] == 1):
        changed = outputs | {"targets": np.where(where[:, :, None], 9.0, outputs["targets"])}
        assert np.isclose(to_numpy(pretraining.compute_loss(images, y_pred=changed)), loss) == (~where[mask == 1]).all()


@pytest.mark.slow
def test_the_encoder_runs_on_the_visible_patches():
    """The number of visible patches is rounded down, as in the authors' code."""
    seen = []
    model = keras_vit.ViT(CONFIG, input_shape=(16, 24, 3), num_layers=1)
    norm = model.get_layer("encoder_norm")
    call = norm.call
    norm.call = lambda tokens, **options: seen.append(tuple(tokens.shape)) or call(tokens, **options)
    for ratio, hidden in ((0.75, 24), (0.6, 20), (0.01, 1), (0.95, 31)):
        pretraining = MaskedAutoencoder(model, ratio, seed=0, **SMALLEST)
        masks = to_numpy(pretraining(np.zeros((5, 16, 24, 3), "float32"))["mask"])
        assert (masks.sum(axis=1) == hidden).all()
        assert len(np.unique(masks, axis=0)) > 1
        assert seen.pop() == (5, 1 + 32 - hidden, 12)


@pytest.mark.parametrize("normalize", rest_slow([True, False]))
def test_reconstruct(normalize):
    """Visible patches are unchanged, and hidden ones are grey or predicted. Correct predictions restore the image."""
    model = keras_vit.ViT(
        CONFIG, input_shape=(11, 9, 3), crop_to_patches=True, include_preprocessing=True, num_layers=1
    )
    model.get_layer("preprocessing").set_preprocessing(mean=[0.4, 0.5, 0.6], std=[0.2, 0.25, 0.3])
    pretraining = MaskedAutoencoder(model, mask_ratio=0.5, normalize_targets=normalize, **SMALLEST)
    images = np.random.default_rng(0).integers(0, 256, (2, 11, 9, 3)).astype("uint8")
    noise = noise_of(2, 6)
    targets = pretraining(images, noise=noise)["targets"]
    pretraining.decoder.call = lambda *arguments, **options: targets
    found = pretraining.reconstruct(images, noise=noise)
    hidden = np.argsort(np.argsort(noise)) >= 3
    hidden = np.kron(hidden.reshape(2, 2, 3), np.ones((4, 3)))[..., None] == 1
    expected = images[:, :8] / 255
    assert_close(found.reconstructed, expected, 1e-4)  # Scaling by the deviation and back causes rounding errors.
    assert_close(found.masked, np.where(hidden, 0.5, expected))


def test_reconstructions_of_other_channels_are_pixels():
    shape = (8, 9, 4)
    pretraining = MaskedAutoencoder(keras_vit.ViT(CONFIG, input_shape=shape, num_layers=1), mask_ratio=0.5, **SMALLEST)
    found = pretraining.reconstruct(random_inputs(shape)[0])
    assert found.masked.shape == found.reconstructed.shape == (2, *shape)
    assert found.reconstructed.min() >= 0
    assert found.reconstructed.max() <= 1


def test_models_that_need_all_patches():
    for changes, message in (
        ({"stem": STEM, "patch_size": 1}, "a stem cannot do this: its convolutions need .* MaskedPatchPrediction"),
        ({"position_embedding": "relative"}, "relative positions cannot.*learned_1d"),
        ({"position_placement": "every_layer_shared"}, "positions in every layer cannot.*position_placement='stem'"),
        ({"axial": True, "pooling": "avg"}, "axial attention cannot.*axial=False"),
        ({"rotary": keras_vit.RotaryConfig()}, "rotary positions cannot do this: .* Use rotary=None, or .*MaskedPatch"),
    ):
        with pytest.raises(ValueError, match=message):
            MaskedAutoencoder(make_shell(CONFIG, (24, 24, 3), **changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 1}, r"mask_ratio must be between 0 and 1, both excluded. Received: 1"),
        ({"decoder_dim": 18, "decoder_heads": 2}, r"multiple of 4, at least 8, and a multiple of decoder_heads"),
        ({"decoder_dim": 16, "decoder_heads": 3}, r"Received: decoder_dim=16, decoder_heads=3"),
        ({"decoder_layers": 0}, r"decoder_layers must be a positive integer. Received: 0"),
    ],
)
def test_impossible_values(arguments, message, model):
    with pytest.raises(ValueError, match=message):
        MaskedAutoencoder(model, **arguments)


def test_noise_of_another_shape_is_refused(model):
    pretraining = MaskedAutoencoder(model, mask_ratio=0.5, **SMALLEST)
    for shape in ((2, 5), (2, 7), (1, 6), (2, 6, 1), (12,)):
        for call in (pretraining, pretraining.reconstruct):
            with pytest.raises(ValueError, match=r"noise must be of shape \(B, N\) = \(2, 6\). Received: shape"):
                call(random_inputs(SHAPE)[0], noise=np.zeros(shape, "float32"))


def test_the_config_of_a_decoder():
    decoder = Decoder(2, 16, 2, num_values=36, num_prefix_tokens=3, mlp="swiglu", epsilon=1e-3)
    [tokens] = random_inputs((5, 12))
    inputs = tokens, masking.ranks(ops.convert_to_tensor(noise_of(2, 6))), np.zeros((2, 2, 3, 12), "float32")
    decoder(*inputs)
    expected = to_numpy(randomize(decoder)(*inputs))
    copy = keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(decoder))))
    assert copy.get_config() == decoder.get_config()
    copy(*inputs)
    assert_close(randomize(copy)(*inputs), expected)


def test_nothing_to_see(model):
    with pytest.raises(ValueError, match=r"mask_ratio=0.9 of 6 patches leaves 0 of them visible"):
        MaskedAutoencoder(model, mask_ratio=0.9, **SMALLEST)(random_inputs(SHAPE)[0])
    single = keras_vit.ViT(CONFIG.replace(patch_size=1), input_shape=(2, 3, 1))
    with pytest.raises(ValueError, match=r"normalize_targets=True needs patches of more than one value"):
        MaskedAutoencoder(single)
