"""Models load from KerasHub's presets with the same outputs, and KerasHub loads our presets."""

import keras_hub
import numpy as np
import pytest

import keras_vit
from tests.peers.torch_models import random_images
from tests.test_case import assert_close, compute, randomize, slow_except, to_numpy

SIZE, OTHER = (32, 48), (40, 24)
OURS = keras_vit.ViTConfig(patch_size=8, hidden_dim=24, num_layers=1, num_heads=3, mlp_dim=36, mlp="gelu_exact")
TOKENS = {"include_top": False, "pooling": None}
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)

# name: (changes of the backbone, arguments of the classifier)
CLASSIFIERS = {
    "token": ({}, {}),
    "pre_logits": ({"layer_norm_epsilon": 1e-3, "num_layers": 2}, {"intermediate_dim": 10}),
    "average": ({"use_class_token": False}, {"pooling": "gap"}),
    "average_pre_logits": ({"use_class_token": False}, {"pooling": "gap", "intermediate_dim": 10}),
}


def backbone(**changes):
    arguments = {"image_shape": (*SIZE, 3), "num_layers": 1, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 36, **changes}
    return keras_hub.models.ViTBackbone(patch_size=8, **arguments)


def preprocessor(image_size=SIZE, **arguments):
    converter = keras_hub.layers.ViTImageConverter(
        image_size=image_size,
        scale=[1 / (255 * std) for std in STD],
        offset=[-mean / std for mean, std in zip(MEAN, STD, strict=True)],
        **arguments,
    )
    return keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)


def make(folder, changes, arguments, **with_preprocessor):
    """A classifier with random weights that KerasHub itself saved."""
    model = keras_hub.models.ViTImageClassifier(backbone(**changes), num_classes=7, **arguments, **with_preprocessor)
    randomize(model)
    model.save_to_preset(folder)
    return model


def compare(ours, peer):
    """Asserts that both models have the same outputs."""
    images = random_images(*ours.input_shape[1:])
    assert_close(compute(ours, [images]), compute(peer, [images]))


@pytest.mark.parametrize("name", slow_except(["pre_logits", "average"], CLASSIFIERS))
def test_from_pretrained(name, tmp_path):
    peer = make(tmp_path, *CLASSIFIERS[name])
    compare(keras_vit.from_pretrained(tmp_path, family="google", classifier_activation=None), peer)
    compare(keras_vit.from_pretrained(tmp_path, family="google", **TOKENS), peer.backbone)


@pytest.mark.parametrize("use_class_token", [True, False])
def test_backbone(use_class_token, tmp_path):
    peer = randomize(backbone(use_class_token=use_class_token, image_shape=(24, 40, 1)))
    peer.save_to_preset(tmp_path)
    ours = keras_vit.from_pretrained(tmp_path, family="google", input_shape=(24, 40, 1), **TOKENS)
    compare(ours, peer)


@pytest.mark.parametrize(
    ("use_class_token", "pooling", "reason"),
    [(True, "gap", "mean_of_class_token_and_patches"), (False, "token", "first_patch")],
)
def test_other_classifiers(use_class_token, pooling, reason, tmp_path):
    """The error names an unsupported classifier. Without it, or with a new classifier, the encoder loads."""
    peer = make(tmp_path, {"use_class_token": use_class_token}, {"pooling": pooling})
    with pytest.raises(ValueError, match=reason):
        keras_vit.from_pretrained(tmp_path, family="google")
    compare(keras_vit.from_pretrained(tmp_path, family="google", **TOKENS), peer.backbone)
    fresh = keras_vit.from_pretrained(tmp_path, family="google", classes=3)
    assert_close(compute(fresh, [random_images(*SIZE)]), np.full((2, 3), 1 / 3))


def test_pixels_that_nobody_says(tmp_path):
    make(tmp_path, {}, {})
    with pytest.raises(ValueError, match="does not define how pixels are normalised"):
        keras_vit.from_pretrained(tmp_path)
    pixels = keras_vit.describe(keras_vit.from_pretrained(tmp_path, family="deit")).pixels
    assert pixels["mean"] == [0.485, 0.456, 0.406]


def test_pixels(tmp_path):
    peer = make(tmp_path, {}, {}, preprocessor=preprocessor(crop_to_aspect_ratio=False))
    ours = keras_vit.from_pretrained(tmp_path)
    images = np.random.default_rng(2).integers(0, 256, (2, *SIZE, 3)).astype("uint8")
    assert_close(keras_vit.preprocess_input(images, ours), to_numpy(peer.preprocessor(images)))
    pixels = keras_vit.describe(ours).pixels
    assert (pixels["resize"], pixels["crop"], pixels["interpolation"]) == ([*SIZE], None, "bilinear")


def test_pixels_of_a_square(tmp_path):
    """A crop to a square before the resize equals a resize of the short side before the crop."""
    make(tmp_path, {"image_shape": (40, 40, 3)}, {}, preprocessor=preprocessor((40, 40), interpolation="bicubic"))
    pixels = keras_vit.describe(keras_vit.from_pretrained(tmp_path)).pixels
    assert (pixels["resize"], pixels["crop"], pixels["interpolation"]) == (40, [40, 40], "bicubic")


