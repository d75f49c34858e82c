"""The output of `explain`, with numbers that equal those of the model on the pictures."""

import base64
import csv
import io
import re

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data.decoding import image_decoder
from tests.models.tiny import CONFIG
from tests.test_case import randomize
from tests.text.models import random_model
from training import recipes
from training.__main__ import main
from training.data.loading import load_dataset
from training.engine.distribution import Engine
from training.errors import InputError
from training.inspection import explain as module
from training.inspection.explain import explain
from training.recipe.assignments import override
from training.reports import explain_page
from training.runs.folder import Run, open_run

FIGURES = {"filters", "position_similarity", "attention_distance", "attention_entropy", "rollout", "neighbours"}
AVERAGED, SEARCHED = 20, 33  # Attention is averaged over 20 of the 33 training images. All of them are searched.
NUMBERS = {"filters.npz", "position_similarity.npz", "attention_distance.csv", "attention_entropy.csv", "rollout.npz"}


def tiny(input_shape=(8, 12, 1), **changes):
    model = keras_vit.ViT(CONFIG.replace(**{"patch_size": 4, **changes}), input_shape=input_shape, classes=10)
    return randomize(model, seed=3)


def write_pictures(folder, count=3, size=(31, 20)):
    """Writes image files with another size than the model's; returns their paths."""
    rng = np.random.default_rng(0)
    paths = [folder / f"picture {number}.png" for number in range(count)]
    for path in paths:
        PIL.Image.fromarray(rng.integers(0, 256, (*size, 3), "uint8")).resize((20, 31)).save(path)
    return paths


def leave_figures_blank(monkeypatch):
    """Leaves figures blank, because drawing is slow. The fixtures of the module run earlier and draw all figures."""

    def save(findings, name, figure, shows):
        (findings.folder / f"{name}.png").write_bytes(b"")
        findings.figures[name] = shows, 96 * figure.get_figwidth()

    monkeypatch.setattr(explain_page.Findings, "save", save)


@pytest.fixture(autouse=True)
def blank(monkeypatch):
    leave_figures_blank(monkeypatch)


@pytest.fixture(scope="module")
def run(brief_recipe, tmp_path_factory):
    """The folder of a run on some digits, with random weights that look trained."""
    parent, recipe = tmp_path_factory.mktemp("runs"), override(brief_recipe, [f"data.train_images={SEARCHED}"])
    run = open_run(recipe, load_dataset(recipe.data), parent, str(parent / "one"), Engine(None))
    tiny().save(run.model)
    write_pictures(run.samples)
    return run


