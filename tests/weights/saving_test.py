"""`save_weights`, and KerasHub's layout without KerasHub; tests/peers compares with KerasHub itself."""

import contextlib
import os
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights import formats
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.formats.format import ModelDescription
from tests.test_case import random_inputs, rest_slow, to_numpy
from tests.weights.converter_case import (
    CONFIG,
    SHAPE,
    assert_refused,
    assert_same_arrays,
    contents,
    make,
    run_converter_test,
    save,
)
from tests.weights.rotary_configs import DINOV3

HUB = CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-12)
FOLDERS = {"timm": HUB.replace(layer_norm_epsilon=1e-6), "huggingface": HUB, "keras_hub": HUB}
FORMATS = {"google": CONFIG, **FOLDERS}
WRITTEN = {name: layout for name, layout in formats.FORMATS.items() if layout.write}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"include_top": False}, {"pooling": "avg", "representation_dim": 7}])
def test_there_and_back_in_keras_hub(arguments, tmp_path):
    run_converter_test("keras_hub", tmp_path, HUB, num_layers=1, **arguments)


# {format: [(changes of its config, reason why it cannot express them)]}
REFUSALS = {
    "google": [
        ({"mlp": "gelu_exact"}, r"mlp='gelu_exact' \(accepted: 'gelu_tanh'\)"),
        ({"pooling": "avg", "class_token": True}, "a class token that is not pooled"),
        ({"stem": keras_vit.StemConfig((1,), 32), "pooling": "map"}, "a hybrid with positions or pooling of big_v"),
    ],
    "timm": [
        ({"representation_dim": 7}, r"representation_dim=7 \(accepted: None\)"),
        ({"layer_norm_epsilon": 1e-3}, r"layer_norm_epsilon=0\.001 \(accepted: 1e-06 or 1e-05\)"),
        ({"pooling": "map", "mlp": "swiglu"}, "SwiGLU with attention pooling"),
        ({"mlp": "gelu_tanh", "rotary": DINOV3}, r"mlp='gelu_tanh' \(accepted: 'gelu_exact' or 'swiglu'\)"),
        ({"distillation_token": True, "layer_norm_epsilon": 1e-5}, "this combination of distillation token, epsilon"),
        ({"num_register_tokens": 2, "num_position_prefix_rows": 2}, "position rows for only some of the prefix tokens"),
        ({"rotary": keras_vit.RotaryConfig(kind="mixed")}, "mixed rotary positions of this kind"),
        ({"pooling": "avg", "class_token": True, "pool_prefix_tokens": True, "rotary": DINOV3}, "in its class Eva"),
        ({"block_norm": "post", "layer_scale": 0.1}, "LayerScale in blocks with normalised outputs"),
    ],
    "huggingface": [
        ({"pooling": "avg", "class_token": True}, r"pooling='avg' \(accepted: 'token' or None\)"),
        ({"representation_dim": 7}, "a pre_logits layer with a classifier"),
        ({"layer_scale": 0.1, "mlp_dim": 36}, "this classifier"),
        ({"layer_scale": 0.1, "mlp_dim": 20, "pooling": None}, "this width of the MLP"),
        ({"distillation_token": True, "layer_scale": 0.1}, r"distillation_token=True \(accepted: False\)"),
        ({"num_position_prefix_rows": 0}, "positions of the patches only"),
    ],
    "keras_hub": [
        ({"mlp": "gelu_tanh"}, r"mlp='gelu_tanh' \(accepted: 'gelu_exact'\)"),
        ({"pooling": "avg", "class_token": True}, "average pooling beside a class token"),
        ({"num_position_prefix_rows": 0}, "positions of the patches only"),
    ],
}


def test_every_written_format_is_tested():
    assert FORMATS.keys() == REFUSALS.keys() == WRITTEN.keys(), "add the format to FORMATS and REFUSALS"


