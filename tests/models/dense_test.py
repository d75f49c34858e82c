"""Segmenters and depth estimators: heads on encoders, and what every model of this package can do."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.heads import DPTHead, EoMTHead, LinearHead
from keras_vit.models.dense import encoder_and_head
from tests.test_case import assert_close, canonical_weights, gradients, rest_slow, to_numpy

CONFIG = keras_vit.ViTConfig(8, 16, num_layers=4, num_heads=2, mlp_dim=24, layer_scale=1.0)
NO_CLASS_TOKEN = CONFIG.replace(class_token=False, pooling="avg")
SHAPE = (24, 40, 3)
RELU = {"activation": "relu"}
HEADS = {
    "linear": LinearHead(taps=(1, 3)),
    "dpt": DPTHead(features=6, widths=[3, 4, 5, 7]),
    "eomt": EoMTHead(num_queries=5, num_blocks=2, annealing_steps=10),
}


def images(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype("float32")


def segmenter(head, encoder=CONFIG, **arguments):
    return keras_vit.Segmenter(encoder, HEADS[head], classes=3, **{"input_shape": SHAPE} | arguments)


def depth_estimator(**arguments):
    return keras_vit.DepthEstimator(CONFIG, input_shape=SHAPE, **arguments)


def with_random_weights(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(scale=0.3, size=weight.shape) + 0.8 * weight.path.endswith(("gamma", "variance")))
    return model


@pytest.mark.parametrize("head", rest_slow(["eomt", "dpt", "linear"]))
def test_saved_models_give_the_same_outputs(head, tmp_path):
    model = with_random_weights(segmenter(head))
    expected = model(images())
    model.save(tmp_path / "model.keras")
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        keras_vit.from_pretrained(tmp_path / "model.keras"),
    ):
        keras.tree.map_structure(lambda x, y: assert_close(x, to_numpy(y)), again(images()), expected)
        assert keras_vit.describe(again).outputs.keys() == keras_vit.describe(model).outputs.keys()
    reset = keras_vit.from_pretrained(tmp_path / "model.keras", classes=7)
    old, new = canonical_weights(model), canonical_weights(reset)
    assert not new["predictions/kernel"].any()
    assert new["predictions/kernel"].shape[1] == 7 + (head == "eomt")
    assert all((old[path] == new[path]).all() for path in old if not path.startswith("predictions"))


@pytest.mark.parametrize("head", [*(pytest.param(head, marks=pytest.mark.slow) for head in ("linear", "dpt")), "eomt"])
def test_an_encoder_with_weights(head, tmp_path):
    """The encoder is a model, or a file. Of the last blocks, an EoMT head has its own copy."""
    classifier = with_random_weights(keras_vit.ViT(CONFIG, classes=4, input_shape=SHAPE))
    classifier.save(tmp_path / "classifier.keras")
    weights = canonical_weights(classifier)
    for encoder in (classifier, str(tmp_path / "classifier.keras")):
        model = segmenter(head, encoder)
        found = canonical_weights(model)
        shared = [path for path in weights if path in found or f"head/{path}" in found]
        assert {path for path in weights if path not in shared} <= {"predictions/kernel", "predictions/bias"}
        for path in set(shared) - {"predictions/kernel", "predictions/bias"}:
            assert (found.get(path, found.get(f"head/{path}")) == weights[path]).all(), path
        assert not found["predictions/kernel"].any()
        assert keras_vit.describe(model).config.head["name"] == head
        assert getattr(model.get_layer("head"), "annealing_steps", 10) == 10


@pytest.mark.parametrize("head", rest_slow(["eomt", "dpt", "linear"]))
def test_every_weight_learns(head):
    model = with_random_weights(segmenter(head))
    found = gradients(Weighted(model, images()), [images()])
    assert len(found) > 40
    # The softmax cancels a bias of all keys.
    unused = [path for path, array in found.items() if "key/bias" not in path and (array is None or not array.any())]
    assert not unused
    assert all(np.isfinite(array).all() for array in found.values())


class Weighted(keras.Model):
    """A random sum of the outputs of a model in training. An image has one number."""

    def __init__(self, model, x):
        super().__init__()
        self.inner = model
        rng = np.random.default_rng(1)
        outputs = model(x, training=True)
        self.factors = [rng.normal(size=y.shape[1:]).astype("float32") for y in keras.tree.flatten(outputs)]
        self.built = True

    def call(self, x):
        outputs = keras.tree.flatten(self.inner(x, training=True))
        return sum(
            ops.sum(ops.reshape(y * factors, (len(y), -1)), axis=1)
            for y, factors in zip(outputs, self.factors, strict=True)
        )


@pytest.mark.parametrize("head", rest_slow(["eomt", "dpt", "linear"]))
def test_encoder_and_head_are_the_model(head):
    model = with_random_weights(segmenter(head))
    encoder, on_features = encoder_and_head(model)
    outputs = on_features(encoder(images()))
    keras.tree.map_structure(lambda x, y: assert_close(x, to_numpy(y)), outputs, model(images()))
    ids = {id(variable) for variable in model.variables}
    assert {id(variable) for variable in on_features.trainable_variables} < ids


def test_images_of_any_size():
    fixed, any_size = segmenter("dpt"), segmenter("dpt", input_shape=(None, None, 3))
    assert any_size.output_shape == (None, None, None, 3)
    old, new = ({path: x.shape for path, x in canonical_weights(each).items()} for each in (fixed, any_size))
    assert {path: shape for path, shape in old.items() if "position" not in path}.items() <= new.items()
    assert any_size(images(shape=(32, 16, 3))).shape == (2, 32, 16, 3)


@pytest.mark.slow
def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for head in HEADS:
            outputs = keras.tree.flatten(with_random_weights(segmenter(head))(images()))
            assert {keras.backend.standardize_dtype(each.dtype) for each in outputs} == {"float32"}
            assert all(np.isfinite(to_numpy(each)).all() for each in outputs)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("arguments", "lowest", "highest"),
    [({"upsampling": 2}, 0, 9e9), ({"max_depth": 5.0}, 0, 5), ({"offset": 0.5, "max_depth": 0.8} | RELU, 0.5, 0.8)],
)
def test_depth_is_in_its_range(arguments, lowest, highest):
    head = DPTHead(features=6, output="image")
    model = with_random_weights(depth_estimator(head=head, **arguments))
    depth = to_numpy(model(images()))
    assert depth.shape == (2, *SHAPE[:2], 1)
    assert np.ptp(depth) > 0.01
    assert (depth >= lowest).all()
    assert (depth <= highest).all()
    units = ["metres"] if "max_depth" in arguments else None
    [output] = keras_vit.describe(model).outputs.values()
    assert (output.kind, output.units) == ("depth", units)


def test_parameters_of_published_sizes():
    """The counts are those of transformers, without a mask token and weights that are not used."""
    from tests.models.counting import without_values

    with without_values():
        eomt = keras_vit.Segmenter(
            keras_vit.VARIANTS["S/16"].replace(num_register_tokens=4, num_position_prefix_rows=0, layer_scale=1.0),
            EoMTHead(num_queries=200, num_blocks=3),
            classes=133,
            input_shape=(640, 640, 3),
        )
        assert sum(int(np.prod(weight.shape)) for weight in eomt.weights) == 23_975_942
        depth = keras_vit.DepthEstimator(
            keras_vit.VARIANTS["S/14"].replace(layer_scale=1.0),
            DPTHead(features=64, widths=[48, 96, 192, 384], output="image"),
            output_dim=32,
            input_shape=(518, 518, 3),
        )
        unused = 2 * (9 * 64 * 64 + 64)
        assert sum(int(np.prod(weight.shape)) for weight in depth.weights) == 24_785_089 - 384 - unused


def test_what_transformers_cannot_express(tmp_path):
    published = {"head": DPTHead(features=6, output="image"), "output_dim": 4, "activation": "relu"}
    for model, message in (
        (segmenter("linear"), "cannot express that a model returns class_map"),
        (depth_estimator(head=HEADS["dpt"]), r"a head other than DPTHead.*activation='softplus'"),
        (depth_estimator(**published), "cannot express is_inverse=False without max_depth"),
        (depth_estimator(**published, is_inverse=True, upsampling=2), "cannot express an upsampling"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.save_weights(model, tmp_path / "model", "huggingface")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments():
    for wrong, message in (
        ({"head": "upernet"}, "head must be one of 'linear', 'dpt', 'eomt'"),
        ({"head": 3}, "head must be one of linear, dpt, eomt, or a layer of keras_vit.heads"),
        ({"head": LinearHead(taps=(1, 4))}, "taps must be from 0 to 3 for 4 blocks"),
        ({"head": EoMTHead(num_blocks=4)}, "num_blocks must be from 1 to 3"),
        ({"head": "linear", "classes": 0}, "classes"),
        *[({"encoder": CONFIG.replace(token_merging=2), "head": head}, "token_merging") for head in HEADS],
        ({"encoder": NO_CLASS_TOKEN, "head": LinearHead(use_class_token=True)}, "The encoder has no class token"),
        ({"encoder": NO_CLASS_TOKEN, "head": DPTHead(readout="gelu_exact")}, "The encoder has no class token"),
        ({"encoder": "S/16@no-such-weights", "head": "dpt"}, "is not the name of published weights"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.Segmenter(**{"encoder": CONFIG, "input_shape": SHAPE, "classes": 3} | wrong)
    with pytest.raises(TypeError, match=r"encoder must be a variant .* Received: None"):
        keras_vit.Segmenter(None)
    for taps in ((3, 1), (1, 1), (), "last", (0.5,)):
        with pytest.raises(ValueError, match="indices of blocks in increasing order"):
            LinearHead(taps=taps)
    with pytest.raises(ValueError, match="four numbers"):
        DPTHead(taps=(1, 2))
    with pytest.raises(ValueError, match="An EoMTHead predicts masks"):
        depth_estimator(head="eomt")
    for smallest, message in ((None, "needs min_depth <"), (5.0, "needs min_depth <"), (1.0, "must be positive")):
        with pytest.raises(ValueError, match=message):
            depth_estimator(num_bins=8, min_depth=smallest, max_depth=5.0, **RELU)
