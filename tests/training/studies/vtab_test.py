"""VTAB-1k: the tasks, their images, the means, and the order of work."""

import csv
import itertools
import json
import pathlib
import re

import matplotlib.image
import pytest

from tests.training.mock_metadata import mocked_data_sets
from training.__main__ import main
from training.data.loading import load_dataset
from training.errors import InputError
from training.recipe.config import to_dict
from training.reports import published
from training.studies import vtab
from training.studies.vtab import MEAN, NAMES, TASKS, Results, figure, means_of, run_vtab, task_recipe

pytestmark = pytest.mark.usefixtures("quick_clearing")

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "recipes.md"
# The sizes in TFDS: https://www.tensorflow.org/datasets/catalog
SIZES = {
    "caltech101": {"train": 3_059, "test": 6_085},
    "cifar100": {"train": 50_000, "test": 10_000},
    "dtd": {"train": 1_880, "validation": 1_880, "test": 1_880},
    "oxford_flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
    "oxford_iiit_pet": {"train": 3_680, "test": 3_669},
    "sun397/tfds": {"train": 76_128, "validation": 10_875, "test": 21_750},
    "svhn_cropped": {"train": 73_257, "test": 26_032, "extra": 531_131},
    "patch_camelyon": {"train": 262_144, "validation": 32_768, "test": 32_768},
    "eurosat/rgb": {"train": 27_000},
    "resisc45": {"train": 31_500},
    "diabetic_retinopathy_detection/btgraham-300": {"train": 35_126, "validation": 10_906, "test": 42_670},
    "dmlab": {"train": 65_550, "validation": 22_628, "test": 22_735},
    "clevr": {"train": 70_000, "validation": 15_000, "test": 15_000},
    "dsprites": {"train": 737_280},
    "kitti": {"train": 6_347, "validation": 423, "test": 711},
    "smallnorb": {"train": 24_300, "test": 24_300},
}
# Sizes of the test splits in task_adaptation (arXiv 1910.04867, Table 2).
TESTS = {
    "Caltech101": 6_085,
    "CIFAR-100": 10_000,
    "DTD": 1_880,
    "Flowers102": 6_149,
    "Pets": 3_669,
    "Sun397": 21_750,
    "SVHN": 26_032,
    "Camelyon": 32_768,
    "EuroSAT": 5_400,
    "Resisc45": 6_300,
    "Retinopathy": 42_670,
    "Clevr-Count": 15_000,
    "Clevr-Dist": 15_000,
    "DMLab": 22_735,
    "dSpr-Loc": 73_728,
    "dSpr-Ori": 73_728,
    "KITTI-Dist": 711,
    "sNORB-Azim": 12_150,
    "sNORB-Elev": 12_150,
}


def test_means_of_the_paper():
    for row, groups, mean, tolerance in (
        ("ViT-H/14 (JFT)", (86.69, 87.00, 65.03), 77.63, 0.0051),
        # The numbers in Table 2 have more digits than those in Table 9.
        ("ViT-L/16 (JFT)", None, 76.28, 0.011),
        ("ViT-L/16 (I21k)", None, 72.72, 0.011),
    ):
        [scores] = [scores for scores in published.read("vit_table9").rows if scores["model"] == row]
        means = means_of({name: scores[name] for name in NAMES})
        assert list(means) == ["Natural", "Specialised", "Structured", MEAN]
        assert means[MEAN] == pytest.approx(mean, abs=tolerance)
        if groups:
            assert tuple(means.values())[:3] == pytest.approx(groups, abs=0.0051)
    # The mean of some of the tasks is none.
    scores = dict.fromkeys(NAMES, 0.5)
    del scores["Camelyon"]
    assert means_of(scores) == {"Natural": 0.5, "Specialised": None, "Structured": 0.5, MEAN: None}


def test_tasks_are_those_of_table_9_in_its_order():
    columns = list(published.read("vit_table9").rows[0])
    assert columns == ["model", *NAMES, "mean"]
    assert [len(names) for names in vtab.GROUPS.values()] == [7, 4, 8]


