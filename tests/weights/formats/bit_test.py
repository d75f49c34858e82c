"""Published weights of BiT-ResNets load, from files that this module writes with the names of each project."""

import json
import re

import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import BiTResNetConfig
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import assert_close, canonical_weights, random_inputs, randomize, slow_except, to_numpy
from tests.weights.converter_case import assert_same_weights, make

SHAPE = (33, 46, 3)
_PARTS = {"1": "a", "2": "b", "3": "c"}


def tiny(stage_depths, **arguments):
    arguments |= {"input_shape": SHAPE, "classes": 5, "classifier_activation": None}
    return keras_vit.BiTResNet(stage_depths, 32, **arguments)


def _units(weights):
    """(stage, unit, path inside the unit, array) of a model's units. Both numbers start at 0."""
    for path, array in weights.items():
        if path.startswith("stage_"):
            unit, inside = path.split("/", 1)
            _, stage, _, number = unit.split("_")
            yield int(stage), int(number), inside, array


def big_transfer(weights):
    """The layout of gs://bit_models/BiT-M-R50x1.npz."""
    found = {
        "resnet/root_block/standardized_conv2d/kernel": weights["stem_conv/kernel"],
        "resnet/group_norm/gamma": weights["final_norm/gamma"],
        "resnet/group_norm/beta": weights["final_norm/beta"],
        "resnet/head/conv2d/kernel": weights["predictions/kernel"][None, None],
        "resnet/head/conv2d/bias": weights["predictions/bias"],
    }
    for stage, unit, inside, array in _units(weights):
        prefix = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        layer, part = inside.split("/")
        if layer == "projection_conv":
            found[f"{prefix}/a/proj/standardized_conv2d/kernel"] = array
        else:
            kind = "standardized_conv2d" if layer.startswith("conv") else "group_norm"
            found[f"{prefix}/{_PARTS[layer[-1]]}/{kind}/{part}"] = array
    return found


def big_transfer_with_counters(weights):
    """The layout of BiT files whose convolutions are numbered."""
    names = {name: name.replace("b/standardized_conv2d/", "b/standardized_conv2d_3/") for name in big_transfer(weights)}
    return {names[name]: array for name, array in big_transfer(weights).items()}


def big_vision(weights):
    """The tree of big_vision's `bit_paper.py`, with the state of an optimizer."""
    found = {
        "root_block/conv_root/kernel": weights["stem_conv/kernel"],
        "norm-pre-head/scale": weights["final_norm/gamma"][None, None, None],
        "norm-pre-head/bias": weights["final_norm/beta"][None, None, None],
        "head/kernel": weights["predictions/kernel"],
        "head/bias": weights["predictions/bias"],
    }
    for stage, unit, inside, array in _units(weights):
        prefix = f"block{stage + 1}/unit{unit + 1:02d}"
        layer, part = inside.split("/")
        if layer == "projection_conv":
            found[f"{prefix}/conv_proj/kernel"] = array
        elif layer.startswith("conv"):
            found[f"{prefix}/conv{layer[-1]}/kernel"] = array
        else:
            found[f"{prefix}/gn{layer[-1]}/{ {'gamma': 'scale', 'beta': 'bias'}[part] }"] = array[None, None, None]
    state = {"opt/state/count": np.zeros(1, "float32")}
    return {f"opt/target/{name}": array for name, array in found.items()} | state


def timm(weights):
    found = {
        "stem.conv.weight": weights["stem_conv/kernel"].transpose(3, 2, 0, 1),
        "norm.weight": weights["final_norm/gamma"],
        "norm.bias": weights["final_norm/beta"],
        "head.fc.weight": weights["predictions/kernel"].T[:, :, None, None],
        "head.fc.bias": weights["predictions/bias"],
    }
    for stage, unit, inside, array in _units(weights):
        layer, part = inside.split("/")
        layer = {"projection_conv": "downsample.conv"}.get(layer, layer.replace("_", ""))
        part = {"kernel": "weight", "gamma": "weight", "beta": "bias"}[part]
        array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
        found[f"stages.{stage}.blocks.{unit}.{layer}.{part}"] = array
    return found


LAYOUTS = {layout.__name__: layout for layout in (big_transfer, big_transfer_with_counters, big_vision, timm)}


ROOT_PADDINGS = {layout: "ignored" if layout == "big_vision" else "zeros" for layout in LAYOUTS}


@pytest.fixture(scope="module")
def models():
    """{root padding: model}, all with the same weights. No test changes them."""
    return {padding: randomize(tiny((1, 2), stem_pooling_padding=padding)) for padding in ("zeros", "ignored")}


@pytest.fixture(scope="module")
def logits(models):
    """{root padding: logits of random images}. The padding changes the logits of every image."""
    [images] = random_inputs(SHAPE)
    found = {padding: to_numpy(model(images)) for padding, model in models.items()}
    assert np.abs(found["zeros"] - found["ignored"]).max(1).min() > 1e-3
    return found


@pytest.fixture(scope="module")
def spares():
    """{root padding: model}, which tests load weights into."""
    return {padding: tiny((1, 2), stem_pooling_padding=padding) for padding in ("zeros", "ignored")}


@pytest.fixture
def model(models):
    return models["zeros"]


