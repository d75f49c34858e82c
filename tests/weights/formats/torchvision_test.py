"""Published weights of ResNets load, from files that this module writes with the names of torchvision and timm."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import ResNetConfig
from keras_vit.weights.containers.npz import write_npz
from keras_vit.weights.containers.safetensors import write_safetensors
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import assert_close, canonical_weights, compute, random_inputs, randomize
from tests.weights.converter_case import assert_same_arrays, assert_same_weights

SHAPE = (33, 46, 3)
_PARTS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_LAYERS = {"stem_conv": "conv1", "stem_norm": "bn1"}
_LAYERS |= {"projection_conv": "downsample.0", "projection_norm": "downsample.1"}
TIMM = {"input_size": [3, *SHAPE[:2]], "mean": [0.4] * 3, "std": [0.3] * 3, "interpolation": "bicubic", "crop_pct": 0.9}


def tiny(size="R50", **arguments):
    arguments = {"input_shape": SHAPE, "classes": 5, "classifier_activation": None, **arguments}
    return keras_vit.ResNet(size, **{"stage_depths": (1, 2), "width": 4, **arguments})


def tiny_vt(**arguments):
    arguments = {"input_shape": SHAPE, "classes": 5, "classifier_activation": None, **arguments}
    tokens = {"filters": 16, "token_dim": 24, "num_heads": 4, "num_tokens": 6, "group_width": 4, "num_modules": 3}
    return keras_vit.VTResNet("VT-R18", **{"stage_depths": (1, 2), "width": 4, **tokens, **arguments})


def torchvision(weights):
    """{name: array} in torchvision's layout, from {canonical path: array}."""
    found = {}
    for path, array in weights.items():
        *unit, layer, part = path.split("/")
        if layer == "predictions":
            found[f"fc.{ {'kernel': 'weight', 'bias': 'bias'}[part] }"] = array.T
            continue
        name = _LAYERS.get(layer) or layer.replace("conv_", "conv").replace("norm_", "bn")
        if unit:
            _, stage, _, number = unit[0].split("_")
            name = f"layer{int(stage) + 1}.{number}.{name}"
        if part == "kernel":
            found[f"{name}.weight"] = array.transpose(3, 2, 0, 1)
        else:
            found[f"{name}.{_PARTS[part]}"] = array
            if part == "gamma":
                found[f"{name}.num_batches_tracked"] = np.array([7], "int64")
    return found


def float32_weights(model):
    return {path: array.astype("float32") for path, array in canonical_weights(model).items()}


def resnet_file(model, folder, change=lambda arrays: arrays):
    """Writes a model's weights in timm's format without config.json and returns the path."""
    write_safetensors(folder / "resnet.safetensors", change(torchvision(float32_weights(model))), {})
    return folder / "resnet.safetensors"


SIZES = ("R18", "R50")


@pytest.fixture(scope="module")
def resnets():
    """{size: model} with strides in three stages. No test changes the models."""
    return {size: randomize(tiny(size, stage_depths=(1, 2, 1))) for size in SIZES}


@pytest.fixture(scope="module")
def files(resnets, tmp_path_factory):
    """{size: path of its weights}. Tests must not change the files."""
    return {size: resnet_file(model, tmp_path_factory.mktemp(size)) for size, model in resnets.items()}


@pytest.fixture(scope="module")
def plain():
    """Another model with two stages. No test changes it."""
    return randomize(tiny())


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_the_model_that_the_file_describes(size, resnets, files):
    path, [images] = files[size], random_inputs(SHAPE)
    expected = compute(resnets[size], [images])
    config = keras_vit.describe(resnets[size]).config
    loaded = keras_vit.from_pretrained(path, input_shape=SHAPE, classifier_activation=None)
    assert_close(compute(loaded, [images]), expected)
    description = keras_vit.describe(loaded)
    assert (description.config, description.source, description.adaptations) == (config, str(path), {})
    report = keras_vit.load_weights(randomize(loaded, seed=7), path)
    weights = canonical_weights(resnets[size])
    assert_same_weights(loaded, weights)
    assert (report.format, report.adapted, report.initialized) == ("torchvision", {}, ())
    assert set(report.loaded) == set(weights)
    names = torchvision(float32_weights(resnets[size]))
    assert set(report.skipped) == {name for name in names if name.endswith("tracked")}


def test_a_model_is_built_with_weights(resnets, files):
    config = keras_vit.describe(resnets["R18"]).config
    built = keras_vit.ResNet(config, weights=files["R18"], input_shape=SHAPE, classes=5, classifier_activation=None)
    assert_same_weights(built, canonical_weights(resnets["R18"]))


