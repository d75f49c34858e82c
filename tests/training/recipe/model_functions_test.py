"""Recipes with models from other functions of `keras_vit` than `ViT`, from the recipe to the run."""

import json

import pytest

import keras_vit
from keras_vit.architectures import BiTResNetConfig
from tests.test_case import canonical_weights, randomize
from tests.weights.formats.bit_test import bit_file
from tests.weights.formats.torchvision_test import resnet_file
from training import recipes
from training.engine.models import build_model, description, without_weights
from training.engine.optimizers import layer_scales
from training.errors import InputError
from training.planning.plan import activations
from training.planning.plan_report import ACCELERATORS, Memory, Plan
from training.recipe.assignments import annotated_fields, from_dict, override
from training.recipe.config import to_dict

BIT = ["model.config=none", "model.function=BiTResNet", "model.arguments.stage_depths=1,1", "model.arguments.width=32"]


@pytest.fixture(scope="module")
def recipe(brief_recipe):
    return override(brief_recipe, [*BIT, "model.input_shape=16,12,1", "fit.batch_size=128"])


def test_a_model_of_another_kind(recipe):
    model = build_model(recipe, 7)
    assert keras_vit.describe(model).config == BiTResNetConfig((1, 1), 32)
    assert (model.input_shape, model.output_shape) == ((None, 16, 12, 1), (None, 7))
    assert keras_vit.describe(model).pixels["normalize"]


def test_a_segmentation_model_on_a_published_backbone(tmp_path):
    resnet = randomize(keras_vit.ResNet("R18", stage_depths=(1, 1), width=4, input_shape=(32, 40, 3)))
    path = resnet_file(resnet, tmp_path)
    sizes = ["model.arguments.stage_depths=1,1", "model.arguments.width=4", f"model.arguments.weights={path}"]
    recipe = override(recipes.load("shapes_vt_fpn"), sizes)
    model = build_model(recipe, 3)
    expected = {name: array for name, array in canonical_weights(resnet).items() if name.startswith("st")}
    found = canonical_weights(model)
    assert len(expected) > 10
    assert all((found[name] == array).all() for name, array in expected.items())
    path.unlink()
    again = build_model(recipe, 3, built=description(model))
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    assert description(again) == description(model)
    with pytest.raises(InputError, match=r"model\.arguments\.weights is not an argument of VTResNet"):
        override(recipes.load("digits"), ["model.config=none", "model.function=VTResNet", "model.arguments.weights=x"])


def test_arguments_have_the_types_of_json():
    arguments = {"is_recurrent": "False", "split_tokens": "true", "num_tokens": "6", "drop_path_rate": "0.25"}
    arguments |= {"relation": '"none"', "relation_modules": "0,2", "tokenizer": "pooling", "global_unit": "none"}
    said = [f"model.arguments.{name}={text}" for name, text in arguments.items()]
    changed = override(recipes.load("digits"), ["model.config=none", "model.function=VTResNet", *said])
    values = [False, True, 6, 0.25, "none", [0, 2], "pooling", None]
    assert changed.model.arguments == dict(zip(arguments, values, strict=True))
    assert [type(value) for value in changed.model.arguments.values()] == [type(value) for value in values]


def test_survives_json_and_says_what_it_is(recipe):
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe
    said = [line.split()[0] for line in annotated_fields(recipe).splitlines() if line.startswith("model.")]
    assert {*BIT[1:], "model.config=none"} <= set(said)


