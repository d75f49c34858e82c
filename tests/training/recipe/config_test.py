"""Recipes are typed, and every assignment is validated before any work starts."""

import dataclasses
import json

import pytest

from keras_vit import ConvStemConfig, RotaryConfig, StemConfig
from keras_vit.architectures.vision_transformer import VARIANTS
from training import recipes
from training.errors import InputError
from training.recipe.assignments import annotated_fields, from_dict, leaves, override, replaced_by_variant
from training.recipe.config import Augment, Data, Fit, Model, Recipe, to_dict

DIGITS = recipes.load("digits")
ROTARY = RotaryConfig("axial", 10_000.0, "interleaved", "grid", (4, 7))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_recipe_survives_json(name):
    recipe = recipes.load(name)
    assert recipe.name == name
    assert from_dict(to_dict(recipe)) == recipe


def test_assignments_change_what_they_name_and_nothing_else():
    changed = override(DIGITS, ["fit.epochs=7", "optimizer.clip_norm=none", "augment.flip=true", "seed=3"])
    assert changed.fit.epochs == 7
    assert changed.optimizer.clip_norm is None
    assert changed.augment.flip is True
    assert changed.seed == 3
    before, after = dict(leaves(to_dict(DIGITS))), dict(leaves(to_dict(changed)))
    changes = {name for name in before if before[name] != after[name]}
    assert changes == {"fit.epochs", "optimizer.clip_norm", "augment.flip", "seed"}
    folder = recipes.load("folder")
    assert override(folder, ["augment.crop=none"]).augment.crop_area == (0.05, 1.0)
    assert override(folder, ["augment.crop=inception"]) == folder


def test_a_variant_by_name_and_then_a_field_of_it():
    changed = override(DIGITS, ["model.config=S/16", "model.config.drop_path_rate=0.1", "model.input_shape=64,96,3"])
    assert changed.model.config == dataclasses.replace(VARIANTS["S/16"], drop_path_rate=0.1)
    assert changed.model.input_shape == (64, 96, 3)


def test_fields_of_the_stem():
    hybrid = recipes.load("pretrain_imagenet21k_r50_b16")
    changed = override(hybrid, ["model.config.stem.stage_depths=3,4", "model.config.stem.width=32"])
    assert changed.model.config.stem == dataclasses.replace(hybrid.model.config.stem, stage_depths=(3, 4), width=32)
    with pytest.raises(InputError, match=r"Did you mean model\.config\.stem\.width"):
        override(hybrid, ["model.config.stem.widht=32"])


def assert_refused(recipe, assignment, message):
    """`message`: a pattern of the whole message."""
    with pytest.raises(InputError, match=f"^{message}$"):
        override(recipe, [assignment])


def test_fields_of_a_convolutional_stem():
    recipe = recipes.load("cifar10_hour")
    changed = override(recipe, ["model.config.stem.widths=8,16,32", "model.config.stem.strides=1,2,2"])
    assert changed.model.config.stem == ConvStemConfig((8, 16, 32), (1, 2, 2))
    assert override(recipe, ["model.config.stem=none"]).model.config.stem is None
    message = r"model\.config\.stem is of a kind with the fields widths, strides\. .*=none\."
    assert_refused(recipe, "model.config.stem.width=32", message)
    for assignment, message in (
        ("stem.strides=1,2", r"model\.config\.stem: strides must contain 1 or 2 for each of the 3 widths.*"),
        ("stem.strides=true", r"model\.config\.stem\.strides: Input should be a valid tuple\. Received: 'true'"),
        ("stem.strides=1,b,2", r"model\.config\.stem\.strides\.1: Input should be a valid integer.* Received: 'b'"),
    ):
        assert_refused(changed, f"model.config.{assignment}", message)


