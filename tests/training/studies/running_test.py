"""Which runs of a study are trained, in which order, and what is written."""

import dataclasses
import functools
import json
import os
import pathlib

import keras
import matplotlib.image
import numpy as np
import pytest

import keras_vit
from training.__main__ import main
from training.engine.step import TrainedModel
from training.errors import InputError
from training.recipe.config import to_dict
from training.runs.provenance import usable_cores
from training.studies import papers, running
from training.studies.figures import plot_panels
from training.studies.papers import scaling
from training.studies.results import measured_panel, read_rows
from training.studies.running import Experiment, Options, run_study
from training.studies.study import Comparison, Point, Study

pytestmark = pytest.mark.usefixtures("quick_clearing")
COMMAND = "python -m training study stub"


def panel(summaries, folder):
    return plot_panels([measured_panel(summaries, "point", "point", "Measured")])


@pytest.fixture
def trained(monkeypatch):
    """The recipes that a fake training trained. It writes the results of a run."""
    recipes = []

    def train_once(recipe, runs, folder, on_finished):
        assert on_finished is running.write_result
        if recipe.seed == 66:
            return False  # Training was stopped.
        if folder.exists():
            return True
        recipes.append(recipe)
        folder.mkdir(parents=True)
        result = {"test_accuracy": len(recipes) / 10, "test_images": 360, "seconds_of_training": 8.5}
        result |= {"parameters": 1234, "macs": 5_600_000, "flops": 7e17}
        result["best_validation"] = -abs(recipe.optimizer.learning_rate - 0.002)
        facts = {"recipe": to_dict(recipe), "num_images": {"train": 100}, "result": result, "processor": "p, 1 core"}
        facts |= {"started": "2026-11-29T12:00:00", "git": {"commit": "0123456789", "changed_files": [" M a.csv"]}}
        facts["versions"] = {"keras": "3.15", "tensorflow": "2.21"}
        (folder / "recipe.json").write_text(json.dumps(facts))
        (folder / "model.keras").touch()
        return True

    monkeypatch.setattr(running, "train_once", train_once)
    monkeypatch.setattr(running.Experiment, "flops", lambda self, jobs: 1e9 * len(jobs))
    return recipes


def stub(monkeypatch, **fields):
    points = [Point("one", "a/b", ("fit.epochs=3",)), Point("two", "c", ("data.train_images=9",))]
    study = Study(**{"title": "T", "paper": "Table 1", "points": lambda recipe: points, "figure": panel} | fields)
    monkeypatch.setattr(papers, "load", lambda name: study)
    return study


def names(rows):
    return [(row.series, row.point, row.seed, round(row.score, 3)) for row in rows]


def test_every_point_is_trained_once_with_each_seed(trained, tmp_path, capsys, monkeypatch):
    study = stub(monkeypatch, changes=("fit.batch_size=4",))
    options = Options(("fit.epochs=2",), None, tmp_path / "runs", tmp_path / "results", seeds=2)
    rows = run_study("stub", study, options, COMMAND)
    assert names(rows) == [("one", "a/b", 0, 0.1), ("two", "c", 0, 0.2), ("one", "a/b", 1, 0.3), ("two", "c", 1, 0.4)]
    assert [recipe.fit.epochs for recipe in trained] == [3, 2, 3, 2]
    assert {recipe.fit.batch_size for recipe in trained} == {4}
    assert [recipe.data.train_images_seed for recipe in trained] == [0, 0, 0, 1]
    assert (rows[0].gmacs, rows[0].flops, rows[0].commit, rows[0].date) == (0.0056, 7e17, "01234567", "2026-11-29")
    said = capsys.readouterr().out
    assert "stub 2/4: two, c, seed 0" in said
    assert "4 runs of 1e+09 FLOPs on average" in said
    assert matplotlib.image.imread(tmp_path / "results" / "stub.png").std() > 0.05
    # The rows suffice: the folders of the runs are not needed.
    again = dataclasses.replace(options, runs=tmp_path / "others", seeds=3)
    assert len(run_study("stub", study, again, COMMAND)) == 6
    assert len(trained) == 6
    assert read_rows(tmp_path / "results" / "stub.csv")[:4] == rows


