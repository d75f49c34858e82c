"""Every recipe trains on random images from TFDS, and its numbers equal those of its paper."""

import dataclasses
import math
import pathlib
import re
import shlex
import sys

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.weights.catalogue import get_entry
from tests.test_case import randomize
from tests.training.mock_metadata import mocked_data_sets
from tests.training.published_recipes import PUBLISHED
from training import recipes
from training.__main__ import main
from training.data.dataset import Dataset
from training.data.loading import load_dataset
from training.data.pipeline import num_steps_per_epoch
from training.data.sets.records import write_records
from training.data.sources import IndexedSource, StreamedSource
from training.engine.distribution import Engine
from training.engine.fitting import Fitting
from training.engine.schedules import build_schedule, training_steps
from training.recipe.assignments import leaves, override
from training.recipe.config import to_dict
from training.tasks import TASKS

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "recipes.md"
# The sizes in TFDS.
SIZES = {
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "digits": {"train": 1_437, "test": 360},
    "imagenet2012": {"train": 1_281_167, "validation": 50_000},
    "oxford_flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
    "oxford_iiit_pet": {"train": 3_680, "test": 3_669},
}
ARRAY_RECORDS = "oxford_flowers102"  # This data set is read from ArrayRecord files.
TINY = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24}
DINOV3 = {
    "rotary": keras_vit.RotaryConfig(),
    "position_embedding": "none",
    "num_register_tokens": 2,
    "qkv_bias": "none",
    "layer_scale": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "mlp": "gelu_exact",
}
TINY_SEGMENTER = {"backbone": "R18", "width": 4, "neck_dim": 16, "token_dim": 16, "num_heads": 2, "head_dim": 8}
TINY_STEM = keras_vit.StemConfig(stage_depths=(1, 1, 1), width=32)
TINY_STEMS = {type(config): config for config in (None, TINY_STEM, keras_vit.ConvStemConfig((4, 5)))}
TINY_TOKENS = {"stage_depths": (1, 1), "width": 8, "filters": 16, "token_dim": 24, "num_heads": 2, "num_tokens": 6}
TINY_TOKENS["group_width"] = 4
SMOOTH = [name for name, fields in PUBLISHED.items() if fields.get("schedule.decay", "exponential") != "exponential"]


@pytest.fixture(scope="module")
def mocked(tmp_path_factory):
    """Makes all data sets of TFDS look prepared, with random images."""
    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    with mocked_data_sets(folder, SIZES, array_records=[ARRAY_RECORDS]):
        yield


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    colours = np.random.default_rng(0).integers(0, 256, (3, 12, 3))
    for name, of_class in zip(["ape", "bee", "cow"], colours, strict=True):
        (folder / name).mkdir()
        for i, colour in enumerate(of_class):
            PIL.Image.new("RGB", (40 + i, 30), tuple(map(int, colour))).save(folder / name / f"{i}.jpg")
    return folder


@pytest.fixture(scope="module")
def masked_photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    for number, split in enumerate(("train", "validation", "test")):
        for part in ("images", "masks"):
            (folder / split / part).mkdir(parents=True)
        for i in range(12):
            PIL.Image.new("RGB", (40 + i, 30), (20 * i, 50, 90 * number)).save(folder / split / "images" / f"{i}.jpg")
            PIL.Image.new("L", (40 + i, 30), i % 3).save(folder / split / "masks" / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory, photographs):
    folder = tmp_path_factory.mktemp("shards")
    dataset = load_dataset(override(recipes.load("folder"), [f"data.directory={photographs}"]).data)
    assert write_records(dataset, str(folder), images_per_shard=10) > len(dataset.splits)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """{published weights in the recipes: a tiny file of the same kind}."""
    folder = tmp_path_factory.mktemp("weights")
    models = {
        "plain.npz": keras_vit.ViT("B/16", **TINY, representation_dim=8, classes=21),
        "hybrid.npz": keras_vit.ViT("R50+B/16", stem=TINY_STEM, **TINY, classes=21),
        "features": keras_vit.ViT("B/16", **TINY, include_top=False),
        "rotary": keras_vit.ViT("S/16", **TINY, **DINOV3, include_top=False),
    }
    for name, model in models.items():
        keras_vit.save_weights(randomize(model), folder / name, "google" if name.endswith(".npz") else "timm")
    files = {"R50+B/16@i21k": "hybrid.npz", "B/16@mae": "features", "S/16@dinov3-lvd1689m": "rotary"}
    names = [recipes.load(name).model.weights for name in recipes.NAMES]
    return {name: str(folder / files.get(name, "plain.npz")) for name in names if name}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "teacher.keras"
    keras_vit.ViT("B/16", **TINY, input_shape=(32, 32, 3), include_preprocessing=True).save(path)
    return str(path)


