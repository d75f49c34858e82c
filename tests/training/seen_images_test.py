"""A model is never tested on images that it was trained on, even if its data set has changed since."""

import dataclasses
import functools
import json
import pathlib
import shutil

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from tests.training.conftest import BRIEF
from tests.training.data.sets.folder_test import write_image
from training import recipes
from training.__main__ import main
from training.data.contents import INITIAL_WEIGHTS, Contents, Item, Record, read_contents
from training.data.loading import load_dataset
from training.data.sets.records import write_records
from training.engine import train
from training.engine.distribution import Engine
from training.engine.fitting import Fitting
from training.errors import InputError
from training.inspection.evaluate import evaluate_source
from training.recipe.assignments import override
from training.runs.folder import Run, open_run, read_record
from training.runs.opening import load_data
from training.tasks import TASKS

NAMES = "cat", "dog"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The parent of `photographs` and of `run`, a run on these photographs."""
    parent = tmp_path_factory.mktemp("begun")
    for number in range(20):
        write_image(parent / "photographs" / NAMES[number % 2] / f"{number}.png")
    recipe = override(recipes.load("folder"), [f"data.directory={parent / 'photographs'}"])
    open_run(recipe, load_dataset(recipe.data), parent, parent / "run", Engine(None))
    return parent


@pytest.fixture
def run(begun, tmp_path):
    """A copy of `begun`, whose photographs may be changed."""
    shutil.copytree(begun, tmp_path / "copy")
    run = Run(tmp_path / "copy" / "run")
    run.recipe.write_text(run.recipe.read_text().replace(str(begun), str(tmp_path / "copy")))
    return run


def photographs(run):
    return run.folder.parent / "photographs"


def splits_of(run, directory=None):
    """{split: names of its files}, as commands that measure a model read the data of a run or another directory."""
    data = recipes.load(str(run.recipe)).data
    if directory is not None:
        data = dataclasses.replace(data, directory=str(directory))
    dataset = load_data(functools.partial(load_dataset, data), run, is_data_of_run=directory is None)
    assert {split: source.size for split, source in dataset.splits.items()} == {
        split: len(items) for split, items in dataset.contents.items.items() if items
    }
    return {split: [item.path for item in items] for split, items in dataset.contents.items.items() if items}


@pytest.mark.combination(
    "evaluate a run after test images were removed", "the other test images; the removed ones are listed"
)
def test_removed_test_images_are_not_replaced_by_training_images(run, capsys):
    before = splits_of(run)
    assert capsys.readouterr().out == ""
    removed, *kept = before["test"]
    (run.folder.parent / "photographs" / removed).unlink()
    assert splits_of(run) == before | {"test": kept}
    expected = f"  missing or changed in the test split: {removed}\n"
    assert capsys.readouterr().out == f"The data have changed since the training of {run.folder}:\n{expected}"


@pytest.mark.combination(
    "evaluate a run after images were added", "the run's test images; the added ones form the split new"
)
def test_added_images_are_in_no_split(run, capsys):
    before = splits_of(run)
    write_image(run.folder.parent / "photographs" / "cat" / "added.png")
    assert splits_of(run) == before | {"new": ["cat/added.png"]}
    assert "\n  new or changed: cat/added.png\n" in capsys.readouterr().out


@pytest.mark.combination("evaluate a run on a moved or renamed folder of its images", "the run's test images")
def test_moved_images_are_recognised(run, capsys):
    before = splits_of(run)
    moved = photographs(run).rename(run.folder.parent / "moved")
    assert splits_of(run, moved) == before
    (moved / "cat").rename(moved / "mouse")
    (moved / "dog" / before["test"][-1].partition("/")[2]).rename(moved / "dog" / "other.png")
    assert [name.rpartition("/")[2] for name in splits_of(run, moved)["test"]] == [
        *(name.rpartition("/")[2] for name in before["test"][:-1]),
        "other.png",
    ]
    out = capsys.readouterr().out
    assert "\n  with another annotation: mouse/0.png, mouse/10.png, mouse/12.png" in out
    assert "… (11 in all)" in out.partition("with another name")[2]


@pytest.mark.combination("evaluate a run on another folder", "the splits of that folder, without a message")
def test_unknown_images_are_split_as_usual(run, tmp_path, capsys):
    for number in range(20, 40):
        write_image(tmp_path / "other" / NAMES[number % 2] / f"{number}.png")
    assert {split: len(names) for split, names in splits_of(run, tmp_path / "other").items()} == {
        "train": 14,
        "validation": 2,
        "test": 4,
    }
    assert capsys.readouterr().out == ""


@pytest.mark.combination(
    "evaluate a run on another folder that contains some of its images", "the folder's test images without these"
)
def test_seen_images_in_another_folder_are_left_out(run, tmp_path, capsys):
    other = tmp_path / "other"
    for number in range(20, 40):
        write_image(other / NAMES[number % 2] / f"{number}.png")
    tested = splits_of(run, other)["test"][0]
    shutil.copy(photographs(run) / splits_of(run)["train"][0], other / tested)
    splits = splits_of(run, other)
    assert [len(splits[split]) for split in ("train", "validation", "test")] == [14, 2, 3]
    assert tested not in splits["test"]
    assert capsys.readouterr().out == f"Images that {run.folder} was trained on are no test images: {tested}\n"


@pytest.mark.combination(
    "evaluate a run on folders train and test that split its images otherwise", "the splits of the run, and a sentence"
)
def test_split_folders_that_differ_are_named(run, tmp_path, capsys):
    splits = splits_of(run)
    paths = [path for split in ("test", "validation", "train") for path in splits[split]]
    for number, path in enumerate(paths):
        target = tmp_path / "other" / ("train" if number < 10 else "test") / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(photographs(run) / path, target)
    found = splits_of(run, tmp_path / "other")
    assert {split: [path.partition("/")[2] for path in found[split]] for split in found} == splits
    assert "not in that of their folder: test/" in capsys.readouterr().out


@pytest.mark.combination("evaluate a run after all its images were encoded again", "refused")
def test_a_folder_without_any_image_of_the_run_is_refused(run):
    for path in photographs(run).glob("*/*.png"):
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InputError, match="contains none of the images that it had when the run began"):
        splits_of(run)


@pytest.mark.combination("train on a picture that is in two classes", "both copies are in one split")
def test_copies_in_two_classes_stay_together(run):
    data = recipes.load(str(run.recipe)).data
    tested = splits_of(run)["test"][0]
    copy = next(path for path in splits_of(run)["train"] if path.partition("/")[0] != tested.partition("/")[0])
    shutil.copy(photographs(run) / copy, photographs(run) / tested)
    contents = load_dataset(data).contents
    by_path = {item.path: split for split, items in contents.items.items() for item in items}
    assert by_path[tested] == by_path[copy] == "train"
    # The order of the copies is restored too, so a resumed run has the same batches.
    assert load_dataset(data, record=Record("run", contents, "resume")).contents == contents


@pytest.mark.combination(
    "resume a run after two class folders were exchanged", "refused; the relabelled files are listed"
)
def test_a_run_does_not_go_on_with_exchanged_labels(run):
    recipe = recipes.load(str(run.recipe))
    arguments = None, run.folder, Engine(None)
    open_run(recipe, load_dataset(recipe.data), *arguments)
    folder = photographs(run)
    (folder / "cat").rename(folder / "saved")
    (folder / "dog").rename(folder / "cat")
    (folder / "saved").rename(folder / "dog")
    with pytest.raises(
        InputError, match=r"started with other data:\n(.*\n)*  with another annotation: cat/1\.png"
    ) as error:
        open_run(recipe, load_dataset(recipe.data), *arguments)
    assert str(error.value).endswith("name another folder, or omit run=PATH.")


@pytest.mark.combination(
    "train from a run's weights on the same images in other splits", "images it has seen are training images"
)
def test_the_next_run_is_not_tested_on_images_that_its_weights_have_seen(run, begun):
    data = dataclasses.replace(recipes.load(str(run.recipe)).data, test_fraction=0.5)
    removed = splits_of(run)["train"][0]
    (photographs(run) / removed).unlink()
    write_image(photographs(run) / "cat" / "added.png")
    record = read_record(run, "continue")
    assert any(record.contents.split_of(item) == "train" for item in load_dataset(data).contents.items["test"])
    contents = load_dataset(data, record=record).contents
    tested = [item for split in ("validation", "test") for item in contents.items[split]]
    assert not any(record.contents.split_of(item) == "train" for item in tested)
    # The next run's record contains the removed image, too: its weights have seen it.
    contents.write(run.splits)
    assert [item.path for item in read_contents(run.splits).items[INITIAL_WEIGHTS]] == [removed]
    shutil.copy(begun / "photographs" / removed, photographs(run) / removed)
    assert removed in splits_of(run)["train"]


@pytest.mark.combination(
    "evaluate a run that began with another run's weights on the images of that run", "the test images of that run"
)
def test_images_of_the_initial_weights_are_not_the_data_of_a_run(run, capsys):
    before, earlier = splits_of(run), read_record(run, "continue")
    own = Contents({"train": (Item("cat/1.png", 1, "1"),), "test": (Item("cat/2.png", 1, "2"),)})
    earlier.followed_by(own).write(run.splits)
    assert splits_of(run, photographs(run))["test"] == before["test"]
    assert "have changed" not in capsys.readouterr().out
    tested = dataclasses.replace(recipes.load(str(run.recipe)).data, test_fraction=0.9)
    tests = load_dataset(tested, record=read_record(run, "measure_elsewhere")).contents.items["test"]
    assert {item.path for item in tests}.isdisjoint(before["train"])


@pytest.mark.combination(
    "train with a distillation teacher that was trained on test images", "they become training images"
)
@pytest.mark.parametrize("source", ["{run}", "{run}/model.keras", "{run}/saved"])
def test_a_student_is_not_tested_on_images_that_its_teacher_has_seen(run, source):
    run.model.touch()
    (run.folder / "saved").mkdir()
    source = source.format(run=run.folder)
    changes = [f"distillation.teacher={source}", "data.test_fraction=0.5"]
    dataset = train._load(TASKS["classification"](override(recipes.load(str(run.recipe)), changes)), None)
    record = read_record(run, "continue")
    tested = dataset.contents.items["test"]
    assert tested
    assert {record.contents.split_of(item) for item in tested} <= {None, "test"}


def test_weights_without_a_record_are_named(run, tmp_path, capsys):
    (tmp_path / "alone.keras").touch()
    assert list(train._records_of([f"{tmp_path}/alone.keras", "B/16@i21k", "hf://a/b", str(run.folder)])) == [
        read_record(run, "continue")
    ]
    said = f"There is no splits.csv beside {tmp_path}/alone.keras. It may have been trained on test images.\n"
    assert capsys.readouterr().out == said


@pytest.mark.slow
def test_shards_that_were_training_files_are_not_test_files(run, tmp_path):
    dataset = load_dataset(recipes.load(str(run.recipe)).data)
    write_records(dataset, str(tmp_path / "one"), images_per_shard=3)
    data = dataclasses.replace(recipes.load(str(run.recipe)).data, dataset="records", directory=str(tmp_path / "one"))
    record = Record("runs/one", load_dataset(data).contents)
    load_dataset(data, record=record)
    index = tmp_path / "one" / "records.json"
    text = index.read_text()
    exchanged = "train-00000-of-00005.tfrecord", "test-00000-of-00002.tfrecord"
    for name, other in ("-", exchanged[0]), exchanged, (exchanged[1], "-"):
        text = text.replace(f'"{other}"', f'"{name}"')
    index.write_text(text)
    with pytest.raises(
        InputError, match=f"runs/one was trained on shards that are now in .* test split: {exchanged[0]}"
    ):
        load_dataset(data, record=record)


@pytest.mark.combination("splits.csv of a run was removed", "refused when the run is measured or resumed")
def test_a_removed_record_is_missed(run):
    run.splits.unlink()
    for purpose in ("measure", "resume"):
        with pytest.raises(InputError, match=r"splits\.csv is missing\. .* Restore it"):
            read_record(run, purpose)
    assert read_record(run, "continue") is None


@pytest.mark.combination(
    "evaluate a run on a copy of its images with --split all",
    "refused; the number of training images among them is named",
)
@pytest.mark.slow
@pytest.mark.combination(
    "evaluate, fewshot, explain, export and train after images were removed and added", "the splits of the run"
)
def test_commands_use_the_record(run, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "export", lambda *arguments: False)
    data = ["data.dataset=folder", f"data.directory={photographs(run)}", "fit.epochs=1", "fit.batch_size=8"]
    assert main(["train", "digits", "run=one", *data, *BRIEF[1:], "model.input_shape=8,8,3"]) is None
    shutil.copytree(photographs(run), "same")
    images = splits_of(Run(pathlib.Path("one")))
    (photographs(run) / images["test"][0]).unlink()
    write_image(photographs(run) / "cat" / "added.png")
    said = "missing or changed in the test split: " + images["test"][0]
    for command, expected in (
        (["evaluate", "one"], f"{said}\n  new or changed: cat/added.png\nfolder, test split"),
        (["evaluate", "one", "--split", "new"], "folder, new split"),
        (["fewshot", "one", "--shots", "1", "--seeds", "1"], "3 test images"),
        (["explain", "one", "--neighbours", "1"], said),
        (["export", "one", "--format", "litert", "--precision", "int8"], said),
    ):
        capsys.readouterr()
        main(command)
        assert expected in capsys.readouterr().out, command
    assert main(["evaluate", "one", "data.directory=same", "--split", "all"]) == 2
    assert "one has seen 16 of these 20 files in its training, such as" in capsys.readouterr().err
    assert main(["evaluate", "one", "data.directory=same"]) is None
    assert "of 4 images" in capsys.readouterr().out
    weights = ["model.weights=one/model.keras", "model.config=none", "model.input_shape=none", "data.test_fraction=0.5"]
    assert main(["train", "digits", "run=two", *data, *weights]) is None
    one, two = (read_record(Run(pathlib.Path(name))).contents for name in ("one", "two"))
    assert all(one.split_of(item) != "train" for item in two.items["test"])


@pytest.mark.slow
@pytest.mark.combination(
    "evaluate a run after class folders were exchanged", "no image is right; the relabelled files are listed"
)
@pytest.mark.combination(
    "evaluate a run after a class folder was renamed or removed", "refused; the classes are listed"
)
def test_evaluate_after_classes_have_changed(tmp_path, capsys):
    """The classes are dark, bright and gray images, so that a model without a training distinguishes them."""
    folder, grays = tmp_path / "photographs", {"dog": 240, "eel": 120, "cat": 0}
    for name, gray in grays.items():
        (folder / name).mkdir(parents=True)
        for number in range(10):
            PIL.Image.new("RGB", (5, 6), 3 * (gray + number,)).save(folder / name / f"{number}.png")
    recipe = override(recipes.load("folder"), [f"data.directory={folder}", "model.input_shape=6,5,3"])
    dataset = load_dataset(recipe.data)
    assert dataset.class_names == ("cat", "dog", "eel")
    run = open_run(recipe, dataset, tmp_path, tmp_path / "run", Engine(None))
    predictions = keras.layers.Dense(3, activation="softmax")
    layers = [keras_vit.Preprocessing(resize=(6, 5), normalize=True), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((6, 5, 3)), *layers, predictions])
    predictions.set_weights([np.array(3 * [[-9, 9, 0]]), np.array([0, 0, 9])])
    model.save(run.model)
    assert "100.00% (6 of 6 images" in evaluate_source(run.folder)
    for old, new in ("cat", "saved"), ("dog", "cat"), ("eel", "dog"), ("saved", "eel"):
        (folder / old).rename(folder / new)
    capsys.readouterr()
    assert "0.00% (0 of 6 images" in evaluate_source(run.folder)
    assert "with another annotation: cat/0.png" in capsys.readouterr().out
    (folder / "eel").rename(folder / "mouse")
    with pytest.raises(InputError, match=r"classes cat, dog, eel, but the data set has cat, dog, mouse"):
        evaluate_source(run.folder)
    shutil.rmtree(folder / "mouse")
    with pytest.raises(InputError, match=r"classes cat, dog, eel, but the data set has cat, dog\."):
        evaluate_source(run.folder)


@pytest.mark.slow
@pytest.mark.combination("a training image is deleted during a run", "the file and the command that resumes are named")
@pytest.mark.combination(
    "a training image is deleted during a run with data.max_failures=1",
    "the next image replaces it; the run can be resumed",
)
def test_a_deleted_image(run, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    data = ["data.dataset=folder", f"data.directory={photographs(run)}", "fit.batch_size=8", "data.cache=false"]
    command = ["train", "digits", *data, *BRIEF, "model.input_shape=8,8,3"]
    removed = splits_of(run)["train"][3]
    saved = (photographs(run) / removed).read_bytes()
    monkeypatch.setattr(train, "export", lambda *arguments: False)
    fit = Fitting.run

    def fit_without_it(fitting):
        (photographs(run) / removed).unlink(missing_ok=True)
        return fit(fitting)

    monkeypatch.setattr(Fitting, "run", fit_without_it)
    assert main([*command, "run=one"]) == 2
    assert f"missing or changed in the train split: {removed}\nRestore them, or start" in capsys.readouterr().err
    (photographs(run) / removed).write_bytes(saved)
    assert main([*command, "run=two", "data.max_failures=1", "fit.final_weights=best"]) is None
    assert f"{removed}: No such file or directory (failure 1 of at most 1)" in capsys.readouterr().out
    facts = json.loads(pathlib.Path("two/recipe.json").read_text())
    facts.pop("result")
    pathlib.Path("two/recipe.json").write_text(json.dumps(facts))
    assert main(["train", "run=two"]) is None
    assert "Resuming from step 4." in capsys.readouterr().out
    assert read_record(Run(pathlib.Path("two"))).contents.items["train"][3].path == removed