def test_studies_share_runs(trained, tmp_path, monkeypatch):
    options = Options(runs=tmp_path, results=tmp_path)
    run_study("stub", stub(monkeypatch), options, COMMAND)
    point = Point("other", "name", ("fit.epochs=3",))
    measured = []

    def measure(model, recipe):
        measured.append(recipe.fit.epochs)
        return {"shift": 0.25}

    [row] = run_study("other", stub(monkeypatch, points=lambda recipe: [point]), options, COMMAND)
    assert (row.series, row.point, row.score) == ("other", "name", 0.1)
    # A study with a further column measures the model of the run that was trained.
    monkeypatch.setattr(running, "load_model", lambda path: path)
    study = stub(monkeypatch, points=lambda recipe: [point], measures=("shift",), measure=measure)
    [row] = run_study("third", study, options, COMMAND)
    assert row.measures == {"shift": 0.25}
    assert read_rows(tmp_path / "third.csv") == [row]
    assert len(trained) == 2
    assert measured == [3]


def test_the_learning_rate_of_the_best_validation_is_used(trained, tmp_path, monkeypatch):
    rates = [0.0005, 0.002, 0.004]
    candidates = [Point("one", f"rate {rate}", (f"optimizer.learning_rate={rate}",)) for rate in rates]
    study = stub(monkeypatch, rates=lambda recipe: {"one": candidates})
    rows = run_study("stub", study, Options(runs=tmp_path, results=tmp_path, seeds=2), COMMAND)
    assert [row.learning_rate for row in rows] == [0.002, 0.002, 0.002, 0.002]  # That of the digits, too.
    assert [(recipe.seed, recipe.optimizer.learning_rate) for recipe in trained[:3]] == [(0, rate) for rate in rates]
    assert len(trained) == 3 + 4
    assert "| one | 0.004 | -0.20 |" in (tmp_path / "stub.md").read_text()


def test_weights_come_from_another_point(trained, tmp_path, monkeypatch):
    first = Point("scratch", "a", ("fit.epochs=3",))
    second = Point("tuned", "b", ("fit.epochs=4",), initial=first)
    study = stub(monkeypatch, points=lambda recipe: [second, first])
    options = Options(runs=tmp_path / "runs", results=tmp_path)
    run_study("stub", study, options, COMMAND)
    assert [recipe.fit.epochs for recipe in trained] == [3, 4]
    model = pathlib.Path(trained[1].model.weights)
    assert json.loads((model.parent / "recipe.json").read_text())["recipe"]["fit"]["epochs"] == 3
    assert trained[1].model.config is None
    # Elsewhere, the finished run of `first` is trained again only if its model is needed.
    run_study("stub", study, dataclasses.replace(options, runs=tmp_path / "empty"), COMMAND)
    assert len(trained) == 2
    run_study("stub", study, dataclasses.replace(options, runs=tmp_path / "empty", seeds=2), COMMAND)
    assert [recipe.seed for recipe in trained[2:]] == [1, 1]


def test_it_ends_where_a_run_is_stopped(trained, tmp_path, monkeypatch):
    study = stub(monkeypatch)
    options = Options(("seed=65",), runs=tmp_path, results=tmp_path, seeds=2)
    assert run_study("stub", study, options, COMMAND) is None
    assert len(trained) == 2
    page = (tmp_path / "stub.md").read_text()
    assert "Not run: one, a/b (1 run); two, c (1 run)." in page


def test_the_page_has_verdicts_and_results(trained, tmp_path, monkeypatch):
    claims = [
        Comparison("c is better", ("two", "c"), ("one", "a/b")),
        Comparison("both are equal", ("two", "c"), ("two", "c"), expected="tie"),
    ]
    study = stub(monkeypatch, claim="It helps.", method="Models are trained.", comparisons=lambda recipe: claims)
    run_study("stub", study, Options(runs=tmp_path, results=tmp_path, seeds=3), COMMAND)
    page = (tmp_path / "stub.md").read_text()
    for line in (
        "# T\n\nTable 1. It helps.\n\nModels are trained.\n",
        "| c is better | +10.00 | +10.00 to +10.00 | 3 | shows |",
        "| both are equal | +0.00 | +0.00 to +0.00 | 3 | tie |",
        "| two, c | 1,234 | 5.6 | 100 | 0.002 | 3 | 40.00 ± 49.68 |",
        f"```\n{COMMAND}\n```",
        "6 runs, 0.0 hours of training in all. Processors: p, 1 core. Commits: 01234567. Keras 3.15, TensorFlow 2.21.",
    ):
        assert line in page