@pytest.fixture
def shrink(mocked, photographs, masked_photographs, shards, weights, teacher):
    """Function that turns a recipe into one of the same kind that takes seconds."""
    folders = {"classification": photographs, "segmentation": masked_photographs}
    keras.config.set_max_steps_per_epoch(2)  # Validation too, because there are fewer images than TFDS claims.

    def shrunk(recipe):
        model, directories = recipe.model, {"folder": str(folders[recipe.task]), "records": str(shards)}
        config = model.config
        if config is not None:
            representation_dim = 8 if config.representation_dim else None
            config = config.replace(**TINY, representation_dim=representation_dim, stem=TINY_STEMS[type(config.stem)])
        function, arguments = _shrunk_function(model)
        kind = {"config": config, "weights": weights.get(model.weights), "function": function, "arguments": arguments}
        model = dataclasses.replace(model, **kind, input_shape=(32, 32, (model.input_shape or (3,))[-1]))
        taught = recipe.distillation.teacher and teacher
        parts = min(recipe.fit.accumulation_steps, 2)
        changes = {"epochs": None, "steps": 2, "batch_size": 8, "accumulation_steps": parts, "report_every": "2 steps"}
        return dataclasses.replace(
            recipe,
            model=model,
            data=dataclasses.replace(recipe.data, directory=directories.get(recipe.data.dataset)),
            schedule=dataclasses.replace(recipe.schedule, warmup="1 step"),
            fit=dataclasses.replace(recipe.fit, **changes),
            distillation=dataclasses.replace(recipe.distillation, teacher=taught),
        )

    yield shrunk
    keras.config.set_max_steps_per_epoch(None)


def _shrunk_function(model):
    """The function and arguments of a small model of the same kind."""
    if model.function is None:
        return None, {}
    if model.function == "VTFPN":
        return model.function, TINY_SEGMENTER
    size = {"VTResNet18": "VT-R18", "VTResNet": model.arguments.get("size")}[model.function]
    return "VTResNet", {**model.arguments, "size": size, **TINY_TOKENS}


