"""Segmenters, depth estimators and detectors: heads on encoders, and what every model of this package can do."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from benchmarks import models
from keras_vit.heads import BoxHead, DetectionTokens, DPTHead, EoMTHead, LinearHead
from keras_vit.models.dense import encoder_and_head
from keras_vit.weights.catalogue import get_entry
from tests.test_case import assert_close, canonical_weights, check_gradients, randomize, rest_slow, to_numpy

CONFIG = keras_vit.ViTConfig(8, 16, num_layers=4, num_heads=2, mlp_dim=24, layer_scale=1.0)
NO_CLASS_TOKEN = CONFIG.replace(class_token=False, pooling="avg")
SHAPE = (24, 40, 3)
RELU = {"activation": "relu"}
HEADS = {
    "linear": LinearHead(taps=(1, 3)),
    "dpt": DPTHead(features=6, widths=[3, 4, 5, 7]),
    "eomt": EoMTHead(num_queries=5, num_blocks=2, annealing_steps=10),
    "box": BoxHead(embedding_dim=5),
    "detection_tokens": DetectionTokens(num_tokens=4),
}
NO_OBJECT = ("eomt", "detection_tokens")


def images(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype("float32")


def segmenter(head, encoder=CONFIG, **arguments):
    return keras_vit.Segmenter(encoder, HEADS[head], classes=3, **{"input_shape": SHAPE} | arguments)


def with_head(head, encoder=CONFIG):
    factory = keras_vit.Detector if head in ("box", "detection_tokens") else keras_vit.Segmenter
    return factory(encoder, HEADS[head], classes=3, input_shape=SHAPE)


def depth_estimator(**arguments):
    return keras_vit.DepthEstimator(CONFIG, input_shape=SHAPE, **arguments)


each_head = pytest.mark.parametrize("head", rest_slow(["eomt", "dpt", "linear", "box", "detection_tokens"]))


@each_head
def test_saved_models_give_the_same_outputs(head, tmp_path):
    model, path = randomize(with_head(head)), tmp_path / "model.keras"
    model.save(path)
    for again in (keras.saving.load_model(path), keras_vit.from_pretrained(path)):
        keras.tree.map_structure(lambda x, y: assert_close(x, to_numpy(y)), again(images()), model(images()))
        assert keras_vit.describe(again).outputs.keys() == keras_vit.describe(model).outputs.keys()
    old, new = canonical_weights(model), canonical_weights(keras_vit.from_pretrained(path, classes=7))
    assert new["predictions/kernel"].any() == (head == "box")  # The length of a zero has no gradient.
    assert new["predictions/kernel"].shape[1] == 7 + (head in NO_OBJECT)
    assert all((old[path] == new[path]).all() for path in old if not path.startswith("predictions"))


@each_head
def test_an_encoder_with_weights(head, tmp_path):
    """The encoder is a model, or a file. Of the last blocks, an EoMT head has its own copy."""
    classifier = randomize(keras_vit.ViT(CONFIG, classes=4, input_shape=SHAPE))
    classifier.save(tmp_path / "classifier.keras")
    weights = canonical_weights(classifier)
    for encoder in (classifier, str(tmp_path / "classifier.keras")):
        model = with_head(head, encoder)
        found = canonical_weights(model)
        for path in weights.keys() - {"predictions/kernel", "predictions/bias"}:
            np.testing.assert_array_equal(found.get(path, found.get(f"head/{path}")), weights[path], path)
        assert found["predictions/kernel"].any() == (head == "box")
        assert keras_vit.describe(model).config.head["name"] == head
        assert getattr(model.get_layer("head"), "annealing_steps", 10) == 10


class Weighted(keras.Layer):
    """Weighs and adds the outputs of a model in training. An image has one number."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.built = model, True

    def call(self, x):
        rng, outputs = np.random.default_rng(1), keras.tree.flatten(self.inner(x, training=True))
        return 0.1 * sum(ops.sum(y * rng.normal(size=y.shape[1:]).astype("float32"), range(1, y.ndim)) for y in outputs)


@each_head
def test_every_weight_learns(head):
    cancelled = ["encoder_norm/beta"] if head == "linear" else []  # By the batch norm.
    check_gradients(Weighted(randomize(with_head(head))), [images()], cancelled)


