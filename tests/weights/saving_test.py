"""`save_weights`, and KerasHub's layout without KerasHub; tests/peers compares with KerasHub itself."""

import contextlib
import os
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from tests.test_case import canonical_weights, random_inputs, to_numpy
from tests.weights.converter_case import (
    CONFIG,
    SHAPE,
    assert_refused,
    assert_same_weights,
    contents,
    make,
    make_shell,
    run_converter_test,
    run_spoiled_test,
    save,
)

HUB = CONFIG.replace(mlp="gelu_exact", layer_norm_epsilon=1e-12)
FOLDERS = {"timm": HUB.replace(layer_norm_epsilon=1e-6), "huggingface": HUB, "keras_hub": HUB}
FORMATS = {"google": CONFIG, **FOLDERS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_layers": 2},
        {"include_top": False},
        {"pooling": "avg"},
        {"representation_dim": 7},
        {"pooling": "avg", "representation_dim": 7, "layer_norm_epsilon": 1e-6},
    ],
)
def test_there_and_back_in_keras_hub(arguments, tmp_path):
    run_converter_test("keras_hub", tmp_path, HUB, **{"num_layers": 1, **arguments})


@pytest.mark.slow
def test_names_what_does_not_fit_in_keras_hub(tmp_path):
    run_spoiled_test("keras_hub", tmp_path, HUB)


@pytest.fixture(scope="module")
def models():
    """{format: model that it can express}. No test changes the models."""
    return {format: make(config.replace(num_layers=1)) for format, config in FORMATS.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mlp": "gelu_tanh"}, r"mlp='gelu_tanh' \(accepted: 'gelu_exact'\)"),
        ({"pooling": "avg", "class_token": True}, "average pooling beside a class token"),
        ({"num_position_prefix_rows": 0}, "positions of the patches only"),
    ],
)
def test_refuses_what_keras_hub_cannot_express(arguments, reason, tmp_path):
    with pytest.raises(ValueError, match=f"KerasHub's ViT cannot express .*{reason}.* not saved"):
        keras_vit.save_weights(make_shell(HUB, **arguments), tmp_path / "saved", "keras_hub")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"position_embedding": "learned_2d"}, "position_embedding='learned_2d'"),
        ({"position_embedding": "relative"}, "position_embedding='relative'"),
        ({"position_placement": "every_layer"}, "position_placement='every_layer'"),
        (
            {"position_embedding": "sincos_2d", "position_placement": "every_layer_shared"},
            "position_placement='every_layer_shared'",
        ),
        ({"pooling": "avg", "axial": True}, "axial=True"),
    ],
)
def test_refuses_what_no_project_has(arguments, reason, saved, tmp_path):
    """The model cannot be saved, and no file can be loaded into it, even if all names and shapes match."""
    path = saved().path
    model = make(num_layers=1, **arguments)
    for format in FORMATS:
        with pytest.raises(ValueError, match=f"cannot express .*{reason} .*The model was not saved"):
            keras_vit.save_weights(model, tmp_path / ("saved.npz" if format == "google" else "saved"), format)
    message = rf"No format of published weights can express {reason} \(.*\)\. Build the model with weights=None"
    assert_refused(lambda: keras_vit.load_weights(model, path, head="reset"), model, message)
    assert_refused(lambda: keras_vit.load_weights(model, "hf://never/asked"), model, message)
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


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_takes_text_and_paths(format, models, tmp_path):
    model = models[format]
    path = tmp_path / ("a.npz" if format == "google" else "deep/folder")
    keras_vit.save_weights(model, str(path), format)
    again = keras_vit.from_pretrained(str(path), input_shape=SHAPE)
    assert_same_weights(again, canonical_weights(model))
    first = contents(path)
    keras_vit.save_weights(model, path, format)
    assert_same_files(contents(path), first)