@pytest.fixture(scope="module")
def folder(run):
    """The folder with the explanation of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain_page, "_DPI", 20)
        assert module._NUM_AVERAGED == 128
        patch.setattr(module, "_NUM_AVERAGED", AVERAGED)
        page, unreadable = explain(run.folder, neighbours=3)
    assert page == run.figures / "explain" / "explain.html"
    assert unreadable == 0
    return page.parent


def _rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def model(run):
    return keras.models.load_model(run.model)


@pytest.fixture(scope="module")
def training_images(run, model):
    """(pixels, labels) of all training images of the run."""
    decode = tf.function(image_decoder(model), input_signature=[tf.TensorSpec([], tf.string)])
    source = load_dataset(recipes.load(str(run.recipe)).data).splits["train"]
    examples = [(decode(example["image"]), example["label"]) for example in source.in_order().as_numpy_iterator()]
    return tuple(map(np.stack, zip(*examples, strict=True)))


def test_every_figure_has_its_numbers(folder):
    pictures = {f"{name}.png" for name in FIGURES}
    assert {path.name for path in folder.iterdir()} == pictures | NUMBERS | {"neighbours.csv", "explain.html"}
    for name in pictures:
        with PIL.Image.open(folder / name) as image:
            assert np.asarray(image.convert("L")).std() > 5, f"{name} is blank"


def test_the_numbers_are_those_of_the_model(folder, model, training_images):
    np.testing.assert_array_equal(np.load(folder / "filters.npz")["filters"], keras_vit.embedding_filters(model, 12))
    arrays = np.load(folder / "position_similarity.npz")
    assert arrays["names"].tolist() == ["one"]
    np.testing.assert_array_equal(arrays["similarity_1"], keras_vit.position_similarity(model))
    assert f"Averaged over {AVERAGED} evenly spaced training images." in (folder / "explain.html").read_text()
    # The indices are evenly spaced and include the last image.
    places = [number * (SEARCHED - 1) // (AVERAGED - 1) for number in range(AVERAGED)]
    prepared = keras_vit.preprocess_input(training_images[0][places], model)
    for name, column, analysis in (
        ("attention_distance", "distance_pixels", keras_vit.mean_attention_distance),
        ("attention_entropy", "entropy_nats", keras_vit.attention_entropy),
    ):
        expected = analysis(model, prepared)
        rows = _rows(folder / f"{name}.csv")
        assert len(rows) == expected.size
        for row in rows:
            value = expected[int(row["layer"]) - 1, int(row["head"]) - 1]
            assert float(row[column]) == pytest.approx(value, rel=1e-5)
            assert row["model"] == "one"


def _decoded_samples(run, model):
    decode = image_decoder(model)
    return np.stack([decode(path.read_bytes()) for path in sorted(run.samples.glob("*"))])


@pytest.mark.slow
def test_rollouts_and_neighbours_are_of_the_samples(folder, run, model, training_images):
    prepared = keras_vit.preprocess_input(_decoded_samples(run, model), model)
    arrays = np.load(folder / "rollout.npz")
    np.testing.assert_allclose(arrays["rollout"], keras_vit.attention_rollout(model, prepared), rtol=1e-5)
    assert arrays["names"].tolist() == ["picture 0.png", "picture 1.png", "picture 2.png"]
    gallery, labels = training_images
    indices, similarities = keras_vit.nearest_neighbours(
        model, prepared, keras_vit.preprocess_input(gallery, model), k=3
    )
    rows = _rows(folder / "neighbours.csv")
    assert [int(row["training_image"]) for row in rows] == indices.ravel().tolist()
    assert [int(row["class"]) for row in rows] == [labels[index] for index in indices.ravel()]
    np.testing.assert_allclose([float(row["similarity"]) for row in rows], similarities.ravel(), atol=1e-5)


def test_unreadable_files_are_named_and_the_rest_is_shown(run, tmp_path, capsys):
    good = write_pictures(tmp_path, 1)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff no picture")
    pictures = [*map(str, good), str(broken), str(tmp_path / "missing.png")]
    assert main(["explain", str(run.folder), *pictures, "--neighbours", "0", "--path", str(tmp_path / "to")]) == 1
    printed = capsys.readouterr().out
    assert f"{broken}: is not an image that can be decoded" in printed
    assert f"{tmp_path / 'missing.png'}: cannot be read: No such file" in printed
    assert "explain.html (open it in a browser" in printed
    assert np.load(tmp_path / "to" / "rollout.npz")["names"].tolist() == ["picture 0.png"]
    assert not (tmp_path / "to" / "neighbours.png").exists()


@pytest.mark.slow
def test_models_stand_side_by_side(tmp_path):
    """Models of other sizes read the pictures at their own size. One model lacks what is compared.

    `file` is also the name of an argument of `numpy.savez`.
    """
    bare = tiny((24, 16, 3), num_layers=1, position_embedding="none")
    bare.save(tmp_path / "file.keras")
    tiny((12, 12, 3), pooling="avg", axial=True).save(tmp_path / "axial.keras")
    keras_vit.save_weights(tiny((224, 224, 3), patch_size=112), tmp_path / "published.npz", "google")
    compared = [tmp_path / "file.keras", tmp_path / "published.npz"]
    paths = write_pictures(tmp_path)
    page, _ = explain(tmp_path / "axial.keras", paths, tmp_path, compared, neighbours=5)
    rows = _rows(page.with_name("attention_distance.csv"))
    depths = {"file": 1, "axial": 4, compared[1].name: 2}
    expected = {(name, str(layer)) for name, depth in depths.items() for layer in range(1, depth + 1)}
    assert {(row["model"].rpartition("/")[2], row["layer"]) for row in rows} == expected
    similarities = np.load(page.with_name("position_similarity.npz"))
    assert [name.rpartition("/")[2] for name in similarities["names"]] == ["axial", "published.npz"]
    model = keras_vit.from_pretrained(compared[1])
    np.testing.assert_array_equal(similarities["similarity_2"], keras_vit.position_similarity(model))
    pixels = np.stack([image_decoder(bare)(path.read_bytes()) for path in paths])
    distances = keras_vit.mean_attention_distance(bare, keras_vit.preprocess_input(pixels, bare))
    found = [float(row["distance_pixels"]) for row in rows if row["model"] == "file"]
    np.testing.assert_allclose(found, distances[0], rtol=1e-5)


@pytest.mark.slow
def test_without_its_data_a_run_shows_the_rest(run, tmp_path, capsys, monkeypatch):
    def gone(*_, **__):
        raise InputError("the disk is not there.")

    monkeypatch.setattr("training.tasks.task.load_dataset", gone)
    page, _ = explain(run.folder, path=tmp_path)
    assert "The run's training images are left out: the disk is not there." in capsys.readouterr().out
    assert {path.stem for path in tmp_path.glob("*.png")} == FIGURES - {"neighbours"}
    assert "Averaged over 3 of the given pictures." in page.read_text(encoding="utf-8")


def test_a_model_without_attention_shows_its_filters(tmp_path, capsys):
    changes = {"stage_depths": (1,), "width": 4, "include_preprocessing": True}
    keras_vit.ResNet("R18", input_shape=(32, 32, 3), classes=4, **changes).save(tmp_path / "resnet.keras")
    page, _ = explain(tmp_path / "resnet.keras", write_pictures(tmp_path), tmp_path / "to")
    assert {path.name for path in page.parent.iterdir()} == {"explain.html", "filters.png", "filters.npz"}
    assert "contains no encoder block" in capsys.readouterr().out
    assert "contains no encoder block" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_of_visual_tokens_their_lineage_is_shown(tmp_path, capsys):
    changes = {"stage_depths": (1, 1), "width": 8, "filters": 16, "token_dim": 24, "num_heads": 2, "num_tokens": 6}
    changes["group_width"] = 4
    model = keras_vit.VTResNet("VT-R18", input_shape=(32, 48, 3), classes=4, include_preprocessing=True, **changes)
    model.save(tmp_path / "tokens.keras")
    paths = write_pictures(tmp_path)
    page, _ = explain(tmp_path / "tokens.keras", paths, tmp_path / "to")
    assert {path.name for path in page.parent.iterdir()} == {
        *("explain.html", "filters.png", "filters.npz", "tokens.png", "tokens.npz")
    }
    assert "left out" not in capsys.readouterr().out
    pixels = np.stack([image_decoder(model)(path.read_bytes()) for path in paths])
    with np.load(tmp_path / "to" / "tokens.npz") as found:
        assert list(found["names"]) == [path.name for path in paths]
        np.testing.assert_allclose(found["lineage"], keras_vit.token_lineage(model, pixels), rtol=1e-5)
    text = page.read_text(encoding="utf-8")
    assert "Origin of the visual tokens" in text
    assert "class=note></p>" not in text
    with pytest.raises(InputError, match="--compare works with Vision Transformers only"):
        explain(tmp_path / "tokens.keras", paths, compare=[tmp_path / "tokens.keras"])


@pytest.mark.slow
def test_texts_are_found_by_an_image_text_model(tmp_path):
    model = random_model(include_preprocessing=True)
    model.save(tmp_path / "pair.keras")
    paths, texts = write_pictures(tmp_path, 2), ["a cat", "a train"]
    explain(tmp_path / "pair.keras", paths, tmp_path / "shown", texts=texts)
    found = np.load(tmp_path / "shown" / "texts.npz")
    pixels = np.stack([image_decoder(model.image_encoder)(path.read_bytes()) for path in paths])
    np.testing.assert_allclose(found["maps"], model.text_maps(pixels.astype("float32"), texts), atol=1e-6)
    assert found["texts"].tolist() == texts
    assert "Where each text is" in (tmp_path / "shown" / "explain.html").read_text()
    model.image_encoder.save(tmp_path / "image.keras")
    with pytest.raises(InputError, match=r"--texts needs an image-text model"):
        explain(tmp_path / "image.keras", paths, tmp_path / "shown", texts=texts)


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path, 1)
    tiny().save("model.keras")
    of_any_size = keras_vit.ViT(CONFIG, input_shape=(None, None, 3))
    of_any_size.get_layer("preprocessing").set_preprocessing()
    of_any_size.save("any.keras")
    for source, images, options, message in (
        ("model.keras", [], {}, "There is no readable picture. Add the paths of image files"),
        ("model.keras", ["picture 0.png"], {"path": "picture 0.png"}, r"0.png cannot be made: File exists"),
        ("nothing", [], {}, "'nothing' is not the name of published weights"),
        ("other.keras", [], {}, "other.keras does not exist"),
        ("any.keras", ["picture 0.png"], {}, r"any.keras: The model takes images of any size.*Give --image-size H W"),
    ):
        with pytest.raises(InputError, match=message):
            explain(source, images, **options)


@pytest.mark.slow
def test_pictures_of_a_model_of_variable_size_end_where_the_patches_do(tmp_path):
    tiny((None, None, 3), position_embedding="none", crop_to_patches=True).save(tmp_path / "any.keras")
    page, _ = explain(tmp_path / "any.keras", write_pictures(tmp_path, 1), tmp_path / "to", image_size=(11, 14))
    assert np.load(page.with_name("rollout.npz"))["rollout"].shape == (1, 2, 3)
    [source] = re.findall(r'data-picture=0.*?src="data:image/png;base64,([^"]+)"', page.read_text(encoding="utf-8"))
    assert PIL.Image.open(io.BytesIO(base64.b64decode(source))).size == (12, 8)
    assert Run(tmp_path).figures.exists() is False