@pytest.mark.combination("KerasHub: activation of the classifier", "obeyed or refused")
def test_activation(tmp_path):
    peer = make(tmp_path / "sigmoid", {}, {"activation": "sigmoid"})
    model = keras_vit.from_pretrained(tmp_path / "sigmoid", family="google")
    compare(model, peer)
    keras_vit.save_weights(model, tmp_path / "ours", "keras_hub")
    compare(model, keras_hub.models.ViTImageClassifier.from_preset(str(tmp_path / "ours")))
    make(tmp_path / "relu", {}, {"activation": "relu"})
    with pytest.raises(ValueError, match=r"task\.json contains activation='relu'\. This package supports"):
        keras_vit.from_pretrained(tmp_path / "relu", family="google")


@pytest.mark.parametrize(
    ("arguments", "resize", "ignored"),
    [
        ({"antialias": True, "crop_to_aspect_ratio": False}, [*SIZE], set()),
        ({"antialias": False}, [*SIZE], {"antialias", "crop_to_aspect_ratio"}),
        ({"image_size": None}, None, set()),
        ({"antialias": True, "crop_to_aspect_ratio": False, "offset": None}, [*SIZE], set()),
    ],
)
@pytest.mark.combination("KerasHub: antialias=False, or a crop to an image that is not square", "a warning names it")
def test_settings_that_have_no_effect_are_named(arguments, resize, ignored, tmp_path):
    converter = keras_hub.layers.ViTImageConverter(
        **{"image_size": SIZE, "scale": [0.1, 0.2, 0.3], "offset": 1.0} | arguments
    )
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
    make(tmp_path, {}, {}, preprocessor=preprocessor)
    model = keras_vit.from_pretrained(tmp_path)
    assert keras_vit.describe(model).pixels["resize"] == resize
    assert keras_vit.describe(model).adaptations.keys() == ignored
    images = np.random.default_rng(2).integers(0, 256, (2, *SIZE, 3)).astype("uint8")
    assert_close(keras_vit.preprocess_input(images, model), to_numpy(preprocessor(images)))


def test_padding_is_refused(tmp_path):
    make(tmp_path, {}, {}, preprocessor=preprocessor(crop_to_aspect_ratio=False, pad_to_aspect_ratio=True))
    with pytest.raises(ValueError, match=r"pad_to_aspect_ratio=True\. This package supports only .*=False"):
        keras_vit.from_pretrained(tmp_path)


def ours(**changes):
    """A model of this package with random weights."""
    arguments = {"input_shape": (*OTHER, 3), "classes": 7, "classifier_activation": None, **changes}
    return randomize(keras_vit.ViT(OURS, **arguments))


@pytest.mark.parametrize(
    "changes", [{}, {"representation_dim": 10, "layer_norm_epsilon": 1e-3, "num_layers": 2}, {"pooling": "avg"}]
)
def test_save_weights(changes, tmp_path):
    model = ours(**changes)
    model.get_layer("preprocessing").set_preprocessing(MEAN, STD, resize=OTHER)
    keras_vit.save_weights(model, tmp_path, "keras_hub")
    peer = keras_hub.models.ViTImageClassifier.from_preset(str(tmp_path))
    compare(model, peer)
    images = np.random.default_rng(2).integers(0, 256, (2, *OTHER, 3)).astype("uint8")
    assert_close(keras_vit.preprocess_input(images, model), to_numpy(peer.preprocessor(images)))
    again = keras_vit.from_pretrained(tmp_path, classifier_activation=None)
    for weight, expected in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(expected))
    assert keras_vit.describe(again).pixels == keras_vit.describe(model).pixels


@pytest.mark.parametrize("class_token", [True, False])
def test_save_weights_without_a_head(class_token, tmp_path):
    model = ours(**TOKENS, class_token=class_token, patch_size=(8, 4))
    keras_vit.save_weights(model, tmp_path, "keras_hub")
    compare(model, keras_hub.models.ViTBackbone.from_preset(str(tmp_path)))
    classifier = keras_hub.models.ImageClassifier.from_preset(str(tmp_path), num_classes=5)
    assert classifier.output_shape == (None, 5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pooling": "avg", "class_token": True}, "average pooling beside a class token"),
        ({"num_position_prefix_rows": 0}, "positions of the patches only"),
        ({"patch_size": 7, "crop_to_patches": True}, "images of a size that is not a multiple of the patch size"),
    ],
)
def test_refused(changes, reason, tmp_path):
    """Combinations of settings are refused; tests/weights/formats/expressible_test.py tests single settings."""
    with pytest.raises(ValueError, match=reason):
        keras_vit.save_weights(ours(**changes), tmp_path / "folder", "keras_hub")
    assert not list(tmp_path.iterdir())
