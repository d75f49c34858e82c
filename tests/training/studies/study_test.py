"""Studies: their points, the order of work, and their files."""

import csv
import functools
import json

import keras
import matplotlib.image
import numpy as np
import pytest

import keras_vit
from tests.test_case import without_values
from training import recipes
from training.__main__ import main
from training.engine.step import TrainedModel
from training.errors import InputError
from training.recipe.assignments import override
from training.recipe.config import to_dict
from training.reports import published
from training.runs.folder import Run
from training.studies import papers, study
from training.studies.papers import hyperparameters, scaling, shape
from training.studies.study import Point, Study, summaries, table

pytestmark = pytest.mark.usefixtures("quick_clearing")

LARGE = "pretrain_imagenet_b16"


def small_recipe(name, tfds_directory):
    digits = override(recipes.load("digits"), papers.load(name).digits_changes)
    return override(digits, [f"data.tfds_directory={tfds_directory}"])


def run_study(name, *arguments, **options):
    """Runs a study by its name, like the command."""
    return study.run_study(name, papers.load(name), *arguments, **options)


@pytest.mark.parametrize("name", papers.NAMES)
def test_points_of_the_digits_are_recipes_of_folders_of_their_own(name, tfds_directory):
    recipe = small_recipe(name, tfds_directory)
    points = papers.load(name).points(recipe)
    changed = [override(recipe, point.changes) for point in points]
    assert 3 <= len(points) <= 15
    assert len({point.folder for point in points}) == len(points)
    assert len({str(one) for one in changed}) == len(points)


@pytest.mark.parametrize("name", ["scaling", "shape", "pooling", "positions", "optimizers", "axial"])
def test_points_of_large_images_are_recipes(name):
    recipe = recipes.load(LARGE)
    points = papers.load(name).points(recipe)
    assert len({str(override(recipe, point.changes)) for point in points}) == len(points)


def test_the_scaling_study_of_large_images_is_table_6():
    recipe = recipes.load(LARGE)
    points = scaling.points(recipe)
    rows = published.read("vit_table6").rows
    assert [(point.series, point.label) for point in points] == [
        (row["family"], f"{row['model']}, {row['epochs']:.0f} epochs") for row in rows
    ]
    changed = [override(recipe, point.changes) for point in points]
    assert [one.fit.epochs for one in changed] == [row["epochs"] for row in rows]
    models = {row["model"]: one.model for row, one in zip(rows, changed, strict=True)}
    assert models["ViT-H/14"].config == keras_vit.VARIANTS["H/14"]
    assert models["R50x1+ViT-L/16"].config == keras_vit.VARIANTS["R50+L/16"]
    assert models["ResNet152x2"].function == "BiTResNet152x2"


def test_the_data_study_draws_parts_of_the_images(tfds_directory):
    changes = [f"data.tfds_directory={tfds_directory}", "model.input_shape=224,224,1"]
    recipe = override(recipes.load("digits"), changes)
    changed = [override(recipe, point.changes) for point in papers.load("data_size").points(recipe)]
    assert [one.data.train_images for one in changed[:5]] == [81, 162, 323, 646, 1293]
    variants = [keras_vit.VARIANTS[name] for name in ("B/16", "B/32", "L/16", "L/32")]
    assert [one.model.config for one in changed[::5]] == variants


# The axes of Figure 8 vary 8 layers, D = 1024, an MLP width of 2048 and patches of 32 pixels.
@pytest.mark.slow
def test_shapes_around_the_papers_base():
    for series, label, parameters, gmacs in (
        ("base", "base", 71.4e6, 3.55),
        ("depth", "1", 12.6e6, 0.58),
        ("width", "128", 5.3e6, 0.26),
        ("MLP width", "256", 42.1e6, 2.08),
        ("patch size", "8", 69.2e6, 62.93),
    ):
        configs = {
            (series, label): config for series, label, config in shape.grid(shape.PAPER_BASE, 224, shape.FACTORS)
        }
        with without_values():
            cost = keras_vit.profile(keras_vit.ViT(configs[series, label]))
        assert cost.parameters == pytest.approx(parameters, abs=0.05e6)
        assert cost.macs / 1e9 == pytest.approx(gmacs, abs=0.005)


# Tables 3 to 7 of arXiv 2006.03677: VT-ResNet-18 without batch norms, in millions of MACs and of parameters.
TOKENS = {
    "unchanged": (1579, 11.6),
    "pooling tokenizer": (1550, 11.0),
    "not recurrent": (1564, 11.1),
    "graph convolution": (1528, 8.5),
    "no relation": (1528, 8.5),
    "32 tokens": (1711, 11.6),
    "64 tokens": (1979, 11.6),
    "no projector": (1497, 9.3),
}