def test_a_stem_that_the_recipe_does_not_have():
    assert override(DIGITS, ["model.config.stem.widths=32"]).model.config.stem == ConvStemConfig((32,))
    recipe = recipes.load("cifar10_hour")
    changes = ["model.config.stem=none", "model.config.stem.width=32", "model.config.stem.stage_depths=1,2"]
    assert override(recipe, changes).model.config.stem == StemConfig((1, 2), 32)
    for assignment, message in (
        ("stem.widht=32", r"model\.config\.stem\.widht is not a field.* Did you mean model\.config\.stem\.width or .*"),
        ("stem.strides=1,2", r"model\.config\.stem\.widths: Field required"),
        ("stem=32", r"model\.config\.stem is a section\. .* Fields: stage_depths, .*, widths, strides\."),
    ):
        assert_refused(DIGITS, f"model.config.{assignment}", message)
    with pytest.raises(InputError, match=r"^model\.config\.stem\.widths is not a field"):
        override(DIGITS, ["model.config=none", "model.config.stem.widths=32"])
    convolution = override(recipe, [*changes[:2], "model.config.stem.stage_depths="])
    assert convolution.model.config.stem == StemConfig((), 32)
    assert "model.config.stem.stage_depths=  " in annotated_fields(convolution)


def test_arguments_of_another_function():
    recipe = recipes.load("shapes_vt_fpn")
    changed = override(recipe, ["model.function=PanopticFPN", "model.arguments=none", "model.arguments.width=8"])
    assert changed.model.arguments == {"width": 8}
    assert_refused(recipe, "model.arguments=8", r"model\.arguments is a section\. .*")


def test_fields_of_rotary_positions():
    config = DIGITS.model.config.replace(rotary=ROTARY)
    recipe = dataclasses.replace(DIGITS, model=dataclasses.replace(DIGITS.model, config=config))
    assert from_dict(to_dict(recipe)) == recipe
    assignments = ["model.config.rotary.base=50", "model.config.rotary.reference_grid=none"]
    changed = override(recipe, [*assignments, "model.config.qkv_bias=no_key", "model.config.mlp_inner_norm=true"])
    assert changed.model.config == config.replace(
        rotary=dataclasses.replace(ROTARY, base=50.0, reference_grid=None), qkv_bias="no_key", mlp_inner_norm=True
    )
    assert "model.config.rotary.reference_grid=4,7" in annotated_fields(recipe)
    assert override(recipe, ["model.config.rotary=none"]).model.config.rotary is None
    assert override(DIGITS, ["model.config.rotary.base=50"]).model.config.rotary == RotaryConfig(base=50.0)
    with pytest.raises(InputError, match=r"model\.config\.rotary is a section\..* Fields: kind, base, .*, axis_order"):
        override(DIGITS, ["model.config.rotary=axial"])
    with pytest.raises(InputError, match=r"Did you mean model\.config\.rotary\.layout"):
        override(recipe, ["model.config.rotary.layuot=half"])
    with pytest.raises(InputError, match=r"reference_grid and offset need coordinates='grid'"):
        override(recipe, ["model.config.rotary.coordinates=normalized"])


@pytest.mark.parametrize(("name", "value"), [("rotary", ROTARY), ("stem", StemConfig((1, 2), 32))])
def test_changes_of_weights_may_contain_a_config(name, value):
    model = Model(weights="S/16@augreg-i21k", changes={name: value, "pooling_num_heads": 5, "pooling": "map"})
    recipe = dataclasses.replace(DIGITS, model=model)
    fields = to_dict(recipe)
    assert fields["model"]["changes"][name] == json.loads(json.dumps(dataclasses.asdict(value)))
    assert from_dict(fields) == recipe
    assert override(recipe, [f"model.changes.{name}=none", "model.changes.pooling=token"]).model.changes[name] is None


