import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.models.counting import shapes_only
from tests.models.steps import train
from tests.models.tiny import CONFIG, SHAPE, tiny_model
from tests.reference import vit as reference
from tests.test_case import (
    MIXED_POLICIES,
    MIXED_POLICY,
    assert_close,
    canonical_weights,
    check_gradients,
    compute,
    random_inputs,
    randomize,
    to_numpy,
)


@pytest.mark.slow
def test_arguments_of_keras_applications(tmp_path):
    [images] = random_inputs(SHAPE)
    default = tiny_model(classes=1000, classifier_activation="softmax")
    assert_close(default(images), np.full((2, 1000), 1e-3))  # The head starts at zero.
    scores = to_numpy(randomize(tiny_model())(images))
    sigmoid, softmax = (randomize(tiny_model(classifier_activation=name)) for name in ("sigmoid", "softmax"))
    assert_close(sigmoid(images), 1 / (1 + np.exp(-scores)))
    assert_close(softmax(images), reference.softmax(scores))
    inputs = keras.Input(SHAPE)
    arguments = {"input_shape": None, "name": "named"}
    behind = randomize(tiny_model(input_tensor=keras.layers.Rescaling(0.5)(inputs), **arguments))
    assert (behind.inputs[0], behind.name, behind.input_shape) == (inputs, "named", (None, *SHAPE))
    assert_close(behind(2 * images), scores)
    for pooling, shape in (("token", (12,)), ("avg", (12,)), ("map", (12,)), (None, (7, 12))):
        model = tiny_model(include_top=False, input_shape=(*SHAPE[:2], 1), pooling=pooling)
        assert model.output_shape == (None, *shape)
        assert tuple(model(images[..., :1]).shape) == (2, *shape)
    pixels = np.random.default_rng(3).integers(0, 256, (2, *SHAPE)).astype("uint8")
    inside = randomize(tiny_model(include_preprocessing=True, classifier_activation="softmax"))
    expected = to_numpy(softmax(keras_vit.preprocess_input(pixels, softmax)))
    assert_close(inside(pixels), expected)
    assert_close(inside(keras_vit.preprocess_input(pixels, inside)), expected)
    assert not np.allclose(to_numpy(softmax(pixels.astype("float32"))), expected)
    softmax.save_weights(tmp_path / "mine.weights.h5")
    loaded = tiny_model(weights=str(tmp_path / "mine.weights.h5"))
    assert all(np.array_equal(*values) for values in zip(loaded.get_weights(), softmax.get_weights(), strict=True))


@pytest.mark.each_backend
def test_gradients():
    check_gradients(randomize(tiny_model(num_layers=1)), random_inputs(SHAPE))


def test_initial_values():
    model = keras_vit.ViT(
        CONFIG, input_shape=(224, 225, 3), hidden_dim=48, representation_dim=64, classes=5, head_bias=-10.0
    )
    weights = canonical_weights(model)
    assert not weights["class_token/token"].any()
    assert weights["position_embedding/embedding"].std() == pytest.approx(0.02, rel=0.02)
    assert weights["encoder_block_1/mlp/hidden/bias"].std() == pytest.approx(1e-6, rel=0.5)
    assert weights["pre_logits/kernel"].std() == pytest.approx((1 / 48) ** 0.5, rel=0.05)
    assert not weights["pre_logits/bias"].any()
    assert not weights["predictions/kernel"].any()
    np.testing.assert_array_equal(weights["predictions/bias"], -10.0)
    assert not canonical_weights(tiny_model())["predictions/bias"].any()
    norms = {path: value for path, value in weights.items() if path.endswith(("gamma", "beta"))}
    assert len(norms) == 2 * (2 * 2 + 1)
    assert all((value == path.endswith("gamma")).all() for path, value in norms.items())


@pytest.mark.slow
def test_names_of_the_layers():
    model = tiny_model(representation_dim=7)
    names = [layer.name for layer in model.layers]
    expected = (
        "images preprocessing patch_embedding patch_tokens class_token position_embedding position_dropout "
        "encoder_block_0 encoder_block_1 encoder_norm pooling pre_logits predictions"
    )
    assert names == expected.split()
    headless = tiny_model(include_top=False, pooling=None, representation_dim=7, position_embedding="none")
    assert [layer.name for layer in headless.layers] == [name for name in names[:-3] if name != "position_embedding"]


def test_relative_positions_need_one_image_size():
    for size in ((None, None), (None, 9)):
        with pytest.raises(ValueError, match=r"needs a fixed image size.*Received: images of shape \(None, "):
            tiny_model(input_shape=(*size, 3), position_embedding="relative")


