"""Settings come from the caller, a configuration or the catalogue; the tests check which one takes precedence."""

import dataclasses
import functools
import json
import unittest.mock

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights import opening
from keras_vit.weights.catalogue import get_entry
from keras_vit.weights.catalogue.entries import CatalogueEntry
from keras_vit.weights.containers.files import open_arrays
from keras_vit.weights.opening import entry_of_source, open_checkpoint
from tests.test_case import to_numpy
from tests.weights.converter_case import assert_refused, assert_same_weights, make, make_shell

SMALL = keras_vit.ViTConfig(patch_size=8, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=24, mlp="gelu_exact")
GELU_TANH = SMALL.replace(mlp="gelu_tanh")  # Google's models use this MLP.
SHAPE = (32, 40, 3)


@pytest.fixture
def folder(saved, copy_of, request):
    """The files of a model in a format: "huggingface", or the test's parameter."""
    return copy_of(saved(getattr(request, "param", "huggingface"), SMALL, input_shape=SHAPE).path)


@pytest.fixture(scope="module")
def model():
    """A model with the same size as the files, which tests load weights into."""
    return make(SMALL, SHAPE, seed=3)


def edit(path, change):
    contents = json.loads(path.read_text())
    change(contents)
    path.write_text(json.dumps(contents))


def updated(**changes):
    return lambda contents: contents.update(changes)


@pytest.mark.parametrize("changes", [{"hidden_size": 24}, {"num_hidden_layers": 3}, {"patch_size": 4}])
def test_a_configuration_of_another_model_is_refused(changes, folder):
    edit(folder / "config.json", updated(**changes))
    [name] = changes
    with pytest.raises(ValueError, match=f"belongs to another model: it contains {name}="):
        open_checkpoint(folder)


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: 3}, "belongs to another model: it contains") for name in ("embed_dim", "depth", "patch_size")),
        *(({name: value}, "another model: it") for name, value in (("class_token", False), ("reg_tokens", 4))),
        ({"global_pool": "avgmax"}, "pooling must be one of 'token', .*None. Received: 'avgmax'"),
    ],
)
def test_a_configuration_of_another_model_of_timm_is_refused(changes, message, folder):
    edit(folder / "config.json", lambda contents: contents["model_args"].update(changes))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "processor",
    [{"image_std": [0, 0, 0]}, {"image_std": ["a"]}, {"image_mean": {}}, {"image_mean": [0.5, 0.5]}, {"size": [3]}],
)
def test_pixels_that_cannot_be_are_refused_before_anything_is_written(processor, folder, model):
    edit(folder / "preprocessor_config.json", updated(**processor))
    before = keras_vit.describe(model)
    assert_refused(lambda: keras_vit.load_weights(model, folder), model, str(folder))
    assert keras_vit.describe(model) == before


def test_an_image_size_that_is_not_the_tables_counts_for_nothing(folder):
    edit(folder / "config.json", updated(image_size=8000))
    assert open_checkpoint(folder, grid_size=(4, 5)).image_size == SHAPE[:2]


def test_the_family_that_the_caller_names_wins(folder):
    assert list(open_checkpoint(folder).preprocessing["mean"]) == [0.1, 0.2, 0.4]
    assert list(open_checkpoint(folder, family="deit").preprocessing["mean"]) == [0.485, 0.456, 0.406]
    assert open_checkpoint(folder, family="flexivit").image_size == (240, 240)
    with pytest.raises(ValueError, match=r"family='deitt' is not known\. Did you mean 'deit'"):
        open_checkpoint(folder, family="deitt")


def test_what_the_caller_says_must_be_possible(folder, saved):
    for grid_size in (14, (4, 0), (4, 5, 6), "45"):
        with pytest.raises(ValueError, match="grid_size must be"):
            keras_vit.from_pretrained(folder, grid_size=grid_size)
    _, path = saved("google", GELU_TANH, input_shape=SHAPE)
    with pytest.raises(ValueError, match=r"has 3 attention heads\. Received: num_heads=6"):
        keras_vit.from_pretrained(path, grid_size=(4, 5), num_heads=6)