def test_a_state_of_a_training(plain, tmp_path):
    """The checkpoint has the format of torchvision's references/classification, with averaged weights."""
    torch = pytest.importorskip("torch")
    state = {f"module.{name}": torch.tensor(array) for name, array in torchvision(float32_weights(plain)).items()}
    path = tmp_path / "checkpoint.pth"
    averaged = {f"module.{name}": tensor * 2 for name, tensor in state.items()}
    torch.save({"model": state, "model_ema": averaged, "optimizer": {"state": {}}, "epoch": 3}, path)
    loaded = keras_vit.from_pretrained(path, input_shape=SHAPE, classifier_activation=None)
    assert_same_weights(loaded, canonical_weights(plain))


@pytest.mark.parametrize(
    ("name", "settings", "pixels", "size", "label_space"),
    [
        ("resnet.pth", None, (0.485, 0.229, 256, [224, 224], "bilinear"), (224, 224), None),
        # torchvision's second weights of ResNet-50. The resize and the crop are scaled to the model's size.
        ("resnet50-11ad3fa6.pth", None, (0.485, 0.229, 232, [224, 224], "bilinear"), (224, 224), "imagenet1k"),
        ("resnet50-0676ba61.pth", None, (0.485, 0.229, 512, [448, 448], "bilinear"), (448, 448), "imagenet1k"),
        ("resnet.pth", TIMM, (0.4, 0.3, 36, [33, 46], "bicubic"), SHAPE[:2], None),
        ("resnet.pth", {**TIMM, "tag": "tv_in1k"}, (0.4, 0.3, 36, [33, 46], "bicubic"), None, "imagenet1k"),
    ],
)
def test_pixels(name, settings, pixels, size, label_space, plain, tmp_path):
    """Pixels are set by torchvision's file name or timm's config.json, else as for torchvision's first weights."""
    torch = pytest.importorskip("torch")
    arrays = torchvision(float32_weights(plain))
    if label_space is not None:
        arrays |= {"fc.weight": np.zeros((1000, arrays["fc.weight"].shape[1]), "float32")}
        arrays |= {"fc.bias": np.zeros(1000, "float32")}
    torch.save({key: torch.tensor(array) for key, array in arrays.items()}, tmp_path / name)
    if settings is not None:
        (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet50", "pretrained_cfg": settings}))
    shape = size and (*size, 3)
    found = keras_vit.from_pretrained(tmp_path / name, input_shape=shape)
    assert found.input_shape == (None, *(shape or SHAPE))
    description = keras_vit.describe(found)
    mean, std, resize, crop, interpolation = pixels
    assert (description.pixels["mean"][0], description.pixels["std"][0]) == (mean, std)
    assert (description.pixels["crop"], description.pixels["interpolation"]) == (crop, interpolation)
    assert (description.pixels["resize"], description.label_space) == (resize, label_space)


def _trunk_of(model):
    return {path: array for path, array in canonical_weights(model).items() if path.startswith(("stem", "stage"))}


def test_kind_of_problem(plain, tmp_path):
    path = resnet_file(plain, tmp_path)
    assert open_checkpoint(path).output.kind == "classes"
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet50", "problem_type": "regression"}))
    assert open_checkpoint(path).output.kind == "values"


@pytest.mark.slow
def test_a_trunk(resnets, files):
    """A VT-ResNet loads the stem and all stages except the last."""
    path, expected = files["R50"], _trunk_of(resnets["R50"])
    left_out = {name for name in expected if name.startswith("stage_2")}
    model = tiny_vt(expansion=4)
    before = canonical_weights(model)
    report = keras_vit.load_weights(model, path, head="reset")
    fresh = [f"{part}_{number}" for number in range(3) for part in ("tokenizer", "token_relation", "token_projector")]
    assert set(report.initialized) == {"predictions/kernel", "predictions/bias", *fresh[:-1]}
    assert set(report.loaded) == expected.keys() - left_out
    assert {name: why for name, why in report.skipped.items() if why != "not part of the model"} == {
        **dict.fromkeys(left_out, "the model has tokens in place of the last stage"),
        **dict.fromkeys(["predictions/kernel", "predictions/bias"], "the head is reset"),
    }
    _check_trunk(model, expected, left_out, path)
    after = canonical_weights(model)
    assert all((after[name] == before[name]).all() for name in before if name.startswith("token"))
    maps, found = (keras.Model(m.input, m.get_layer("stage_1_unit_1").output) for m in (resnets["R50"], model))
    assert_close(compute(found, random_inputs(SHAPE)), compute(maps, random_inputs(SHAPE)))


def _check_trunk(model, expected, left_out, path):
    weights = canonical_weights(model)
    for name in expected.keys() - left_out:
        np.testing.assert_array_equal(weights[name], expected[name], err_msg=name)
    assert not weights["predictions/kernel"].any()
    description = keras_vit.describe(model)
    assert (description.source, description.label_space, description.pixels["mean"][0]) == (str(path), None, 0.485)
    assert description.adaptations["tokenizer_0"] == "not loaded from the file"


def test_a_trunk_is_built_with_weights(resnets, files):
    expected = _trunk_of(resnets["R18"])
    built = tiny_vt(weights=files["R18"], expansion=1)
    _check_trunk(built, expected, {name for name in expected if name.startswith("stage_2")}, files["R18"])
    assert np.ptp(canonical_weights(built)["tokenizer_0/filter/kernel"]) > 0.1  # The values are random, not zero.


@pytest.mark.slow
def test_a_backbone(tmp_path):
    """A segmentation model loads all weights except the head, and its images are not cropped."""
    whole = randomize(tiny("R50", stage_depths=(1, 1, 1), width=3))
    path = resnet_file(whole, tmp_path)
    arguments = {"stage_depths": (1, 1, 1), "width": 3, "input_shape": (40, 33, 3), "neck_dim": 12, "head_dim": 6}
    model = keras_vit.PanopticFPN("R50", weights=path, **arguments)
    weights, expected = canonical_weights(model), _trunk_of(whole)
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)
    description = keras_vit.describe(model)
    assert description.config.strides_first is False
    assert (description.pixels["mean"][0], description.pixels["crop"]) == (0.485, None)
    assert description.pixels["resize"] == [40, 33]
    assert {"lateral_0", "head_2_conv_0", "predictions/kernel"} <= description.adaptations.keys()
    assert np.ptp(weights["lateral_0/kernel"]) > 0.1  # The values are random, not zero.
    report = keras_vit.load_weights(keras_vit.PanopticFPN("R50", **arguments), path, head="reset")
    assert set(report.loaded) == expected.keys()
    assert report.adapted["strides_first"] == "the weights were made for False, the model has True"