def test_impossible_points_are_named_before_anything_is_trained(tmp_path, monkeypatch, brief_recipe):
    data = f"data.tfds_directory={brief_recipe.data.tfds_directory}"
    for changes, message in (
        (("model.config.num_heads=5",), r"one, b: .*hidden_dim must be a multiple of num_heads"),
        (("schedule.warmup=10000 steps",), r"one, b: .*warm"),
    ):
        points = [Point("one", "a", ()), Point("one", "b", changes)]
        study = stub(monkeypatch, points=lambda recipe, points=points: points)
        with pytest.raises(InputError, match=message):
            run_study("stub", study, Options((data,), runs=tmp_path, results=tmp_path), COMMAND)
    assert not list(tmp_path.iterdir())


def test_cores_are_divided_among_the_jobs(monkeypatch):
    monkeypatch.setattr(running, "usable_cores", lambda: [0, 1, 4])
    assert running._shares(2) == [[0, 4], [1]]
    with pytest.raises(InputError, match=r"--jobs=4 must be at most the number of cores .*, 3\."):
        Experiment("stub", stub(monkeypatch), Options(jobs=4))
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # As on macOS.
    assert usable_cores() == [0, 1, 2]


def test_an_unknown_study_is_refused():
    with pytest.raises(InputError, match=r"no study 'scalling'\. Did you mean 'scaling'.*positions"):
        papers.load("scalling")


def test_the_command_hands_on_what_it_is_given(monkeypatch):
    given = []
    monkeypatch.setattr(running, "run_study", lambda *arguments: given.append(arguments[:3]))
    changed = ["fit.epochs=2", "recipe=cifar10", "run=folder", "seed=7"]
    assert not main(["study", "shape", *changed, "--seeds", "3", "--jobs", "2", "--results", "kept"])
    assert not main(["study", "scaling"])
    folder, kept = pathlib.Path("folder"), pathlib.Path("kept")
    assert given == [
        ("shape", papers.load("shape"), Options(("fit.epochs=2", "seed=7"), "cifar10", folder, kept, 3, 2)),
        ("scaling", papers.load("scaling"), Options()),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("on_arrays")
def test_a_real_study_leaves_models_figures_and_numbers(tmp_path, monkeypatch, tfds_directory):
    monkeypatch.setattr(TrainedModel, "compile", functools.partialmethod(TrainedModel.compile, run_eagerly=True))
    points = [Point("ViT", f"{width} wide", (f"model.config.hidden_dim={width}",)) for width in (8, 16)]
    brief = (
        *("fit.epochs=1", "fit.batch_size=256", "model.input_shape=8,8,1", "model.config.patch_size=4"),
        *("model.config.num_layers=1", "model.config.mlp_dim=24", f"data.tfds_directory={tfds_directory}"),
    )
    study = stub(monkeypatch, points=lambda recipe: points, figure=scaling.figure, changes=brief)
    rows = run_study("scaling", study, Options(runs=tmp_path, results=tmp_path), COMMAND)
    assert [row.train_images for row in rows] == [1293, 1293]
    for row, width in zip(rows, (8, 16), strict=True):
        assert 0 < row.score < 1
        model = keras.models.load_model(tmp_path / row.run / "model.keras")
        assert model.get_layer("encoder_norm").output.shape[-1] == width
        cost = keras_vit.profile(model)
        assert (row.parameters, row.gmacs * 1e9) == (cost.parameters, pytest.approx(cost.macs))
        # Padding in the last step is not counted.
        assert row.flops == pytest.approx(6 * cost.macs * 1293, rel=1e-3)
    assert rows[0].parameters < rows[1].parameters


@pytest.mark.slow
def test_runs_at_the_same_time(tmp_path, tfds_directory):
    """Each run has a process of its own. A run that cannot be trained ends the study, and the others are saved."""
    brief = [f"data.tfds_directory={tfds_directory}", "fit.epochs=1", "fit.batch_size=256", "model.config.num_layers=1"]
    options = Options(tuple(brief), runs=tmp_path / "runs", results=tmp_path, jobs=min(2, len(os.sched_getaffinity(0))))
    rows = run_study("optimizers", papers.load("optimizers"), options, COMMAND)
    assert len(rows) == 6
    assert np.ptp([row.score for row in rows]) > 0
    assert all(row.processor.endswith(" 1 core") for row in rows)