@pytest.mark.slow
def test_an_explicit_argument_wins_over_the_file_even_if_it_is_the_default(tmp_path):
    tiny = functools.partial(keras_vit.ViT, "Ti/16", num_layers=1, classes=2)
    keras_vit.save_weights(tiny(), tmp_path / "a.npz", "google")
    model = tiny(weights=tmp_path / "a.npz", mlp="gelu_exact", position_embedding="none")
    description = keras_vit.describe(model)
    assert (description.config.mlp, description.config.position_embedding) == ("gelu_exact", "none")
    assert description.adaptations == {
        "mlp": "the weights were made for 'gelu_tanh', the model has 'gelu_exact'",
        "position_embedding/embedding": "left out: the model's positions are 'none'",
    }
    folder = tmp_path / "timm"
    keras_vit.save_weights(tiny(mlp="gelu_exact"), folder, "timm")
    for changes, mlp in (({}, "gelu_exact"), ({"mlp": "gelu_tanh"}, "gelu_tanh")):
        model = tiny(weights=folder, **changes)
        assert keras_vit.describe(model).config.mlp == mlp


def test_image_size_of_a_keras_hub_preset_is_not_changed_by_hints(saved):
    _, path = saved("keras_hub", SMALL, input_shape=SHAPE)
    checkpoint = open_checkpoint(path, grid_size=(2, 10), family="flexivit")
    assert (checkpoint.grid_size, checkpoint.image_size) == ((4, 5), SHAPE[:2])


@pytest.mark.combination("KerasHub: an image size of 10^12", "refused")
def test_parts_of_another_model_in_a_folder_are_not_mixed_in(saved, copy_of):
    weights, path = saved("keras_hub", SMALL, input_shape=SHAPE)
    preset = copy_of(path)
    with pytest.raises(ValueError, match=r"files of another model.*task\.json, task\.weights\.h5"):
        keras_vit.save_weights(make_shell(SMALL, SHAPE, include_top=False), preset, "keras_hub")
    assert_same_weights(keras_vit.from_pretrained(preset), weights)
    converter = preset / "image_converter.json"
    fields = json.loads(converter.read_text())
    fields["config"]["image_size"] = [32, 10**12]
    converter.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"Each side of an image must be at most 65,535\. Received: 1000000000000"):
        keras_vit.from_pretrained(preset)


def test_layers_around_the_model_keep_their_weights(folder):
    inputs = keras.Input((32, 40, 5))
    images = keras.layers.Conv2D(3, 1)(inputs)
    model = keras_vit.from_pretrained(folder, input_tensor=images)
    assert model.input_shape == (None, 32, 40, 5)
    assert np.isfinite(to_numpy(model(np.ones((1, 32, 40, 5), "float32")))).all()


def test_a_name_that_is_neither_a_weight_nor_a_path_says_what_is_accepted():
    message = r"There is no file or folder 'google/vit-base' either\. .* 'hf://owner/repository'"
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained("google/vit-base")


def test_the_catalogue_comes_before_a_folder_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache" / get_entry("imagenet", "Ti/16").url.removeprefix("https://")
    place.parent.mkdir(parents=True)
    keras_vit.save_weights(make_shell(GELU_TANH.replace(patch_size=16), (224, 224, 3)), place, "google")
    with pytest.raises(ValueError, match="The downloaded file is not Ti/16@augreg-i21k-i1k-224"):
        keras_vit.ViT("Ti/16", weights="imagenet")


def test_a_signed_address_is_kept_without_its_signature(saved, monkeypatch):
    """The signature is as sensitive as a password, but sources appear in messages, `.keras` files and exports."""
    path = saved("google", GELU_TANH, input_shape=SHAPE).path
    monkeypatch.setattr(opening, "locate", lambda source, *_: path)
    source = "https://ann:password@weights.org/a.npz?X-Amz-Signature=1234#5678"
    model = keras_vit.from_pretrained(source, grid_size=(4, 5))
    assert keras_vit.describe(model).source == "https://weights.org/a.npz"
    assert not {word for word in ("Signature", "1234", "5678", "password") if word in model.to_json()}
    with pytest.raises(ValueError, match=r"^https://weights\.org/a\.npz has 3 attention heads"):
        keras_vit.from_pretrained(source, grid_size=(4, 5), num_heads=4)


def test_a_report_is_short_to_read(folder, model):
    report = keras_vit.load_weights(model, folder)
    assert repr(report).startswith(f"LoadReport(source='{folder}', format='huggingface', loaded=<")
    assert len(repr(report)) < 300