def test_two_classifiers_end_in_one_activation():
    model = randomize(tiny_model(distillation_token=True, classifier_activation="softmax", num_layers=1))
    logits = keras.Model(model.inputs[0], model.get_layer("mean_logits").output)
    [images] = random_inputs(SHAPE)
    assert_close(model(images), reference.softmax(to_numpy(logits(images))))


def test_rates_reach_the_layers():
    rates = {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "drop_path_rate": 0.4}
    model, _ = shapes_only(functools.partial(tiny_model, num_layers=5, **rates))
    blocks = [model.get_layer(f"encoder_block_{i}") for i in range(5)]
    assert [block.drop_path_rate for block in blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert {block.dropout_rate for block in blocks} == {0.1}
    assert {block.mlp_block.dropout_rate for block in blocks} == {0.1}
    assert {block.attention.dropout_rate for block in blocks} == {0.2}
    assert model.get_layer("position_dropout").rate == 0.1
    changes = {"position_interpolation": "bicubic", "pooling": "map", "num_layers": 1, "drop_path_rate": 0.4}
    pooled, _ = shapes_only(functools.partial(tiny_model, **changes))
    assert pooled.get_layer("position_embedding").interpolation == "bicubic"
    assert pooled.get_layer("pooling").get_config()["num_heads"] == 3
    assert pooled.get_layer("encoder_block_0").drop_path_rate == 0.0


def test_training_is_random_and_inference_is_not():
    model, [images] = randomize(tiny_model(num_layers=1, dropout_rate=0.5)), random_inputs(SHAPE)
    outputs = [to_numpy(model(images, training=training)) for training in (True, True, False, None)]
    assert not np.allclose(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[2], outputs[3])


@pytest.mark.slow
def test_mixed_precision():
    parts = {"pooling": "map", "class_token": True, "num_register_tokens": 2, "layer_scale": 0.1, "pre_norm": True}
    keras.config.set_dtype_policy(MIXED_POLICY)
    try:
        model = tiny_model(representation_dim=7, drop_path_rate=0.1, **parts)
        distilled = tiny_model(distillation_token=True, num_layers=1)
        headless = tiny_model(include_top=False, num_layers=1)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.output.dtype == distilled.output.dtype == "float32"
    assert model.get_layer("encoder_block_1").compute_dtype == MIXED_POLICY.removeprefix("mixed_")
    assert headless.output.dtype == MIXED_POLICY.removeprefix("mixed_")
    randomize(model)
    images = random_inputs(SHAPE)
    representation = compute(keras.Model(model.inputs[0], model.get_layer("predictions").input), images)
    # The classifier computes float32 logits from the 16-bit representation, and does not round them to 16 bits.
    weights, logits = canonical_weights(model), model.get_layer("predictions")(representation)
    expected = representation.astype("float64") @ weights["predictions/kernel"] + weights["predictions/bias"]
    assert_close(logits, expected, 1e-6)
    changed = train(model, SHAPE, "adam")
    assert all(np.isfinite(value).all() for value in canonical_weights(model).values())
    assert not [path for path in weights.keys() - changed if "key" not in path]


@pytest.mark.each_backend
@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_final_norm_is_computed_in_float32(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = tiny_model(num_layers=1, position_embedding="none", include_top=False, pooling=None)
    finally:
        keras.config.set_dtype_policy("float32")
    tokens = np.random.default_rng(0).choice([0.0, 600.0, 604.0, 1000.0], (2, 7, 12))  # The squares exceed float16.
    actual = to_numpy(model.get_layer("encoder_norm")(ops.cast(tokens, policy.removeprefix("mixed_"))))
    rounding = 2.0**-9 if policy == "mixed_bfloat16" else 2.0**-12
    np.testing.assert_allclose(actual, reference.layer_norm(tokens, 1, 0), rtol=1.5 * rounding, atol=1.5 * rounding)


def test_refused_arguments():
    tensor = keras.Input(SHAPE)
    for arguments, error, message in (
        ({"hiden_dim": 24}, TypeError, "'hiden_dim' is not a field of ViTConfig. Did you mean 'hidden_dim'"),
        ({"pooling": "nowhere"}, ValueError, "pooling must be one of 'token', .*None. Received: 'nowhere'"),
        ({"qk_norm": 1}, ValueError, "qk_norm must be one of False, True. Received: 1"),
        ({"num_classes": 3}, TypeError, r"'num_classes' is not a field of ViTConfig. Did you mean 'classes'\?"),
        ({"img_size": 8}, TypeError, r"Did you mean input_shape=\(height, width, channels\)\?"),
        ({"pretrained": True}, TypeError, r'Did you mean weights="imagenet"\?'),
        ({"dtype": "float16"}, TypeError, r"Set the precision by keras\.config\.set_dtype_policy"),
        ({"pooling": None}, ValueError, "include_top=True needs a pooling.*include_top=False"),
        ({"input_shape": (9, 9, 3)}, ValueError, r"9 x 9 pixels does not divide into patches of 4 x 3.*crop_to_patch"),
        ({"input_shape": (3, 9, 3), "crop_to_patches": True}, ValueError, "at least one patch must remain"),
        ({"input_shape": (8, 9)}, ValueError, r"input_shape must be \(height, width, channels\).*Received: \(8, 9\)"),
        ({"input_shape": (3, 224, 208)}, ValueError, r"Received: \(3, 224, 208\). Did you mean \(224, 208, 3\)\?"),
        ({"input_shape": (8, 9, None)}, ValueError, r"input_shape must be.*Received: \(8, 9, None\)"),
        ({"input_tensor": np.zeros((2, *SHAPE))}, ValueError, "input_tensor must be a Keras tensor"),
        ({"input_tensor": keras.Input((72, 3))}, ValueError, r"must be of shape \(B, H, W, C\).*\(None, 72, 3\)"),
        ({"input_tensor": tensor, "input_shape": (8, 12, 3)}, ValueError, "input_shape and input_tensor differ"),
        ({"weights": "imagenet"}, ValueError, "'imagenet' is not the name of published weights.*'<variant>@<weights>'"),
        ({"weights": "missing.npz"}, FileNotFoundError, r"There is no file or folder 'missing.npz' \(working folder: "),
        ({"classes": 0}, ValueError, "classes must be a positive integer"),
    ):
        with pytest.raises(error, match=message):
            keras_vit.ViT(CONFIG, **{"input_shape": None if "input_tensor" in arguments else SHAPE} | arguments)
    for variant in ("B/17", "mobilenet", None):
        with pytest.raises(ValueError, match="is not a published variant"):
            keras_vit.ViT(variant)
    with pytest.raises(ValueError, match=r"no weights 'imagenet'.* for the variant 'M/16'. Weights .*: M/16@"):
        keras_vit.ViT("M/16", weights="imagenet")
    with pytest.raises(ValueError, match=r"No weights are published for the variant 'R50\+L/16'\. Build it with "):
        keras_vit.ViT("R50+L/16", weights="imagenet")


def test_refused_before_a_model_is_built(monkeypatch):
    """Bad weights are refused before the model is built, because building a large model is slow."""
    monkeypatch.setattr(keras_vit.models.vit, "build_model", lambda *_, **__: pytest.fail("a model was built"))
    for arguments, message in (
        ((True, "missing.weights.h5"), "weights='missing.weights.h5': there is no such file"),
        ((True, True), "weights must be None, a name of the catalogue such as 'imagenet', .* Received: True"),
        (("imagenet",), r"include_top must be True or False. Received: 'imagenet'. Did you mean weights='imagenet'\?"),
    ):
        for build in (functools.partial(keras_vit.ViT, "Ti/16"), keras_vit.ViTB16):
            with pytest.raises(ValueError, match=message):
                build(*arguments)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *(("b/16", "B/16"), ("b16", "B/16"), ("G14", "G/14"), ("ViT-L/14@336px", "L/14"), ("vit_b_16", "B/16")),
        *(("vit_base_patch16_224", "B/16"), ("deit_small", "S/16"), ("vit_small_patch14_reg4_dinov2", "S/14")),
        *(("google/vit-huge-patch14-224-in21k", "H/14"), ("vit_base_r50_s16_224", "R50+B/16")),
        *(("vit_so400m_patch14_siglip_224", "So400m/14"), ("dinov2_vitb14", "B/14")),
        ("vit_tiny_r_s16_p8_224", "R+Ti/16"),
    ],
)
def test_a_variant_as_others_spell_it(name, variant):
    with pytest.raises(ValueError, match=re.escape(f"{name!r} is not a published variant. Did you mean {variant!r}?")):
        keras_vit.ViT(name)


def test_inputs_that_agree():
    inputs, sizes = keras.Input(SHAPE), {"num_layers": 1, "include_top": False}
    model = keras_vit.ViT(CONFIG, input_tensor=inputs, input_shape=SHAPE, classes=None, **sizes)
    assert model.inputs[0] is inputs
    assert model.output_shape == (None, 12)  # Without a head, the number of classes does not matter.
    assert model.get_layer("preprocessing").resize == [8, 9]
    assert tiny_model(input_shape=(None, None, 3), **sizes).get_layer("preprocessing").resize is None
