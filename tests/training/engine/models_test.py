"""The model and the teacher of a recipe, and their properties before they are built."""

import json
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures.vision_transformer import VARIANTS
from tests.test_case import assert_close, randomize, to_numpy
from training import recipes
from training.engine.models import build_model, description, load_teacher, without_weights
from training.errors import InputError
from training.recipe.assignments import override


def test_weights_stand_for_their_architecture():
    """Nothing is downloaded for weights in the catalogue."""
    weights = ["model.config=none", "model.input_shape=none", "model.weights=Ti/16@augreg-i21k-i1k-384"]
    recipe = override(recipes.load("digits"), [*weights, "model.changes.drop_path_rate=0.1"])
    model = without_weights(recipe).model
    assert model.config == VARIANTS["Ti/16"].replace(drop_path_rate=0.1)
    assert (model.weights, model.input_shape) == (None, (384, 384, 3))
    with pytest.raises(InputError, match="trained with stem=None, but the model has stem=ConvStemConfig"):
        without_weights(override(recipe, ["model.changes.stem.widths=8"]))
    with pytest.raises(InputError, match=r"model\.weights=Ti/99@imagenet"):
        without_weights(override(recipe, ["model.weights=Ti/99@imagenet"]))


def test_weights_stand_for_the_changes_of_their_variant():
    config = without_weights(recipes.load("finetune_dinov3_s16")).model.config
    assert (config.rotary, config.position_embedding) == (keras_vit.RotaryConfig(), "none")
    assert (config.num_register_tokens, config.pooling) == (4, "token")


def test_mimetic_initialization_of_a_resnet_is_refused():
    arguments = ["model.arguments.stage_depths=1,1", "model.arguments.width=32"]
    resnet = ["model.config=none", "model.function=BiTResNet", *arguments]
    recipe = override(recipes.load("digits"), [*resnet, "model.attention_initialization=mimetic"])
    with pytest.raises(InputError, match=r"'digits' has none\. Set model\.attention_initialization=random\."):
        build_model(recipe, 10)


def test_mimetic_values_are_not_computed_again(brief_recipe, monkeypatch):
    model = keras_vit.ViT(brief_recipe.model.config, input_shape=(8, 8, 1), classes=10, include_preprocessing=True)
    mimetic = override(brief_recipe, ["model.attention_initialization=mimetic"])
    monkeypatch.setattr(keras_vit, "initialize_attention", lambda model, seed: pytest.fail("They were computed."))
    assert len(build_model(mimetic, 10, built=description(model)).weights) == len(model.weights)


def test_scores_of_sigmoids_are_independent(brief_recipe):
    recipe = override(brief_recipe, ["fit.loss=sigmoid", "model.resize=12", "model.input_shape=10,8,3"])
    model = randomize(build_model(recipe, 3))
    pixels = keras_vit.describe(model).pixels
    assert (pixels["resize"], pixels["crop"], pixels["mean"], pixels["normalize"]) == (12, [10, 8], 0.5, True)
    images = np.random.default_rng(0).integers(0, 256, (1, 10, 8, 3)).astype("float32")
    scores = to_numpy(model(images))
    logits = build_model(override(brief_recipe, ["model.input_shape=10,8,3"]), 3, with_logits=True)
    logits.set_weights(model.get_weights())
    assert_close(scores, 1 / (1 + np.exp(-to_numpy(logits(images)))))
    assert abs(scores.sum() - 1) > 0.1


@pytest.fixture
def teacher_of(brief_recipe, tmp_path):
    """Function that saves a model and loads it as a teacher."""
    path = tmp_path / "teacher.keras"
    student = types.SimpleNamespace(input_shape=(None, 8, 8, 1), output_shape=(None, 10))

    def load(model):
        model.save(path)
        return load_teacher(override(brief_recipe, [f"distillation.teacher={path}"]), student, range(10))

    return load


def classifier(brief_recipe, activation, **changes):
    config = brief_recipe.model.config.replace(**changes)
    return keras_vit.ViT(
        config, input_shape=(8, 8, 1), classes=10, include_preprocessing=True, classifier_activation=activation
    )


def test_a_teacher_gives_its_logits(brief_recipe, teacher_of):
    changes = {"pooling": "token", "distillation_token": True}
    logits, teacher = (classifier(brief_recipe, activation, **changes) for activation in (None, "softmax"))
    teacher.set_weights(randomize(logits).get_weights())
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype("float32")
    expected = to_numpy(logits(pixels))
    for model in (teacher, logits):
        assert_close(teacher_of(model)(pixels), expected)


def test_the_classes_of_a_teacher_in_the_folder_of_its_run_are_checked(brief_recipe, teacher_of, tmp_path):
    facts = {"recipe": {}, "class_names": [str(name) for name in reversed(range(10))]}
    (tmp_path / "recipe.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"teacher\.keras has 10 classes, which are not the classes of the data set"):
        teacher_of(classifier(brief_recipe, "softmax"))


def test_a_teacher_without_logits_of_a_softmax_is_refused(brief_recipe, teacher_of):
    logits_model = classifier(brief_recipe, None)
    other_end = keras.Model(logits_model.inputs, keras.layers.Softmax(name="last")(logits_model.output))
    for teacher, says in (
        (classifier(brief_recipe, "sigmoid"), "ends in sigmoid"),
        (other_end, "ends in the layer last"),
    ):
        with pytest.raises(InputError, match=rf"teacher\.keras {says}\. .*a model that ends in a softmax or in logits"):
            teacher_of(teacher)