# One recipe for each kind of data, changes, model and optimizer.
KINDS = (
    *("cifar10", "cifar10_hour", "coco_stuff_vt_fpn_r50", "finetune_dinov3_s16", "finetune_flowers"),
    *("finetune_imagenet_512", "finetune_mae_b16", "finetune_vtab", "folder", "pretrain_imagenet21k_b16_augreg"),
    *("pretrain_imagenet21k_r50_b16", "pretrain_imagenet_s16", "pretrain_imagenet_vt_r18_advanced"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_recipe_trains(name, shrink):
    recipe = shrink(recipes.load(name))
    task = TASKS[recipe.task](recipe)
    dataset = task.load()
    is_indexed = recipe.data.dataset in ("folder", "shapes", ARRAY_RECORDS)
    assert isinstance(dataset.splits["train"], IndexedSource if is_indexed else StreamedSource)
    fitting = Fitting(task, dataset, Engine(recipe.distribution))
    # Batch norm statistics would change without an optimizer too.
    before = [keras.ops.convert_to_numpy(variable) for variable in fitting.model.trainable_variables]
    assert fitting.run()
    [row] = fitting.state.history
    assert row["step"] == 2
    assert {"loss", task.metric.name, "val_loss", f"val_{task.metric.name}"} <= row.keys()
    assert all(map(math.isfinite, row.values()))
    after = fitting.model.trainable_variables
    assert any(np.any(now != keras.ops.convert_to_numpy(then)) for now, then in zip(before, after, strict=True))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_recipe_says_what_was_published(name):
    fields = dict(leaves(to_dict(recipes.load(name))))
    published = PUBLISHED.get(name)
    own = (  # Recipes of this project, without published settings.
        "cifar10",
        "cifar10_hour",
        "cifar10_study",
        "digit_sets",
        "digit_sums",
        "digits",
        "digits_vt_r18",
        "drawn_pairs",
        "finetune_cifar10",
        "finetune_pairs",
        "folder",
        *("scenes_depth", "scenes_eomt", "scenes_semantic", "segment_folder", "depth_folder"),
        "shapes_vt_fpn",
    )
    assert (published is None) == (name in own), f"{name} must be either in PUBLISHED or in `own`"
    for field, value in (published or {}).items():
        assert fields[field] == (pytest.approx(value) if isinstance(value, float) else value), field


# ImageNet-21k has 14,197,122 images (image-net.org, summary of 2010). 99 % of 1,281,167 are used of ImageNet-1k.
STEPS = {
    "pretrain_imagenet21k_b16": 90 * 3_467,
    "pretrain_imagenet21k_b16_augreg": 300 * 3_467,
    "pretrain_imagenet21k_r50_b16": 90 * 3_467,
    "pretrain_imagenet_b16": 300 * 310,
    "pretrain_imagenet_b16_augreg": 300 * 310,
    "pretrain_imagenet_s16": 90 * 1_239,
    "finetune_dinov3_s16": 100 * 1_239,
    "finetune_mae_b16": 100 * 1_239,
}
WARMUP_STEPS = {"finetune_dinov3_s16": 5 * 1_239, "finetune_mae_b16": 5 * 1_239}


@pytest.mark.parametrize("name", SMOOTH)  # The other recipes are in schedules_test.py.
def test_learning_rate_is_that_of_the_paper_at_every_stage(name, mocked):
    recipe, published = recipes.load(name), PUBLISHED[name]
    if recipe.data.dataset == "records":
        dataset = Dataset((), {"train": IndexedSource(14_197_122, read=None)})
    else:
        dataset = load_dataset(recipe.data)
    steps_per_epoch = num_steps_per_epoch(dataset, recipe)
    total = training_steps(recipe, steps_per_epoch)
    assert total == STEPS.get(name, published.get("fit.steps"))
    warmup = WARMUP_STEPS.get(name) or int(published["schedule.warmup"].split()[0])
    peak, end = published["optimizer.learning_rate"], published["schedule.end"]
    first_quarter = {"cosine": (1 + math.sqrt(0.5)) / 2, "linear": 0.75}[published["schedule.decay"]]
    expected = {
        0: 0.0,
        warmup // 2: peak * (warmup // 2) / warmup,
        warmup: peak,
        warmup + (total - warmup) / 4: end + (peak - end) * first_quarter,
        warmup + (total - warmup) / 2: (peak + end) / 2,
        total: end,
    }
    schedule = build_schedule(recipe, steps_per_epoch, total)
    for step, learning_rate in expected.items():
        assert float(schedule(step)) == pytest.approx(learning_rate, rel=1e-5, abs=1e-9), step


def test_weights_are_in_the_catalogue_and_fit():
    for name in recipes.NAMES:
        model = recipes.load(name).model
        if model.weights is not None:
            assert get_entry(model.weights).url, name
            sides = (model.input_shape or (224, 224))[:2]
            stride = keras_vit.VARIANTS[model.weights.partition("@")[0]].total_stride
            assert all(side % step == 0 for side, step in zip(sides, stride, strict=True)), name


@pytest.mark.parametrize("name", recipes.NAMES)
def test_header_says_what_to_know(name):
    recipes.load(name)
    header = sys.modules[f"training.recipes.{name}"].__doc__
    assert re.findall(r"^(\w+): ", header, re.MULTILINE)[:5] == ["Paper", "Command", "Hardware", "Expected", "Measured"]
    [command] = re.findall(r"^Command: (.*)$", header, re.MULTILINE)
    if command == "make train":
        assert name == "digits"
    else:
        assert re.match(rf"python -m training train {name}( data\.directory=\S+)?( \(|$)", command)


def test_document_lists_every_recipe_once():
    assert sorted(re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)) == list(recipes.NAMES)


@pytest.mark.slow
def test_commands_of_the_document_are_accepted_as_they_stand(capsys):
    commands = re.findall(r"^ *python -m training train ([^#\n]*)", DOCUMENT.read_text(), re.MULTILINE)
    tasks = re.findall(r"^\|[^|]*\| `(data\.dataset=.*)` \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(commands) > 10
    assert len(tasks) == 18  # CIFAR-100 is the recipe's own task.
    for command in commands + [f"finetune_vtab {task}" for task in tasks]:
        assert not main(["train", *shlex.split(command), "--show"]), command
        assert "model.weights=" in capsys.readouterr().out


def test_commands_of_the_document_train_the_models_of_table_3():
    section = DOCUMENT.read_text().partition("other models of Table 3")[2].partition("```\n\n")[0]
    commands = re.findall(r"^python -m training train (.*)$", section, re.MULTILINE)
    trained = []
    for command in commands:
        name, *changes = shlex.split(command)
        base = recipes.load(name)
        recipe = override(base, changes)
        config = recipe.model.config
        assert (config.representation_dim, config.dropout_rate) == (config.hidden_dim, 0.1)
        assert config.replace(representation_dim=None, dropout_rate=0) in keras_vit.VARIANTS.values()
        assert dataclasses.replace(recipe, model=base.model) == base
        trained.append((recipe.data.dataset, config.hidden_dim, config.patch_size))
    sizes = [(768, 32), (1024, 16), (1024, 32)]
    assert trained == [(data, *size) for data in ("records", "imagenet2012") for size in sizes]