def test_folders_are_not_named_like_files(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder of files\. Received: .*model\.safetensors"):
        keras_vit.save_weights(make_shell(SMALL, SHAPE), tmp_path / "model.safetensors", "timm")
    keras_vit.save_weights(make_shell(GELU_TANH, SHAPE), tmp_path / "new" / "a.npz", "google")
    assert (tmp_path / "new" / "a.npz").is_file()


def test_an_unreadable_model_card_leaves_no_file_open(folder, monkeypatch):
    opened = []

    def open_and_keep(path):
        opened.append(open_arrays(path))
        return opened[-1]

    monkeypatch.setattr(opening, "open_arrays", open_and_keep)
    monkeypatch.setattr(opening, "licence_of_card", unittest.mock.Mock(side_effect=PermissionError("README.md")))
    with pytest.raises(PermissionError, match=r"README\.md"):
        open_checkpoint(folder)
    [arrays] = opened
    with pytest.raises(ValueError, match="is closed"):
        arrays[next(iter(arrays))]


@pytest.fixture
def published(folder, monkeypatch):
    """A function that makes the catalogue return an entry for the files in `folder`. Its arguments change the entry."""
    monkeypatch.setattr(opening, "locate", lambda source, *_: folder)
    entry = get_entry("B/32@clip-openai-224")

    def publish(name, **facts):
        changed = dataclasses.replace(entry, **{"name": name, "classes": 5, "family": "deit", "changes": {}, **facts})
        monkeypatch.setattr(opening, "get_entry", lambda name, variant=None: changed)
        monkeypatch.setitem(keras_vit.VARIANTS, "small", SMALL)

    return publish


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["timm"], indirect=True)
def test_the_catalogue_knows_what_a_file_does_not_say(published):
    published("small@own", has_projection=True)
    checkpoint = open_checkpoint("small@own")
    assert (checkpoint.config.mlp, checkpoint.output.kind) == ("gelu_exact", "embedding")
    assert keras_vit.from_pretrained("small@own").get_layer("predictions").activation is keras.activations.linear
    published("small@own", has_projection=False, changes={"mlp": "quick_gelu"})
    checkpoint = open_checkpoint("small@own")
    assert (checkpoint.config.mlp, checkpoint.output.kind) == ("quick_gelu", "classes")


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
@pytest.mark.parametrize(("revision", "mlp"), [("", "quick_gelu"), ("@main", "quick_gelu"), ("@v2", "gelu_exact")])
def test_the_address_of_an_entry_has_the_activation_of_the_entry(revision, mlp, published):
    """Another revision can contain other weights."""
    published("small@own")
    entry = get_entry("B/32@clip-openai-224")
    assert open_checkpoint(entry.url + revision).config.mlp == mlp


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
def test_the_address_of_an_entry_has_the_classes_of_the_entry(folder, monkeypatch):
    monkeypatch.setattr(opening, "locate", lambda source, *_: folder)
    monkeypatch.setattr(CatalogueEntry, "label_space", "imagenet1k")
    for classes, label_space in ((5, "imagenet1k"), (6, None)):
        entry = dataclasses.replace(get_entry("B/32@clip-openai-224"), classes=classes)
        monkeypatch.setattr(opening, "entry_at", lambda address, entry=entry: (entry, True))
        assert open_checkpoint(entry.url).label_space == label_space


@pytest.mark.parametrize("folder", ["timm"], indirect=True)
def test_the_number_of_heads_of_the_catalogue_counts(published, folder):
    """ViT-S of MoCo v3 has 12 heads. Its file does not say so, and other models of this size have 6."""
    edit(folder / "config.json", lambda contents: contents["model_args"].pop("num_heads"))
    published("small@own", changes={"num_heads": 6})
    assert open_checkpoint("small@own").config.num_heads == 6
    with pytest.raises(ValueError, match="The downloaded file is not small@own: num_heads is 3, not 6"):
        open_checkpoint("small@own", num_heads=3)


def test_a_folder_comes_before_a_short_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("dinov3-s16", "vit_small_patch16_dinov3.lvd1689m"):
        assert entry_of_source(name).name == "S/16@dinov3-lvd1689m"
        folder = folder.rename(tmp_path / name)
        assert entry_of_source(name) is None
        assert open_checkpoint(name).config.hidden_dim == 12