@pytest.mark.slow
def test_the_tokens_study_of_the_published_model_has_the_counts_of_tables_3_to_7():
    recipe = override(recipes.load("pretrain_imagenet_vt_r18"), ["model.function=VTResNet"])
    points = papers.load("tokens").points(recipe)
    assert {row["change"] for row in published.read("vt_ablations").rows} < {point.label for point in points}
    arguments = {point.label: override(recipe, point.changes).model.arguments for point in points}
    assert {*TOKENS, "clustering tokenizer"} == arguments.keys()
    with without_values():
        for label, (macs, parameters) in TOKENS.items():
            cost = keras_vit.profile(keras_vit.VTResNet(**arguments[label]))
            assert cost.macs / 1e6 == pytest.approx(macs, rel=1e-3), label
            assert cost.parameters / 1e6 == pytest.approx(parameters, abs=0.12), label  # Includes batch norms.


def test_shapes_that_images_cannot_be_cut_into_are_left_out():
    configs = shape.grid(shape.PAPER_BASE.replace(patch_size=4), 12, shape.FACTORS)
    assert {config.patch_size for _, _, config in configs} == {4, 2, 1}  # 8 is not among the sizes.


@pytest.fixture
def stubbed(monkeypatch, tfds_directory):
    """A study with two points and a fake training that writes metrics; the list of trained recipes."""
    trained = []

    def train(recipe, runs, folder, leave):
        assert leave is study.leave
        if recipe.seed == 66:
            return Run(folder), None  # Training was stopped.
        trained.append(recipe)
        folder.mkdir(parents=True)
        result = {"test_accuracy": 0.1 * len(trained), "test_images": 360, "seconds_of_training": 8.5}
        result |= {"parameters": 1234, "macs": 5_600_000, "flops": 7e17}
        facts = {"recipe": to_dict(recipe), "num_images": {"train": 100}, "result": result}
        (folder / "recipe.json").write_text(json.dumps(facts))
        return Run(folder), None

    points = [Point("one", "a/b", ("fit.epochs=3",)), Point("two", "c", ("data.train_images=9",))]
    stub = Study("", "", ("fit.batch_size=4",), lambda recipe: points, scaling.figure)
    monkeypatch.setattr("training.engine.train.train", train)
    monkeypatch.setattr(papers, "load", lambda name: stub)
    return trained