def test_a_trunk_that_does_not_fit(files):
    path = files["R18"]
    model, other = tiny_vt(), tiny_vt(stage_depths=(1, 1))
    before = canonical_weights(model)
    for load, message in (
        (lambda: keras_vit.load_weights(model, path), "A VT-ResNet can load only its backbone.*pass head='reset'"),
        (lambda: tiny_vt(weights=path, width=8), "contains weights for ResNetConfig.*but the model is VTResNetConfig"),
        (lambda: keras_vit.load_weights(other, path, head="reset"), "not in the model: stage_1_unit_1/conv_1/kernel"),
    ):
        with pytest.raises(ValueError, match=f"(?s){message}"):
            load()
    assert_same_weights(model, before)


def _renamed(old, new):
    return lambda arrays: {name.replace(old, new): array for name, array in arrays.items()}


def _with(name, shape):
    return lambda arrays: arrays | {name: np.zeros(shape, "float32")}


def _without(part):
    return lambda arrays: {name: array for name, array in arrays.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # ResNet-D; SE-ResNet; GroupNorm; a wide ResNet; ResNeXt.
        (_renamed("conv1.weight", "conv1.0.weight"), "kind of ResNet.*stem has more than one convolution"),
        (_with("layer1.0.se.fc1.weight", (2, 16, 1, 1)), "kind of ResNet.* it has layer1.0.se.fc1.weight"),
        (_without("running_"), "kind of ResNet.* its norms have no moving means and variances"),
        (_with("layer2.1.conv1.weight", (16, 32, 1, 1)), r"conv1.weight has the shape \(16, 32, .* have 8 channels"),
        (_with("layer2.1.conv2.weight", (8, 2, 3, 3)), r"conv2.weight has the shape \(8, 2, 3, .* have 8 channels"),
        (_without("layer1."), "contains the stem of a ResNet, but no units of stage 1. The file may be incomplete"),
        (_without("layer2.0."), "missing: stage_1_unit_0/conv_1/kernel"),
        (_without("layer"), "match no known layout .*torchvision and timm"),
    ],
)
def test_other_files_are_refused(change, message, plain, tmp_path):
    path = resnet_file(plain, tmp_path, change)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_vit.from_pretrained(path, input_shape=SHAPE)


def test_another_kind_by_its_name_is_refused(plain, tmp_path):
    """The arrays of timm's blurred ResNets have the same names and shapes as those of plain ResNets."""
    path = resnet_file(plain, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnetblur50", "pretrained_cfg": TIMM}))
    with pytest.raises(ValueError, match=r"kind of ResNet.*its config\.json contains 'resnetblur50'"):
        keras_vit.from_pretrained(path, input_shape=SHAPE)


def test_the_same_names_in_a_file_of_numpy(plain, tmp_path):
    write_npz(tmp_path / "resnet.npz", torchvision(float32_weights(plain)))
    checkpoint = open_checkpoint(tmp_path / "resnet.npz")
    assert checkpoint.config == ResNetConfig((1, 2), 4)
    assert_same_arrays(checkpoint.read(), canonical_weights(plain))