def test_the_document_lists_the_same_changes():
    rows = re.findall(r"^\|[^|]*\| `(data\.dataset=.*)` \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(task.changes for task in TASKS if task.name != "CIFAR-100")
    assert task_recipe(TASKS[1], images=800).data.validation_split == "train[45000:45200]"


def test_every_task_has_its_images(tmp_path):
    with mocked_data_sets(tmp_path, SIZES):
        for images, task in itertools.product((800, 1000), TASKS):
            data = task_recipe(task, images=images).data
            found = {name: source.size for name, source in load_dataset(data).splits.items()}
            validation = {"validation": 200} if images == 800 else {}
            assert found == {"train": images, "test": TESTS[task.name], **validation}, task.name


def test_a_task_of_all_images_learns_from_those_of_the_validation_too():
    recipe = task_recipe(TASKS[2], ["fit.steps=7"])
    assert recipe.data.train_split == "train[:800]+validation[:200]"
    assert recipe.data.validation_split is None
    assert recipe.fit.steps == 7


@pytest.fixture
def stubbed(monkeypatch):
    """A fake training that writes an accuracy, with data in which DTD is unavailable; the list of trained tasks."""
    trained = []

    def train(recipe, runs, folder, on_finished):
        if recipe.data.dataset == "svhn_cropped":
            return None, None  # Training was stopped.
        trained.append((recipe.model.weights, recipe.data.dataset))
        folder.mkdir(parents=True)
        result = {"test_accuracy": 0.5 + 0.01 * len(trained)}
        (folder / "recipe.json").write_text(json.dumps({"recipe": to_dict(recipe), "result": result}))
        return folder, None

    def load(data):
        if data.dataset == "dtd":
            raise InputError("dtd cannot be prepared: no network.")

    monkeypatch.setattr("training.engine.train.train", train)
    monkeypatch.setattr(vtab, "load_dataset", load)
    return trained


@pytest.mark.slow
def test_tasks_are_gone_through_once_and_missing_ones_named(stubbed, tmp_path, capsys):
    arguments = ["S/16@i21k", "folder/other.npz"], ["fit.steps=3"], tmp_path, ["Pets", "DTD", "Caltech101"]
    results = run_vtab(*arguments)
    assert stubbed == list(itertools.product(arguments[0], ("caltech101", "oxford_iiit_pet")))
    assert results.accuracy == {
        "S/16@i21k": {"Caltech101": 0.51, "Pets": 0.52},
        "folder/other.npz": {"Caltech101": 0.53, "Pets": 0.54},
    }
    assert "DTD is left out: dtd cannot be prepared: no network." in capsys.readouterr().out
    lines = str(results).splitlines()
    assert lines[-1] == "DTD is missing: dtd cannot be prepared: no network."
    assert [line.split() for line in lines if "Caltech101" in line] == [["Caltech101", "51.00", "53.00"]]
    assert [line.split() for line in lines if MEAN in line] == [[*MEAN.split(), "-", "-"]]
    assert run_vtab(*arguments) == results
    assert len(stubbed) == 4
    with open(tmp_path / "results.csv", newline="") as file:
        rows = [(row["weights"], row["task"], float(row["accuracy"])) for row in csv.DictReader(file)]
    assert rows[:2] == [("S/16@i21k", "Caltech101", 0.51), ("S/16@i21k", "Pets", 0.52)]
    assert matplotlib.image.imread(tmp_path / "vtab.png").std() > 0.05
    # The results are those of all that is finished in the folder.
    more = run_vtab(["B/16@i21k", "S/16@i21k"], ["fit.steps=3"], tmp_path, ["Camelyon"])
    assert more.accuracy == results.accuracy | {
        "B/16@i21k": {"Camelyon": 0.55},
        "S/16@i21k": {"Caltech101": 0.51, "Pets": 0.52, "Camelyon": 0.56},
    }
    assert run_vtab(["S/16@i21k"], ["fit.steps=3"], tmp_path, ["DTD"]).accuracy == more.accuracy


@pytest.mark.slow
def test_runs_with_other_settings_are_found_before_anything_is_trained(stubbed, tmp_path):
    run_vtab(["S/16@i21k"], [], tmp_path, ["Pets"])
    with pytest.raises(
        InputError, match=r"pets was started with another recipe:\n  fit\.steps: was 2500, is 3\nName another"
    ):
        run_vtab(["S/16@i21k"], ["fit.steps=3"], tmp_path, ["Caltech101"])
    assert len(stubbed) == 1


def test_weights_as_a_change_and_an_unknown_task_are_refused(stubbed, tmp_path):
    with pytest.raises(InputError, match=r"Name the weights as an argument: python -m training vtab L/16@i21k"):
        run_vtab([], ["model.weights=L/16@i21k"], tmp_path, ["Pets"])
    with pytest.raises(InputError, match=r"Pest: not a task of VTAB-1k\. Tasks: Caltech101, .*sNORB-Elev"):
        run_vtab([], [], tmp_path, ["Pets", "Pest"])
    assert not stubbed


def test_files_are_named_where_they_were_written(stubbed, tmp_path, capsys):
    for task, is_written in (("DTD", False), ("Pets", True)):
        assert not main(["vtab", f"tasks={task}", f"run={tmp_path}"])
        assert (f"{tmp_path}: results.csv, vtab.png" in capsys.readouterr().out) is is_written
        assert (tmp_path / "results.csv").is_file() is (tmp_path / "vtab.png").is_file() is is_written


def test_it_ends_where_a_run_is_stopped(stubbed, tmp_path):
    assert run_vtab([], [], tmp_path, ["Caltech101", "SVHN", "Camelyon"]) is None
    assert stubbed == [("B/16@i21k", "caltech101")]


def test_the_command_hands_on_what_it_is_given(monkeypatch, capsys):
    given = []
    results = Results({"S/16@i21k": {"Pets": 0.25}}, {})
    monkeypatch.setattr(vtab, "run_vtab", lambda *arguments: given.append(arguments) or results)
    address = "https://host.org/model.npz?token=5"
    assert not main(["vtab", "S/16@i21k", "fit.steps=3", address, "run=folder", "tasks=Pets,DTD", "--images", "800"])
    assert not main(["vtab"])
    assert given == [
        (["S/16@i21k", address], ["fit.steps=3"], "folder", ["Pets", "DTD"], 800),
        ([], [], "runs/vtab", None, 1000),
    ]
    assert "25.00\n" in capsys.readouterr().out


def test_bars_are_the_means_beside_the_papers():
    scores = {name: 0.2 + 0.01 * i for i, name in enumerate(NAMES)}
    axes = figure(Results({"mine": scores}, {})).axes[0]
    groups = ["VTAB (19 tasks)", "Natural (7)", "Specialised (4)", "Structured (8)"]
    assert [label.get_text() for label in axes.get_xticklabels()] == groups
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    means = means_of(scores)
    expected = [100 * means[name] for name in (MEAN, "Natural", "Specialised", "Structured")]
    assert heights["mine"] == pytest.approx(expected)
    assert heights["ViT-H/14 (JFT), paper"] == pytest.approx([77.63, 86.69, 87.00, 65.03], abs=0.0051)
    assert len(heights) == 4
    hatches = {bars.get_label(): bars[0].get_hatch() for bars in axes.containers}
    assert [name for name, hatch in hatches.items() if hatch is None] == ["mine"]
