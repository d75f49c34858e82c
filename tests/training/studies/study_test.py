"""The points of the studies: models, numbers of images, and what the papers print."""

import pytest

import keras_vit
from tests.test_case import without_values
from training import recipes
from training.errors import InputError
from training.recipe.assignments import override
from training.reports import published
from training.studies import papers
from training.studies.papers import scaling, shape
from training.studies.results import digest

LARGE = "pretrain_imagenet_b16"


def small_recipe(name, tfds_directory):
    study = papers.load(name)
    if name == "vt_fpn":  # It needs masks.
        return recipes.load(study.recipe)
    changes = study.changes if study.recipe == "digits" or name == "tokens" else ()
    changes = [change for change in changes if not change.startswith("model.input_shape")]
    return override(recipes.load("digits"), [*changes, f"data.tfds_directory={tfds_directory}"])


@pytest.mark.parametrize("name", sorted({*papers.NAMES} - {"fine_tuning"}))
def test_points_of_the_digits_are_different_recipes(name, tfds_directory):
    recipe = small_recipe(name, tfds_directory)
    points = papers.load(name).points(recipe)
    changed = [override(recipe, point.changes) for point in points]
    assert 2 <= len(points) <= 15
    assert len({(point.series, point.label) for point in points}) == len(points)
    trained = zip(map(digest, changed), (str(point.initial) for point in points), strict=True)
    assert len(set(trained)) == len(points)
    for comparison in papers.load(name).comparisons(recipe):
        names = {(point.series, label) for point in points for label in (point.label, None)}
        assert {comparison.first, comparison.second} <= names


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
    assert [one.data.train_images for one in changed[::5]] == [29, 115, 431, None]
    variants = [keras_vit.VARIANTS[name] for name in ("B/16", "B/32", "L/16", "L/32")]
    assert [one.model.config for one in changed[:5]] == [*variants, None]


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
    assert {*TOKENS, "clustering tokenizer", "tokens of 128 channels"} == arguments.keys()
    with without_values():
        for label, (macs, parameters) in TOKENS.items():
            cost = keras_vit.profile(keras_vit.VTResNet(**arguments[label]))
            assert cost.macs / 1e6 == pytest.approx(macs, rel=1e-3), label
            assert cost.parameters / 1e6 == pytest.approx(parameters, abs=0.12), label  # Includes batch norms.


def test_shapes_that_images_cannot_be_cut_into_are_left_out():
    configs = shape.grid(shape.PAPER_BASE.replace(patch_size=4), 12, shape.FACTORS)
    assert {config.patch_size for _, _, config in configs} == {4, 2, 1}  # 8 is not among the sizes.


def test_fine_tuning_has_the_learning_rates_of_table_4():
    study = papers.load("fine_tuning")
    for name, expected in (
        ("finetune_pets", (0.001, 0.003, 0.01, 0.03)),
        ("finetune_imagenet_384", (0.003, 0.01, 0.03, 0.06)),
    ):
        recipe = recipes.load(name)
        [candidates] = study.rates(recipe).values()
        assert tuple(override(recipe, point.changes).optimizer.learning_rate for point in candidates) == expected
        [point] = study.points(recipe)
        assert override(recipe, point.changes).data.validation_fraction == 0
    with pytest.raises(InputError, match=r"requires a recipe with model\.weights"):
        study.points(recipes.load("digits"))


def test_recipes_that_cannot_be_varied_so_are_refused():
    for name, changes, expected in (
        (
            "data_size",
            ["model.config=none", "model.weights=B/16@i21k", "model.input_shape=32,32,3"],
            "requires a recipe with a model.config that has no stem",
        ),
        ("shape", ["model.input_shape=32,64,1"], "requires square images"),
        ("hyperparameters", ["model.config.position_embedding=none"], "position_embedding=learned_1d"),
        ("tokens", [], "requires a recipe with model.function=VTResNet, .*Received: model.function=None"),
    ):
        with pytest.raises(InputError, match=expected):
            papers.load(name).points(override(recipes.load("digits"), changes))