@each_head
def test_encoder_and_head_are_the_model(head):
    model = randomize(with_head(head))
    encoder, on_features = encoder_and_head(model)
    keras.tree.map_structure(lambda x, y: assert_close(x, to_numpy(y)), on_features(encoder(images())), model(images()))
    assert {*map(id, on_features.trainable_variables)} < {*map(id, model.variables)}


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
            outputs = keras.tree.flatten(randomize(with_head(head))(images()))
            assert {keras.backend.standardize_dtype(each.dtype) for each in outputs} == {"float32"}
            assert all(np.isfinite(to_numpy(each)).all() for each in outputs)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("arguments", "lowest", "highest"),
    [({"upsampling": 2}, 0, 9e9), ({"max_depth": 5.0}, 0, 5), ({"offset": 0.5, "max_depth": 0.8} | RELU, 0.5, 0.8)],
)
def test_depth_is_in_its_range(arguments, lowest, highest):
    model = randomize(depth_estimator(head=DPTHead(features=6, output="image"), **arguments))
    depth = to_numpy(model(images()))
    assert depth.shape == (2, *SHAPE[:2], 1)
    assert np.ptp(depth) > 0.01
    assert lowest <= depth.min() < depth.max() <= highest
    [output] = keras_vit.describe(model).outputs.values()
    assert (output.kind, output.units) == ("depth", ["metres"] if "max_depth" in arguments else None)


UNUSED = 384 + 2 * (9 * 64 * 64 + 64)
COUNTS = [("S/16@eomt-coco-panoptic-640", 23_975_942), ("S/14@depth-anything", 24_785_089 - UNUSED)]


@pytest.mark.parametrize(("name", "count"), COUNTS)
def test_parameters_of_published_sizes(name, count):
    """The counts are those of transformers, without a mask token and weights that are not used."""
    with models.shapes_only():
        assert models.build_entry(get_entry(name)).count_params() == count


def test_what_transformers_cannot_express(tmp_path):
    published = {"head": DPTHead(features=6, output="image"), "output_dim": 4, "activation": "relu"}
    for model, message in (
        (segmenter("linear"), "cannot express that a model returns class_map"),
        (segmenter("eomt", CONFIG.replace(layer_scale=None)), "cannot express an EoMT without layer scale"),
        (depth_estimator(head=HEADS["dpt"]), r"a head other than DPTHead.*activation='softplus'"),
        (depth_estimator(**published), "cannot express is_inverse=False without max_depth"),
        (depth_estimator(**published, is_inverse=True, upsampling=2), "cannot express an upsampling"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.save_weights(model, tmp_path / "model", "huggingface")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments():
    for wrong, message in (
        ({"head": "upernet"}, "head of a segmenter must be one of 'linear', 'dpt', 'eomt'"),
        ({"head": 3}, "must be one of 'linear', 'dpt', 'eomt', or one of these layers of keras_vit.heads: LinearHead"),
        ({"head": LinearHead(taps=(1, 4))}, "taps must be from 0 to 3 for 4 blocks"),
        ({"head": EoMTHead(num_blocks=4)}, "num_blocks must be from 1 to 3"),
        ({"head": "linear", "classes": 0}, "classes"),
        *[
            ({"encoder": CONFIG.replace(token_merging=2), "head": head}, "token_merging")
            for head in ("linear", "dpt", "eomt")
        ],
        ({"encoder": NO_CLASS_TOKEN, "head": LinearHead(use_class_token=True)}, "The encoder has no class token"),
        ({"encoder": NO_CLASS_TOKEN, "head": DPTHead(readout="gelu_exact")}, "The encoder has no class token"),
        ({"encoder": "S/16@no-such-weights", "head": "dpt"}, "is not the name of published weights"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.Segmenter(**{"encoder": CONFIG, "input_shape": SHAPE, "classes": 3} | wrong)
    with pytest.raises(TypeError, match=r"encoder must be a variant .* Received: None"):
        keras_vit.Segmenter(None)
    wrong = [(LinearHead, taps, "blocks in increasing order") for taps in ((3, 1), (1, 1), (), "last", (0.5,))]
    for head, taps, message in (*wrong, (DPTHead, (1, 2), "four numbers")):
        with pytest.raises(ValueError, match=message):
            head(taps=taps)
    with pytest.raises(ValueError, match="head of a depth estimator must be one of 'linear', 'dpt'"):
        depth_estimator(head="eomt")
    for smallest, message in ((None, "needs min_depth <"), (5.0, "needs min_depth <"), (1.0, "must be positive")):
        with pytest.raises(ValueError, match=message):
            depth_estimator(num_bins=8, min_depth=smallest, max_depth=5.0, **RELU)