def test_what_does_not_fit_is_refused(recipe):
    for assignments, message in (
        (["model.function=BiTResNet50x4"], r"model\.function must be one of AxialResNet.*Did you mean 'BiTResNet50x"),
        (["model.function=VTResNet", "model.arguments.num_tokns=3"], r"VTResNet\. Did you mean 'num_tokens' or"),
        (["model.function=SelfAttentionNetwork", "model.arguments.heads=3"], r"Accepted: relation, size, stage_"),
        (["model.function=ViTB16"], r"For a Vision Transformer, set model\.config"),
        (["model.arguments.widht=3"], r"arguments\.widht is not an argument of BiTResNet\. Did you mean 'width'\?"),
        (["model.arguments.classes=3"], r"Accepted: stage_depths, stem_pooling_padding, width"),
        (["model.function=BiTResNet50x1"], r"is not an argument of BiTResNet50x1\. Accepted: none"),
        (
            ["model.config=B/16"],
            r"exactly one of model\.config, model\.function, model\.weights and model\.encoder must be set",
        ),
        (["model.function=none", "model.config=B/16"], r"model\.arguments is only used with model\.function"),
        (["model.function=none"], r"exactly one of model\.config, model\.function, model\.weights"),
        (["model.resize=15"], r"model\.resize must not be smaller than a side of model\.input_shape, 16 x 12"),
        (["fit.rematerialize=true"], r"recomputes encoder blocks, but BiTResNet has none"),
        (["distribution.kind=model_parallel"], r"but BiTResNet is not a Vision Transformer. Choose data_parallel"),
        (["model.changes.dropout_rate=0.1"], r"model\.changes is only used with model\.weights"),
    ):
        with pytest.raises(InputError, match=f"(?s){message}"):
            override(recipe, assignments)


def test_impossible_values_are_refused_when_it_is_built(recipe):
    for assignments, message in (
        (["model.arguments.width=48"], "width must be a multiple of 32"),
        (["model.arguments.stage_depths=2"], "stage_depths must be a tuple"),
        (["model.function=AxialResNet"], "multiples of 8 pixels"),
        (["model.freeze_up_to=encoder_block_0"], "no layer 'encoder_block_0'"),
    ):
        with pytest.raises(InputError, match=message):
            build_model(override(recipe, assignments), 7)


def test_weights_of_another_kind(recipe, tmp_path):
    """Fine-tuning starts from a published BiT-ResNet, here a file in timm's layout."""
    weights = bit_file(randomize(keras_vit.BiTResNet((1, 1), 32, classes=5)), "timm", tmp_path)
    fields = to_dict(recipe)
    fields["model"] |= {"function": None, "arguments": {}, "weights": str(weights)}
    pretrained = from_dict(fields)
    model = build_model(pretrained, 7)
    assert keras_vit.describe(model).config == BiTResNetConfig((1, 1), 32)
    assert model.output_shape == (None, 7)
    assert description(build_model(pretrained, 7, built=description(model))) == description(model)
    known = without_weights(pretrained).model
    arguments = {"stage_depths": [1, 1], "width": 32, "stem_pooling_padding": "zeros"}
    assert (known.function, known.arguments) == ("BiTResNet", arguments)
    with pytest.raises(InputError, match="has no dropout_rate"):
        build_model(override(pretrained, ["model.changes.dropout_rate=0.1"]), 7)


def test_layer_decay_counts_the_units():
    paths = ["stem_conv/kernel", "stage_0_unit_0/conv_1/kernel", "stage_0_unit_1/norm_1/gamma"]
    paths += ["bit_resnet/stage_1_unit_0/conv_2/kernel", "final_norm/beta", "predictions/kernel"]
    assert layer_scales(paths, 0.5) == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1]
    assert layer_scales(paths[2:], 0.5) == [1 / 4, 1 / 2, 1, 1]  # All other layers are frozen.
    others = ["stage_0_global_unit_1/norm/gamma", "stage_1_conv/kernel", "stage_1_unit_0/norm/gamma"]
    assert layer_scales([*paths[:3], *others], 0.5) == [1 / 32, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 2]
    hybrid = ["stem_stage_0_unit_0/conv_1/kernel", "encoder_block_0/x/kernel", "encoder_block_10/x/kernel"]
    scales = layer_scales([*hybrid, "encoder_block_9/x/kernel", "predictions/bias"], 0.5)
    assert scales == [1 / 16, 1 / 8, 1 / 2, 1 / 4, 1]


def test_a_plan_says_that_the_activations_are_not_known(recipe):
    assert activations(recipe, build_model(recipe, 7), engine=None) is None
    memory = Memory(1, 2, 3, None, 41e9, 0)
    assert memory.expected is None
    plan = Plan(recipe, 1, 1, 1, "", 1, 1, 1, memory, 1.0, {})
    assert "unknown" in str(plan)
    assert [plan.fits(accelerator) for accelerator in ACCELERATORS[:2]] == ["no", "yes"]
