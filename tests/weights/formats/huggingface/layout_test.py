"""The layout of transformers, tested without transformers; tests/peers compares with transformers itself."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.weights.opening import open_checkpoint
from tests.test_case import canonical_weights, slow_except
from tests.weights.converter_case import (
    CONFIG,
    assert_same_arrays,
    assert_same_weights,
    contents,
    edit,
    make,
    run_converter_test,
    save,
)

EXACT = CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-12)
WIDE = EXACT.replace(mlp_dim=36, patch_size=4)
DINOV3 = CONFIG.replace(
    position_embedding="none", rotary=RotaryConfig(), layer_scale=0.25, mlp="gelu_exact", layer_norm_epsilon=1e-5
)
SQUARE = (12, 12, 3)  # Some models of transformers require square images.
CASES = {
    "vit": {"config": EXACT},
    "deit": {"config": EXACT, "distillation_token": True},
    "dinov2_registers": {
        "config": WIDE,
        "input_shape": SQUARE,
        "layer_scale": 0.25,
        "num_register_tokens": 3,
        "include_top": False,
    },
    "dinov2_swiglu": {
        "config": EXACT.replace(mlp="swiglu", mlp_dim=32, patch_size=4),
        "input_shape": SQUARE,
        "layer_scale": 1.0,
        "num_register_tokens": 2,
        "include_top": False,
    },
    "dinov3": {"config": DINOV3.replace(qkv_bias="no_key"), "num_register_tokens": 3, "include_top": False},
    "dinov3_swiglu": {
        "config": DINOV3.replace(mlp="swiglu", rotary=RotaryConfig(base=50.0)),
        "num_register_tokens": 2,
        "include_top": False,
    },
    "dinov3_no_registers": {"config": DINOV3.replace(qkv_bias="none"), "include_top": False},
    "ijepa": {"config": EXACT.replace(pooling="avg", qkv_bias="none")},
    "siglip": {"config": CONFIG.replace(patch_size=4), "input_shape": SQUARE, "pooling": "map", "include_top": False},
    "clip": {
        "config": CONFIG.replace(mlp="quick_gelu", layer_norm_epsilon=1e-5, patch_size=4),
        "input_shape": SQUARE,
        "pre_norm": True,
        "include_top": False,
    },
}


@pytest.mark.parametrize(
    "case", slow_except(["dinov2_swiglu", "dinov3_swiglu", "dinov3_no_registers", "ijepa", "clip"], CASES)
)
def test_there_and_back(case, tmp_path):
    run_converter_test("huggingface", tmp_path, **{"num_layers": 2 if case == "vit" else 1, **CASES[case]})


def edit_json(file, changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def vit(saved, copy_of):
    """(weights of a model, folder of its files)"""
    weights, path = saved("huggingface", EXACT)
    return weights, copy_of(path)


def test_names_on_disk_and_in_memory(vit):
    """transformers 5 uses other names for the same arrays in memory."""
    weights, path = vit
    names = {
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }

    def renamed(arrays):
        for old, new in names.items():
            arrays = {name.replace(old, new): array for name, array in arrays.items()}
        return arrays

    before = contents(path)["model.safetensors"].keys()
    edit(path / "model.safetensors", renamed)
    assert len(contents(path)["model.safetensors"].keys() - before) == 2 * 16
    assert_same_arrays(open_checkpoint(path).read(), weights)


@pytest.mark.slow
def test_leaves_out_what_is_no_part_of_the_model(saved, copy_of):
    arguments = {"config": CONFIG.replace(patch_size=4), "input_shape": SQUARE, "pooling": "map", "include_top": False}
    weights, path = saved("huggingface", **arguments)
    path = copy_of(path)
    others = {
        "text_model.embeddings.token_embedding.weight": np.ones((5, 12), "float32"),
        "logit_scale": np.ones(1, "float32"),
        "vision_model.embeddings.position_ids": np.arange(9)[None],
    }
    edit(path / "model.safetensors", lambda arrays: {**arrays, **others})
    other = make(**arguments, seed=5)
    report = keras_vit.load_weights(other, path)
    assert_same_weights(other, weights)
    assert {name.removeprefix("vision_model.") for name in others} == {
        name.removeprefix("vision_model.") for name in report.skipped
    }


@pytest.mark.slow
def test_a_pooler_is_a_pre_logits_layer(saved, copy_of):
    """A model without a head skips the pooler."""
    weights, path = saved("huggingface", EXACT, include_top=False)
    path = copy_of(path)
    dense = {"pooler.dense.weight": np.ones((7, 12), "float32"), "pooler.dense.bias": np.ones(7, "float32")}
    edit(path / "model.safetensors", lambda arrays: {**arrays, **dense})
    other = make(EXACT, include_top=False, seed=5)
    report = keras_vit.load_weights(other, path)
    assert report.skipped == dict.fromkeys(["pre_logits/kernel", "pre_logits/bias"], "the model has no head")
    assert_same_weights(other, weights)
    with_head = keras_vit.ViT(EXACT, input_shape=(8, 9, 3), classes=4, representation_dim=7)
    report = keras_vit.load_weights(with_head, path, head="reset")
    assert {"pre_logits/kernel", "pre_logits/bias"} <= set(report.loaded)
    np.testing.assert_array_equal(canonical_weights(with_head)["pre_logits/kernel"], np.ones((12, 7)))


def test_says_what_pixels_it_needs(vit):
    """Nothing is assumed about the pixels, because weights for different pixels share this layout."""
    weights, path = vit
    (path / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=r"does not define how pixels are normalised.*preprocessor_config\.json"):
        keras_vit.from_pretrained(path)
    checkpoint = open_checkpoint(path, family="deit")
    assert_same_arrays(checkpoint.read(), weights)
    assert checkpoint.preprocessing["interpolation"] == "bicubic"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "activation 'relu' is not available. Accepted: gelu"),
        ({"model_type": "swin"}, r"type 'swin' of transformers.*\. Accepted: vit, vit_mae"),
        ({"pooler_act": "relu"}, "contains pooler_act='relu'. This package supports only pooler_act='tanh'"),
        ({"mlp_bias": False}, "contains mlp_bias=False. This package supports only mlp_bias=True"),
        ({"qkv_bias": False}, "contains qkv_bias=False, but the arrays have True"),
        ({"key_bias": False}, "contains key_bias=False, but the arrays have True"),
        ({"image_size": [16, 9]}, "has 7 position rows.* 16 x 9 pixels.* contains another kind of model"),
    ],
)
def test_refuses_what_its_config_says_and_no_model_has(changes, message, vit):
    _, path = vit
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(path)


def test_an_activation_that_is_not_said_is_that_of_its_kind(vit):
    _, path = vit
    config = json.loads((path / "config.json").read_text())
    del config["hidden_act"]
    (path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(path).config.mlp == "gelu_exact"


@pytest.mark.combination("weights=PATH of a model whose config.json has id2label", "the names are the model's labels")
@pytest.mark.combination("problem_type=multi_label_classification in a model with a softmax", "a warning names it")
def test_a_factory_reads_settings_and_names_what_it_cannot_use(vit, caplog):
    _, path = vit
    names = ["a", "b", "c", "d", "e"]
    labels = {"id2label": dict(enumerate(names)), "problem_type": "multi_label_classification", "gamma": 7}
    edit_json(path / "config.json", labels)
    edit_json(path / "preprocessor_config.json", {"crop_pct": 0.9})
    assert open_checkpoint(path).output.kind == "labels"
    model = keras_vit.ViT(EXACT, weights=path, classes=5)
    assert keras_vit.describe(model).label_space == names
    adaptations = {
        "gamma": "7 in config.json is unknown and has no effect",
        "crop_pct": "0.9 in preprocessor_config.json is unknown and has no effect",
        "classifier_activation": "the classifier of the file has 'sigmoid', but that of the model has 'softmax'. Build "
        "the model with classifier_activation='sigmoid'",
    }
    assert keras_vit.describe(model).adaptations == adaptations
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: {name}: {text}" for name, text in adaptations.items()
    ]
    assert keras_vit.load_weights(model, path).ignored.keys() == {"gamma", "crop_pct"}
    # Names do not depend on the preparation of the images.
    (path / "preprocessor_config.json").unlink()
    preprocessing_layer(model).label_space = None
    edit_json(path / "config.json", {"problem_type": "regression"})
    adapted = keras_vit.load_weights(model, path).adapted
    assert adapted["classifier_activation"].startswith("the classifier of the file has no activation, but that of the")
    description = keras_vit.describe(model)
    assert (description.label_space, description.outputs["predictions"].kind) == (names, "values")


@pytest.mark.slow
def test_names_of_classes_survive_the_round_trip(vit, tmp_path):
    _, path = vit
    config = json.loads((path / "config.json").read_text())
    names = [f"class {index}" for index in range(len(config["id2label"]))]
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    (path / "config.json").write_text(json.dumps(config | labels))
    model = keras_vit.from_pretrained(path)
    assert keras_vit.describe(model).label_space == names
    model = keras_vit.from_pretrained(path, classifier_activation="sigmoid")
    again = json.loads((save(model, tmp_path / "again", "huggingface") / "config.json").read_text())
    assert again["problem_type"] == "multi_label_classification"
    logits = keras_vit.from_pretrained(tmp_path / "again", classifier_activation=None)
    assert keras_vit.describe(logits).outputs["predictions"].kind == "labels"
    model = keras_vit.from_pretrained(path, classifier_activation=None)
    keras_vit.set_output(model, "values", names=names)
    regression = keras_vit.from_pretrained(save(model, tmp_path / "values", "huggingface"))
    assert keras_vit.describe(regression).outputs["predictions"] == keras_vit.Output("values", None, names)
    assert again["id2label"] == {str(index): name for index, name in enumerate(names)}
    assert again["label2id"] == labels["label2id"]
    other = keras_vit.from_pretrained(path, classes=3)
    assert keras_vit.describe(other).label_space is None


def test_reads_resize_and_crop(vit):
    _, path = vit
    assert json.loads((path / "preprocessor_config.json").read_text())["rescale_factor"] == 1 / 255
    processor = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3], "resample": 3}
    processor |= {"size": {"shortest_edge": 11}, "do_center_crop": True, "crop_size": {"height": 8, "width": 9}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    found = open_checkpoint(path).preprocessing
    assert (list(found["mean"]), list(found["std"])) == ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])
    assert (found["resize"], tuple(found["crop"]), found["interpolation"]) == (11, (8, 9), "bicubic")