def test_changes_of_weights_are_checked_one_by_one():
    """Whether the changes fit each other depends on the weights."""
    weights = ["model.config=none", "model.resize=none", "model.weights=S/16@augreg-i21k"]
    changes = ["position_embedding=sincos_2d", "pool_prefix_tokens=true", "final_norm=false", "num_heads=4"]
    changed = override(DIGITS, [*weights, *(f"model.changes.{change}" for change in changes)]).model.changes
    expected = {"position_embedding": "sincos_2d", "pool_prefix_tokens": True, "final_norm": False, "num_heads": 4}
    assert changed == expected
    for change, message in (
        ("qkv_bias=some", "model: qkv_bias must be one of 'all', 'no_key', 'none'. Received: 'some'"),
        ("stem.strides=1", "model.changes: A ConvStemConfig needs widths. Received: "),
        ("num_heads=0", "model: num_heads must be a positive integer. Received: 0"),
        ("rotary=axial", r"model\.changes\.rotary is a section\..* Fields: kind, base, "),
    ):
        with pytest.raises(InputError, match=message):
            override(DIGITS, [*weights, f"model.changes.{change}"])
    with pytest.raises(TypeError, match=r"'drop_rate' is not a field of ViTConfig\. Did you mean 'dropout_rate'"):
        Model(weights="S/16@augreg-i21k", changes={"drop_rate": 0.1})


def test_none_is_no_value_or_a_name():
    changed = override(DIGITS, ["model.config.position_embedding=none", "optimizer.clip_norm=none"])
    assert changed.model.config.position_embedding == "none"
    assert changed.optimizer.clip_norm is None
    assert override(DIGITS, ["data.tfds_directory=x", "data.tfds_directory=none"]).data.tfds_directory is None


def test_number_stays_text_where_text_is_meant():
    folder = recipes.load("folder")
    for text in ("2024", "1.10", "1e5", "a,b", "true"):
        assert override(folder, [f"data.directory={text}"]).data.directory == text


@pytest.mark.combination("optimizer.learning_rate=1e9", "refused")
def test_fields_that_a_variant_replaces_are_named():
    recipe = recipes.load("pretrain_imagenet_b16")

    def note(*assignments):
        return replaced_by_variant(recipe, override(recipe, assignments), assignments)

    assert note("model.config=L/16") == (
        "model.config=L/16 replaces all fields of the recipe's model.config. The recipe had "
        "model.config.representation_dim=768, model.config.dropout_rate=0.1."
    )
    kept = "model.config.dropout_rate=0.1", "model.config.representation_dim=768"
    assert note("model.config=B/32", *kept) is None
    assert note("fit.epochs=3") is None
    assert note("model.config=none", "model.function=VTResNet18") is None


def test_wrong_assignments_are_refused_with_what_is_right():
    for assignment, expected in (
        ("fit.bach_size=3", "fit.batch_size"),
        ("fit.epochs", "section.field=value"),
        ("fit=3", "fit.<field>"),
        ("optimizer.lr=0.1", "Did you mean optimizer.learning_rate"),
        ("fit.epochs=0", "greater than 0"),
        ("fit.label_smoothing=1", "less than 1"),
        ("optimizer.learning_rate=1e9", "less than or equal to 1000. Received: 1000000000.0"),
        ("model.config.hidden_dim=1000000001", r"hidden_dim must be at most 1,000,000. Received: 1000000001"),
        ("optimizer.learning_rate=nan", "finite number"),
        ("fit.precision=float8", "'mixed_bfloat16'"),
        ("augment.flip=maybe", "valid boolean"),
        ("model.input_shape=8,8", "input_shape"),
        ("model.input_shape=8,8,2", "1 or 3"),
        ("model.config=B/61", "'B/16'"),
        ("model.input_shape=30,32,1", "30 x 32 pixels does not divide into patches"),
        ("model.resize=31", "must not be smaller than a side of model.input_shape, 32 x 32 pixels. Received: 31"),
        ("model.config.pooling=nowhere", "pooling must be one of 'token', "),
        ("model.config.pooling=none", "a classifier needs one vector per image"),
        ("fit.epochs=true", "valid integer"),
        ("data.directory=photographs", "only used for data.dataset=archives, coco, folder, records, table."),
        ("name=../elsewhere", "pattern"),
        ("name=" + "a" * 101, "pattern"),
        ("fit.epochs=" + "9" * 30, "fit.epochs must be below 4,294,967,296. Received: 999999"),
        ("fit.epochs=" + "9" * 5000, "exceeded maximum size"),
        ("fit.epochs=" + "[" * 100_000, "valid integer"),
        ("[" * 100_000 + "=3", "is not a field of a recipe"),
        ("schedule.warmup=" + "9" * 10 + " steps", "A duration is written as"),
        ("distribution.devices=100000", "less than 100000"),
        ("seed=4294967296", "less than 4294967296"),
    ):
        with pytest.raises(InputError, match=r"(?s).*") as error:
            override(DIGITS, [assignment])
        assert expected in str(error.value)