@pytest.mark.parametrize("format", REFUSALS)
def test_refuses_what_a_format_cannot_express(format):
    title = {"google": "Google's code", "timm": "timm", "huggingface": "transformers 5", "keras_hub": "KerasHub's ViT"}
    for changes, reason in REFUSALS[format]:
        config = FORMATS[format].replace(**changes)
        description = ModelDescription(
            config, SHAPE[:2], SHAPE[2], config.pooling and 5, preprocessing_of("google", SHAPE[:2])
        )
        with pytest.raises(ValueError, match=f"{title[format]} cannot express .*{reason}.* not saved"):
            formats.FORMATS[format].write({}, description)


@pytest.fixture(scope="module")
def models():
    """{format: model that it can express}. No test changes the models."""
    return {format: make(config.replace(num_layers=1)) for format, config in FORMATS.items()}


@pytest.mark.slow
def test_refuses_what_no_project_has(saved, tmp_path):
    """The model cannot be saved, and no file can be loaded into it, even if all names and shapes match."""
    model = make(num_layers=1, pooling="avg", axial=True)
    for format in FORMATS:
        with pytest.raises(ValueError, match=r"cannot express .*axial=True .*The model was not saved"):
            keras_vit.save_weights(model, tmp_path / f"saved{WRITTEN[format].file_suffix or ''}", format)
    message = r"No format of published weights can express axial=True \(.*\)\. Build the model with weights=None"
    for source in (saved().path, "hf://never/asked"):
        assert_refused(lambda source=source: keras_vit.load_weights(model, source, head="reset"), model, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("build", [keras_vit.from_pretrained, lambda path, **changes: make(weights=path, **changes)])
def test_builds_nothing_that_no_project_has(build, saved):
    message = "No format of published weights can express position_embedding='relative'"
    with pytest.raises(ValueError, match=message):
        build(saved().path, input_shape=SHAPE, position_embedding="relative")


def test_a_preset_needs_its_config(models, tmp_path):
    path = save(models["keras_hub"], tmp_path / "saved", "keras_hub")
    (path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"needs its config\.json beside the weights"):
        keras_vit.from_pretrained(path)


def assert_same_files(found, expected):
    """Asserts that two results of `contents` are equal."""
    assert found.keys() == expected.keys()
    for file, arrays in expected.items():
        assert_same_arrays(found[file], arrays)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["google", "keras_hub"])
def test_replaces_what_is_there(format, models, tmp_path):
    """Only files with the names of the new files are replaced."""
    other = make(FORMATS[format].replace(mlp_dim=24), num_layers=1, seed=3)
    path = save(other, tmp_path / "saved", format)
    note = tmp_path / "saved" / "notes.txt"
    note.write_text("mine")
    names = set(os.listdir(tmp_path / "saved"))
    keras_vit.save_weights(models[format], path, format)
    assert set(os.listdir(tmp_path / "saved")) == names
    assert note.read_text() == "mine"
    expected = save(models[format], tmp_path / "expected", format)
    note.unlink()
    assert_same_files(contents(path), contents(expected))


def failing_from(number, function):
    """A replacement for a method of `pathlib.Path` that succeeds `number` times, then fails."""
    count = iter(range(number))

    def stand_in(path, *arguments, **options):
        if next(count, None) is None:
            raise OSError("full")
        return function(path, *arguments, **options)

    return stand_in


@pytest.mark.slow
def test_a_folder_appears_as_a_whole(models, tmp_path, monkeypatch):
    """Wherever writing fails, the folder never mixes two models. Without the weights file it is not a model."""
    model, path = models["keras_hub"], tmp_path / "saved"
    other = make(FORMATS["keras_hub"].replace(mlp_dim=24), num_layers=1, seed=3)
    seen = set()
    for number in range(20):
        keras_vit.save_weights(other, path, "keras_hub")
        old = {name: (path / name).read_bytes() for name in ("config.json", "task.json", "model.weights.h5")}
        with monkeypatch.context() as patches:
            patches.setattr(pathlib.Path, "replace", failing_from(number, pathlib.Path.replace))
            with contextlib.suppress(OSError):
                keras_vit.save_weights(model, path, "keras_hub")
        is_old = {name: (path / name).read_bytes() == old[name] for name in old if (path / name).exists()}
        seen.add(tuple(is_old.items()))
        assert "model.weights.h5" not in is_old or len(set(is_old.values())) == 1
        assert not list(path.glob("unfinished-*"))
    assert len(seen) > 2
    assert not any(is_old.values())  # The last attempt succeeded.


