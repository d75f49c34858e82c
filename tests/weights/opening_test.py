"""What is said beside the arrays: by the caller, by a configuration, by the catalogue; and who wins."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.catalogue import get_entry
from tests.test_case import canonical_weights, to_numpy
from tests.weights.converter_case import assert_refused, assert_same_weights, make

SMALL = keras_vit.ViTConfig(patch_size=8, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=24, mlp="gelu_exact")
SHAPE = (32, 40, 3)


@pytest.fixture
def folder(tmp_path, request):
    """A model's files in a format, "huggingface" unless the test says another."""
    model = make(SMALL, SHAPE, classes=5)
    path = tmp_path / "saved"
    keras_vit.save_weights(model, path, getattr(request, "param", "huggingface"))
    return path


def edit(path, change):
    contents = json.loads(path.read_text())
    change(contents)
    path.write_text(json.dumps(contents))


def updated(**changes):
    return lambda contents: contents.update(changes)


@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 24}, {"num_hidden_layers": 3}, {"intermediate_size": 48}, {"patch_size": 4}],
)
def test_a_configuration_of_another_model_is_refused(changes, folder):
    edit(folder / "config.json", updated(**changes))
    [name] = changes
    with pytest.raises(ValueError, match=f"is of another model: it says {name}="):
        keras_vit.from_pretrained(folder)


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
@pytest.mark.parametrize("changes", [{"embed_dim": 24}, {"depth": 3}, {"patch_size": 16}])
def test_a_configuration_of_another_model_of_timm_is_refused(changes, folder):
    edit(folder / "config.json", lambda contents: contents["model_args"].update(changes))
    with pytest.raises(ValueError, match="is of another model: it says"):
        keras_vit.from_pretrained(folder)


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
@pytest.mark.parametrize("pooling", ["max", "avgmax"])
def test_poolings_that_are_not_here_are_refused(pooling, folder):
    edit(folder / "config.json", lambda contents: contents["model_args"].update(global_pool=pooling))
    with pytest.raises(ValueError, match=f"pooling must be one of 'token', 'avg', 'map', None. Received: '{pooling}'"):
        keras_vit.from_pretrained(folder)


@pytest.mark.parametrize(
    "processor",
    [{"image_std": [0, 0, 0]}, {"image_std": ["a"]}, {"image_mean": {}}, {"image_mean": [0.5, 0.5]}, {"size": [3]}],
)
def test_pixels_that_cannot_be_are_refused_before_anything_is_written(processor, folder):
    edit(folder / "preprocessor_config.json", updated(**processor))
    model = make(SMALL, SHAPE, classes=5, seed=3)
    before = keras_vit.describe(model)
    assert_refused(lambda: keras_vit.load_weights(model, folder), model, str(folder))
    assert keras_vit.describe(model) == before


def test_an_image_size_that_is_not_the_tables_counts_for_nothing(folder):
    edit(folder / "config.json", updated(image_size=8000))
    assert keras_vit.from_pretrained(folder, grid_size=(4, 5)).input_shape == (None, *SHAPE)


def test_a_processor_for_smaller_images_grows_with_them(folder):
    """DINOv2: 518 pixels in config.json, 256 and 224 here."""
    processor = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    edit(folder / "preprocessor_config.json", updated(**processor))
    model = keras_vit.from_pretrained(folder, input_shape=(64, 64, 3))
    pixels = keras_vit.describe(model).pixels
    assert (pixels["resize"], pixels["crop"]) == ([80, 80], [64, 64])


def test_the_family_that_the_caller_names_wins(folder):
    assert keras_vit.describe(keras_vit.from_pretrained(folder)).pixels["mean"] == [0.5] * 3
    model = keras_vit.from_pretrained(folder, family="deit")
    assert keras_vit.describe(model).pixels["mean"] == [0.485, 0.456, 0.406]
    with pytest.raises(ValueError, match=r"family='deitt' is not known\. Did you mean 'deit'"):
        keras_vit.from_pretrained(folder, family="deitt")


def test_what_the_caller_says_must_be_possible(folder, tmp_path):
    for grid_size in (14, (4, 0), (4, 5, 6), "45"):
        with pytest.raises(ValueError, match="grid_size must be"):
            keras_vit.from_pretrained(folder, grid_size=grid_size)
    keras_vit.save_weights(make(SMALL.replace(mlp="gelu_tanh"), SHAPE), tmp_path / "a.npz", "google")
    with pytest.raises(ValueError, match=r"has 3 attention heads\. Received: num_heads=6"):
        keras_vit.from_pretrained(tmp_path / "a.npz", grid_size=(4, 5), num_heads=6)