def test_every_point_is_trained_once_with_each_seed(stubbed, tmp_path, capsys):
    rows = run_study("scaling", ["fit.epochs=2"], tmp_path, seeds=2)
    found = [(row.series, row.point, row.seed, round(row.accuracy, 3)) for row in rows]
    assert found == [("one", "a/b", 0, 0.1), ("two", "c", 0, 0.2), ("one", "a/b", 1, 0.3), ("two", "c", 1, 0.4)]
    assert [recipe.fit.epochs for recipe in stubbed] == [3, 2, 3, 2]
    assert {recipe.fit.batch_size for recipe in stubbed} == {4}
    assert [recipe.data.train_images_seed for recipe in stubbed] == [0, 0, 0, 1]
    assert (rows[0].gmacs, rows[0].flops) == pytest.approx((0.0056, 7e17))
    assert [row.run for row in rows[:2]] == ["one-a_b/seed-0", "two-c/seed-0"]
    assert run_study("scaling", ["fit.epochs=2"], tmp_path, seeds=2) == rows
    assert len(stubbed) == 4
    with open(tmp_path / "results.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in read] == [row.accuracy for row in rows]
    assert matplotlib.image.imread(tmp_path / "scaling.png").std() > 0.05
    assert "scaling 2/4: two, c, seed 0" in capsys.readouterr().out


def test_summaries_are_of_all_seeds_of_a_point(stubbed, tmp_path):
    rows = run_study("scaling", [], tmp_path, seeds=2)
    points = first, second = summaries(rows)
    assert (first.accuracy, first.lowest, first.highest) == pytest.approx((0.2, 0.1, 0.3))
    assert second.first is rows[1]
    lines = table(rows).splitlines()
    assert lines[1].split() == ["one", "a/b", "1,234", "0.0056", "7e+17", "100", "20.00%", "10.00%", "to", "30.00%"]
    assert "lowest to highest" in lines[0]
    assert "lowest" not in table([row for row in rows if row.seed == rows[0].seed])  # One seed gives no range.
    # The accuracies are 0.1 to 0.4 of 360 images.
    said = "Measured on 360 test images. The 95 % interval of an accuracy of 25% is 21 to 30 %."
    assert study.measured_panel(points, "flops", "", "").note == said
    assert study.measured_panel(points, "flops", "", "", "Printed.").note == f"{said} Printed."


def test_it_ends_where_a_run_is_stopped(stubbed, tmp_path):
    assert run_study("scaling", ["seed=65"], tmp_path, seeds=2) is None
    assert len(stubbed) == 2


@pytest.mark.slow
def test_a_run_of_another_recipe_is_found_before_anything_is_trained(stubbed, tmp_path):
    run_study("scaling", [], tmp_path)
    with pytest.raises(InputError, match=r"started with another recipe:\n  model\.config\.num_layers: was 4, is 2"):
        run_study("scaling", ["model.config.num_layers=2"], tmp_path)
    (tmp_path / "one-a_b").rename(tmp_path / "away")  # The first point has no folder, the second has another recipe.
    with pytest.raises(InputError, match=r"two-c/seed-0 was started with another recipe"):
        run_study("scaling", ["model.config.num_layers=2"], tmp_path)
    assert len(stubbed) == 2


def test_impossible_points_are_named_before_anything_is_trained(stubbed, tmp_path, monkeypatch):
    points = [Point("one", "a", ()), Point("one", "b", ("model.config.num_heads=5",))]
    monkeypatch.setattr(papers, "load", lambda name: Study("", "", (), lambda recipe: points, None))
    with pytest.raises(InputError, match=r"one, b: .*hidden_dim must be a multiple of num_heads"):
        run_study("scaling", [], tmp_path)
    assert not stubbed


def test_an_unknown_study_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no study 'scalling'\. Did you mean 'scaling'.*positions"):
        run_study("scalling", [], tmp_path)


def test_recipes_that_cannot_be_varied_so_are_refused():
    for name, changes, expected in (
        (
            "data_size",
            ["model.config=none", "model.weights=B/16@i21k", "model.input_shape=32,32,3"],
            "requires a recipe with a model.config",
        ),
        ("shape", ["model.input_shape=32,64,1"], "requires square images"),
        ("hyperparameters", ["model.config.position_embedding=none"], "position_embedding=learned_1d"),
        ("tokens", [], "requires a recipe with model.function=VTResNet, .*Received: model.function=None"),
    ):
        with pytest.raises(InputError, match=expected):
            papers.load(name).points(override(recipes.load("digits"), changes))


def test_the_command_hands_on_what_it_is_given(monkeypatch):
    given = []
    monkeypatch.setattr(study, "run_study", lambda *arguments: given.append(arguments))
    assert not main(["study", "shape", "fit.epochs=2", "recipe=cifar10", "--seeds", "3", "run=folder", "seed=7"])
    assert not main(["study", "scaling"])
    assert given == [
        ("shape", papers.load("shape"), ["fit.epochs=2", "seed=7"], "folder", 3, "cifar10"),
        ("scaling", papers.load("scaling"), [], "runs/study-scaling", 1, None),
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
    made = Study("", "", brief, lambda recipe: points, hyperparameters.figure)
    monkeypatch.setattr(papers, "load", lambda name: made)
    rows = run_study("real", [], tmp_path)
    assert [row.train_images for row in rows] == [1293, 1293]
    for row, width in zip(rows, (8, 16), strict=True):
        assert 0 < row.accuracy < 1
        model = keras.models.load_model(Run(tmp_path / row.run).model)
        assert model.get_layer("encoder_norm").output.shape[-1] == width
        cost = keras_vit.profile(model)
        assert (row.parameters, row.gmacs * 1e9) == (cost.parameters, pytest.approx(cost.macs))
        # Padding in the last step is not counted.
        assert row.flops == pytest.approx(6 * cost.macs * 1293, rel=1e-3)
    assert rows[0].parameters < rows[1].parameters
    assert matplotlib.image.imread(tmp_path / "real.png").std() > 0.05
    with np.load(tmp_path / "position_similarity.npz") as similarities:
        assert list(similarities) == ["8 wide", "16 wide"]
        last = keras.ops.convert_to_numpy(model.get_layer("position_embedding").weights[0]).reshape(-1, 16)[-4:]
        unit = last / np.linalg.norm(last, axis=-1, keepdims=True)
        np.testing.assert_allclose(similarities["16 wide"], (unit @ unit.T).reshape(2, 2, 2, 2), atol=1e-5)