def assert_same_files(found, expected):
    """Asserts that two results of `contents` are equal."""
    assert found.keys() == expected.keys()
    for file, arrays in expected.items():
        assert found[file].keys() == arrays.keys()
        for name in arrays:
            np.testing.assert_array_equal(found[file][name], arrays[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
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
    for method in ("write_text", "replace"):
        with monkeypatch.context() as patches:
            patches.setattr(pathlib.Path, method, failing_from(0, getattr(pathlib.Path, method)))
            with pytest.raises(OSError, match="full"):
                keras_vit.save_weights(model, path, "keras_hub")
        assert not list(tmp_path.iterdir())
    other = make(FORMATS["keras_hub"].replace(mlp_dim=24), num_layers=1, seed=3)
    seen = set()
    for number in range(20):
        keras_vit.save_weights(other, path, "keras_hub")
        old = {name: (path / name).read_bytes() for name in ("config.json", "task.json", "model.weights.h5")}
        with monkeypatch.context() as patches:
            patches.setattr(pathlib.Path, "replace", failing_from(number, pathlib.Path.replace))
            with contextlib.suppress(OSError):
                keras_vit.save_weights(model, path, "keras_hub")
        is_old = {
            name: (path / name).read_bytes() == content for name, content in old.items() if (path / name).exists()
        }
        seen.add(tuple(is_old.items()))
        assert "model.weights.h5" not in is_old or len(set(is_old.values())) == 1
        assert not list(path.glob("unfinished-*"))
    assert len(seen) > 2
    assert not any(is_old.values())  # The last attempt succeeded.


@pytest.mark.parametrize("format", ["torch", "Google", None, ["timm"]])
def test_refuses_other_formats(format, models, tmp_path):
    with pytest.raises(
        ValueError, match=r"format must be one of 'google', 'timm', 'huggingface', 'keras_hub'\. Received: "
    ):
        keras_vit.save_weights(models["google"], tmp_path / "saved", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("spelling", "format"), [("hf", "huggingface"), ("big_vision", "google")])
def test_a_format_as_others_spell_it(spelling, format, models, tmp_path):
    with pytest.raises(ValueError, match=rf"Received: '{spelling}'\. Did you mean '{format}'\?"):
        keras_vit.save_weights(models["google"], tmp_path / "saved", spelling)


@pytest.mark.parametrize("name", ["saved", "saved.safetensors", "saved.NPZ", "saved.npz.h5"])
def test_google_is_a_file_of_its_ending(name, models, tmp_path):
    with pytest.raises(ValueError, match=rf"a file that ends in \.npz\. Received: '.*{name}'"):
        keras_vit.save_weights(models["google"], tmp_path / name, "google")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", FOLDERS)
def test_other_formats_are_folders(format, models, tmp_path):
    (tmp_path / "saved").write_text("mine")
    with pytest.raises(ValueError, match=f"'{format}' is a folder of files\\. Received: '.*saved'"):
        keras_vit.save_weights(models[format], tmp_path / "saved", format)
    assert (tmp_path / "saved").read_text() == "mine"


@pytest.mark.parametrize("format", FORMATS)
def test_where_nothing_can_be_written(format, models, tmp_path):
    (tmp_path / "file").write_text("mine")
    name = "a.npz" if format == "google" else "saved"
    with pytest.raises(OSError, match="file"):
        keras_vit.save_weights(models[format], tmp_path / "file" / name, format)
    if format == "google":
        (tmp_path / "folder.npz").mkdir()
        with pytest.raises(OSError, match=r"folder\.npz"):
            keras_vit.save_weights(models["google"], tmp_path / "folder.npz", "google")
        assert set(os.listdir(tmp_path)) == {"file", "folder.npz"}
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("format", FORMATS)
def test_where_writing_is_forbidden(format, models, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        keras_vit.save_weights(models[format], tmp_path / "a.npz", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("format", ["google", "keras_hub"])  # One file, and several files.
def test_a_model_nested_in_another(format, tmp_path):
    base = make(FORMATS[format], include_top=False, num_layers=1)
    inputs = keras.Input(SHAPE)
    outer = keras.Model(inputs, keras.layers.Dense(3)(base(inputs)))
    nested = contents(save(outer, tmp_path / "outer", format))
    alone = contents(save(base, tmp_path / "base", format))
    assert_same_files(nested, alone)


@pytest.mark.slow
@pytest.mark.parametrize("format", FOLDERS)
def test_a_model_of_variable_size(format, tmp_path):
    """The table is saved for 224 pixels, which is the image size of the loaded model."""
    model = make(FOLDERS[format], input_shape=(None, None, 3), num_layers=1, patch_size=32)
    again = keras_vit.from_pretrained(save(model, tmp_path / "saved", format), classifier_activation=None)
    assert again.input_shape == (None, 224, 224, 3)
    assert_same_weights(again, canonical_weights(model))
    if format == "timm":
        [images] = random_inputs((224, 224, 3))
        np.testing.assert_array_equal(to_numpy(again(images)), to_numpy(model(images)))


def test_refuses_a_model_of_others(tmp_path):
    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="Build the model with"):
        keras_vit.save_weights(keras.Model(inputs, keras.layers.Dense(2)(inputs)), tmp_path / "a.npz", "google")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("format", ["timm", "huggingface"])
def test_resize_and_crop_survive(format, tmp_path):
    model = make(FORMATS[format], input_shape=(12, 12, 3), patch_size=4, num_layers=1)
    protocol = {"mean": [0.1, 0.2, 0.4], "std": [0.25, 0.5, 0.75], "interpolation": "bicubic"}
    model.get_layer("preprocessing").set_protocol(**protocol, resize=14, crop=(12, 12))
    again = keras_vit.from_pretrained(save(model, tmp_path / "saved", format))
    assert keras_vit.describe(again).pixels == {**protocol, "resize": 14, "crop": [12, 12], "normalize": False}