def bit_file(model, layout, folder):
    """Writes a model's weights in a layout and returns the path."""
    weights = {path: array.astype("float32") for path, array in canonical_weights(model).items()}
    if layout == "timm":
        settings = {"input_size": [3, *SHAPE[:2]], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "squash"}
        config = {"architecture": "resnetv2_50x1_bit", "num_classes": 5, "pretrained_cfg": settings}
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", timm(weights), {})
        return folder
    write_npz(folder / "bit.npz", LAYOUTS[layout](weights))
    return folder / "bit.npz"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_that_the_file_describes(layout, models, logits, tmp_path):
    """The loaded model has the root padding of the layout's project."""
    config = BiTResNetConfig((1, 2), 32, ROOT_PADDINGS[layout])
    path = bit_file(models[config.stem_pooling_padding], layout, tmp_path)
    loaded = keras_vit.from_pretrained(path, input_shape=SHAPE, classifier_activation=None)
    assert_close(loaded(random_inputs(SHAPE)[0]), logits[config.stem_pooling_padding])
    assert_same_weights(
        tiny((1, 2), weights=path, stem_pooling_padding=config.stem_pooling_padding), canonical_weights(loaded)
    )
    description = keras_vit.describe(loaded)
    assert (description.config, description.source) == (config, str(path))
    assert (description.pixels["mean"], description.pixels["std"]) in ((0.5, 0.5), ([0.5] * 3, [0.5] * 3))
    assert description.pixels["interpolation"] == ("bicubic" if layout == "timm" else "bilinear")


@pytest.mark.parametrize("layout", slow_except(["timm"], LAYOUTS))
def test_into_a_model_that_is_there(layout, models, spares, tmp_path):
    path = bit_file(models["zeros"], layout, tmp_path)
    expected = canonical_weights(models["zeros"])
    for padding, model in spares.items():
        report = keras_vit.load_weights(randomize(model, seed=7), path)
        assert len(report.loaded) == len(model.weights)
        assert list(report.adapted) == ([] if padding == ROOT_PADDINGS[layout] else ["stem_pooling_padding"])
        assert_same_weights(model, expected)


@pytest.fixture(scope="module")
def three_stages():
    """The weights of a model with three stages."""
    return {path: array.astype("float32") for path, array in canonical_weights(tiny((1, 1, 1))).items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kept", "stages"), [("stem_conv", "1"), ("stage_0|stage_2", "2")])
def test_a_file_that_lacks_a_stage(layout, kept, stages, three_stages, tmp_path):
    parts = f"stem_conv|final_norm|predictions|{kept}"
    cut = {path: array for path, array in three_stages.items() if re.match(parts, path)}
    if layout == "timm":
        write_safetensors(tmp_path / "bit.safetensors", timm(cut), {})
    else:
        write_npz(tmp_path / "bit.npz", LAYOUTS[layout](cut))
    [path] = tmp_path.iterdir()
    with pytest.raises(ValueError, match=f"the stem of a BiT-ResNet, but no units of stage {stages}. The file"):
        keras_vit.from_pretrained(path)


def test_image_size(model, tmp_path):
    assert open_checkpoint(bit_file(model, "timm", tmp_path)).image_size == SHAPE[:2]
    assert open_checkpoint(bit_file(model, "big_vision", tmp_path)).image_size == (224, 224)


def test_kind_of_problem(model, tmp_path):
    path = bit_file(model, "timm", tmp_path)
    assert open_checkpoint(path).output.kind == "classes"
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    assert open_checkpoint(path).output.kind == "labels"


def test_what_does_not_fit_is_refused(model, tmp_path):
    path = bit_file(model, "big_transfer", tmp_path)
    before = canonical_weights(model)
    refusals = [
        (lambda: tiny((1, 1), weights=path), "stage_depths=.1, 2., width=32.*the model is"),
        (lambda: keras_vit.BiTResNet((1, 2), 32, weights=path), "5 classes, but the model has 1000 classes"),
        (lambda: keras_vit.ViT("Ti/16", weights=path), "the weights of a BiT-ResNet, but the model is a Vision Trans"),
        (lambda: keras_vit.load_weights(tiny((1, 1)), path), "not in the model: stage_1_unit_1/conv_1/kernel"),
        (lambda: keras_vit.from_pretrained(path, num_layers=2), "of a BiT-ResNet, which has no num_layers"),
        (lambda: keras_vit.load_weights(model, "B/16@i21k"), "are weights of B/16, not of BiT-ResNet"),
        (lambda: keras_vit.save_weights(model, tmp_path / "x.npz", "google"), "written for Vision Transformers"),
    ]
    for attempt, message in refusals:
        with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
            attempt()
    keras_vit.save_weights(make(num_layers=1), tmp_path / "vit.npz", "google")
    with pytest.raises(ValueError, match="the weights of a Vision Transformer, but the model is a BiT-ResNet"):
        keras_vit.load_weights(model, tmp_path / "vit.npz", grid_size=(2, 3))
    assert not (tmp_path / "x.npz").exists()
    assert_same_weights(model, before)
    weights = {path: array.astype("float32") for path, array in before.items()}
    write_npz(path, big_transfer(weights) | {"resnet/block1/unit01/d/extra": weights["final_norm/beta"]})
    with pytest.raises(ValueError, match="unknown names: resnet/block0/unit0/d/extra"):
        keras_vit.load_weights(model, path)