def test_an_explicit_argument_wins_over_the_file_even_if_it_is_the_default(tmp_path):
    keras_vit.save_weights(keras_vit.ViTTi16(classes=2), tmp_path / "a.npz", "google")
    model = keras_vit.ViT("Ti/16", weights=tmp_path / "a.npz", classes=2, mlp="gelu_exact", position_embedding="none")
    description = keras_vit.describe(model)
    assert (description.config.mlp, description.config.position_embedding) == ("gelu_exact", "none")
    assert description.adaptations == {
        "mlp": "the weights were made for 'gelu_tanh', the model has 'gelu_exact'",
        "position_embedding/embedding": "left out: the model's positions are 'none'",
    }
    folder = tmp_path / "timm"
    keras_vit.save_weights(keras_vit.ViT("Ti/16", mlp="gelu_exact", classes=2), folder, "timm")
    for changes, mlp in (({}, "gelu_exact"), ({"mlp": "gelu_tanh"}, "gelu_tanh")):
        model = keras_vit.ViT("Ti/16", weights=folder, classes=2, **changes)
        assert keras_vit.describe(model).config.mlp == mlp


def test_parts_of_another_model_in_a_folder_are_not_mixed_in(tmp_path):
    model = make(SMALL, SHAPE, classes=5)
    keras_vit.save_weights(model, tmp_path / "preset", "keras_hub")
    headless = make(SMALL, SHAPE, include_top=False)
    with pytest.raises(ValueError, match=r"parts of another model.*task\.json, task\.weights\.h5"):
        keras_vit.save_weights(headless, tmp_path / "preset", "keras_hub")
    assert_same_weights(
        keras_vit.from_pretrained(tmp_path / "preset"), canonical_weights(make(SMALL, SHAPE, classes=5))
    )


def test_layers_around_the_model_keep_their_weights(folder):
    inputs = keras.Input((32, 40, 5))
    images = keras.layers.Conv2D(3, 1)(inputs)
    model = keras_vit.from_pretrained(folder, input_tensor=images)
    assert model.input_shape == (None, 32, 40, 5)
    assert np.isfinite(to_numpy(model(np.ones((1, 32, 40, 5), "float32")))).all()


def test_a_name_that_is_neither_a_weight_nor_a_path_says_what_is_accepted():
    with pytest.raises(
        ValueError, match=r"Nor is there a file or folder 'google/vit-base'; .* 'hf://owner/repository'"
    ):
        keras_vit.from_pretrained("google/vit-base")


def test_the_catalogue_comes_before_a_folder_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache" / get_entry("imagenet", "Ti/16").url.removeprefix("https://")
    place.parent.mkdir(parents=True)
    keras_vit.save_weights(make(SMALL.replace(mlp="gelu_tanh", patch_size=16), (224, 224, 3)), place, "google")
    with pytest.raises(ValueError, match="What was fetched is not Ti/16@augreg-i21k-i1k-224"):
        keras_vit.ViT("Ti/16", weights="imagenet")


def test_an_input_shape_says_how_positions_of_an_unpublished_size_stand(tmp_path):
    keras_vit.save_weights(keras_vit.ViTTi16(input_shape=(160, 160, 3), classes=2), tmp_path / "a.npz", "google")
    with pytest.raises(ValueError, match="or the input_shape that the table is for"):
        keras_vit.from_pretrained(tmp_path / "a.npz")
    for arguments in ({"input_shape": (160, 160, 3)}, {"input_tensor": keras.Input((160, 160, 3))}):
        model = keras_vit.ViT("Ti/16", weights=tmp_path / "a.npz", classes=2, **arguments)
        assert keras_vit.describe(model).adaptations == {}


def test_a_report_is_short_to_read(folder):
    report = keras_vit.load_weights(make(SMALL, SHAPE, classes=5), folder)
    assert repr(report).startswith(f"LoadReport(source='{folder}', format='huggingface', loaded=<")
    assert len(repr(report)) < 300


def test_folders_are_not_named_like_files(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder of files\. Received: .*model\.safetensors"):
        keras_vit.save_weights(make(SMALL, SHAPE), tmp_path / "model.safetensors", "timm")
    keras_vit.save_weights(make(SMALL.replace(mlp="gelu_tanh"), SHAPE), tmp_path / "new" / "a.npz", "google")
    assert (tmp_path / "new" / "a.npz").is_file()


def test_a_refused_model_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="Google's code cannot express a GELU"):
        keras_vit.save_weights(make(SMALL, SHAPE), tmp_path / "new" / "a.npz", "google")
    assert not list(tmp_path.iterdir())