def test_what_nothing_fills_is_refused():
    with pytest.raises(ValueError, match="with translation, rotation or scale"):
        Augment(fill="black")


def test_published_weights_say_themselves_how_images_are_resized():
    weights = ["model.config=none", "model.weights=B/16@i21k"]
    assert override(DIGITS, weights).model.resize is None
    with pytest.raises(InputError, match=r"model\.resize is only used without model\.weights\. .* Received: 40"):
        override(DIGITS, [*weights, "model.resize=40"])


def test_every_wrong_value_is_named_at_once():
    with pytest.raises(InputError) as error:
        override(DIGITS, ["fit.epochs=0", "seed=x"])
    assert "fit.epochs" in str(error.value)
    assert "seed" in str(error.value)


def test_names_that_a_file_has_too_many_are_refused():
    fields = to_dict(DIGITS)
    fields["model"]["config"]["hiden_dim"] = 3
    with pytest.raises(InputError, match=r"model\.config\.hiden_dim.*model\.config\.hidden_dim"):
        from_dict(fields)


def test_integers_that_nothing_counts_to_are_refused_in_a_file_too():
    fields = to_dict(override(DIGITS, ["model.config=none", "model.function=BiTResNet", "model.arguments.width=3"]))
    assert from_dict(fields).model.arguments == {"width": 3}
    fields["model"]["arguments"] = {"stage_depths": [1, 10**30]}
    with pytest.raises(InputError, match=r"model\.arguments\.stage_depths must be below 4,294,967,296"):
        from_dict(fields)


def test_impossible_recipes_cannot_be_written_in_python_either():
    with pytest.raises(ValueError, match="epochs"):
        Recipe(name="x", model=Model(config="Ti/16"), data=Data(dataset="digits"), fit=Fit(epochs=0, batch_size=1))


@pytest.mark.parametrize("name", ["digits", "digits_vt_r18", "pretrain_imagenet21k_r50_b16", "shapes_vt_fpn"])
def test_every_field_says_what_it_means(name):
    recipe = recipes.load(name)
    lines = annotated_fields(recipe).splitlines()
    assert len(lines) == len(list(leaves(to_dict(recipe))))
    assert all(len(line.split("  ", 1)[1].strip()) > 3 for line in lines)


def test_unknown_recipe_lists_those_there_are(tmp_path):
    with pytest.raises(InputError, match=r"Did you mean 'digits'.*cifar10, .*digits, .*folder"):
        recipes.load("digit")
    with pytest.raises(InputError, match=r"There is no recipe 'missing\.json'"):
        recipes.load("missing.json")
    broken = tmp_path / "recipe.json"
    broken_texts = [b"{}", b"[]", b"{", b'{"recipe": []}', b'{"recipe": {}, "class_names": 3}']
    broken_texts += [b'{"recipe": ' + b"[" * 100_000, b'{"recipe": "caf\xe9"}', b'{"recipe": ' + b"9" * 5000 + b"}"]
    for text in broken_texts:
        broken.write_bytes(text)
        with pytest.raises(InputError, match=r"not the recipe\.json"):
            recipes.load(str(broken))
    with pytest.raises(InputError, match=r"not the recipe\.json"):
        recipes.load(str(tmp_path))  # A run's folder is not a recipe file.


def test_a_duration_replaces_the_other_one():
    for name in ("digits", "folder"):  # One has epochs, the other steps.
        for assignments, duration in (
            (["fit.epochs=3"], (3, None)),
            (["fit.steps=7"], (None, 7)),
            (["fit.epochs=none", "fit.steps=7"], (None, 7)),
        ):
            fit = override(recipes.load(name), assignments).fit
            assert (fit.epochs, fit.steps) == duration
    with pytest.raises(InputError, match=r"exactly one of fit\.epochs and fit\.steps"):
        override(recipes.load("digits"), ["fit.epochs=3", "fit.steps=7"])