def test_refuses_other_formats_and_endings(models, tmp_path):
    message = f"format must be one of {', '.join(map(repr, WRITTEN))}\\. Received: {{!r}}"
    ending = "a file that ends in \\.npz\\. Received: '.*{}'"
    for name, format, match in (
        *(("saved", format, message.format(format)) for format in ("torch", None)),
        *(("saved", "hf", "Did you mean 'huggingface'"), ("saved", "big_vision", "Did you mean 'google'")),
        *(
            (name, "google", ending.format(name))
            for name in ("saved", "saved.safetensors", "saved.NPZ", "saved.npz.h5")
        ),
    ):
        with pytest.raises(ValueError, match=match):
            keras_vit.save_weights(models["google"], tmp_path / name, format)
    assert not list(tmp_path.iterdir())


def test_other_formats_are_folders(models, tmp_path):
    (tmp_path / "saved").write_text("mine")
    with pytest.raises(ValueError, match=r"'timm' is a folder of files\. Received: '.*saved'"):
        keras_vit.save_weights(models["timm"], tmp_path / "saved", "timm")
    assert (tmp_path / "saved").read_text() == "mine"


def test_where_nothing_can_be_written(models, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.npz").mkdir()
    for format, name in (("google", "file/a.npz"), ("google", "folder.npz"), ("timm", "file/saved")):
        with pytest.raises(OSError, match=name.partition("/")[0]):
            keras_vit.save_weights(models[format], tmp_path / name, format)
    assert set(os.listdir(tmp_path)) == {"file", "folder.npz"}
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_a_model_nested_in_another(tmp_path):
    base, inputs = make(FORMATS["keras_hub"], include_top=False, num_layers=1), keras.Input(SHAPE)
    outer = keras.Model(inputs, keras.layers.Dense(3)(base(inputs)))
    nested, alone = (contents(save(model, tmp_path / model.name, "keras_hub")) for model in (outer, base))
    assert_same_files(nested, alone)


@pytest.mark.slow
def test_a_model_of_variable_size(tmp_path):
    """The table is saved for 224 pixels, which is the image size of the loaded model."""
    model = make(FOLDERS["timm"], input_shape=(None, None, 3), num_layers=1, patch_size=32)
    again = keras_vit.from_pretrained(save(model, tmp_path / "saved", "timm"), classifier_activation=None)
    assert again.input_shape == (None, 224, 224, 3)
    [images] = random_inputs((224, 224, 3))
    np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(model(images)))


def test_refuses_a_model_of_others(tmp_path):
    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="Build the model with"):
        keras_vit.save_weights(keras.Model(inputs, keras.layers.Dense(2)(inputs)), tmp_path / "a.npz", "google")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", rest_slow(["timm", "huggingface"]))
def test_resize_and_crop_survive(format, tmp_path):
    model = make(FORMATS[format], input_shape=(12, 12, 3), patch_size=4, num_layers=1)
    protocol = {"mean": [0.1, 0.2, 0.4], "std": [0.25, 0.5, 0.75], "interpolation": "bicubic"}
    model.get_layer("preprocessing").set_preprocessing(**protocol, resize=14, crop=(12, 12))
    again = keras_vit.from_pretrained(save(model, tmp_path / "saved", format))
    assert keras_vit.describe(again).pixels == {**protocol, "resize": 14, "crop": [12, 12], "normalize": False}


@pytest.mark.parametrize(
    ("format", "kind"),
    [("google", "values"), ("keras_hub", "values"), ("timm", "embedding"), ("huggingface", "embedding")],
)
def test_outputs_that_a_format_cannot_express_are_refused(format, kind, tmp_path):
    model = make(FORMATS[format], num_layers=1)
    keras_vit.set_output(model, kind)
    with pytest.raises(ValueError, match=f"'{format}' cannot express that a model returns {kind}"):
        keras_vit.save_weights(model, tmp_path / f"model{WRITTEN[format].file_suffix or ''}", format)
    assert not list(tmp_path.iterdir())
