"""What the outputs of a model mean."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export.answers import answer_of
from keras_vit.outputs import output_of, outputs_of
from tests.models.segmenters import tiny_segmenter
from tests.models.tiny import tiny_model

SHAPE = (8, 12, 3)


def _kind(model):
    output = output_of(model)
    return output.kind, output.activation


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"classifier_activation": "softmax"}, ("classes", "softmax")),
        ({}, ("classes", None)),
        ({"classifier_activation": "sigmoid"}, ("labels", "sigmoid")),
        ({"include_top": False}, ("embedding", None)),
        ({"include_top": False, "pooling": None}, ("embedding", None)),
        ({"distillation_token": True}, ("classes", None)),
        ({"distillation_token": True, "classifier_activation": "sigmoid"}, ("labels", "sigmoid")),
    ],
)
def test_the_head_of_a_model_shows_the_kind(arguments, expected):
    assert _kind(tiny_model(num_layers=1, **arguments)) == expected


def test_other_architectures():
    assert _kind(tiny_segmenter("VTFPN", (32, 32, 3))) == ("class_map", "softmax")
    resnet = {"stage_depths": (1,), "width": 4, "input_shape": (16, 24, 3)}
    assert _kind(keras_vit.ResNet("R18", **resnet, classes=5, classifier_activation="sigmoid")) == ("labels", "sigmoid")
    assert _kind(keras_vit.ResNet("R18", **resnet, include_top=False, pooling=None)) == ("embedding", None)


def test_the_last_activation_of_an_outer_model_decides():
    encoder = tiny_model(num_layers=1, include_top=False, input_shape=SHAPE)
    for last, expected in (
        (keras.layers.Dense(3, activation="softmax"), ("classes", "softmax")),
        (keras.layers.Dense(3), ("classes", None)),
        (keras.layers.Dense(3, activation="sigmoid"), ("labels", "sigmoid")),
        (keras.layers.Dropout(0.5), ("embedding", None)),
    ):
        model = keras.Sequential([keras.Input(SHAPE), encoder, last])
        assert _kind(model) == expected
        assert _kind(keras.Model(encoder.inputs, last(encoder.output))) == expected


def test_a_record_is_saved_and_followed(tmp_path):
    model = tiny_model(num_layers=1, input_shape=SHAPE, classes=2, classifier_activation=None)
    keras_vit.set_output(model, "values", names=["age", "height"], units=["years", "cm"])
    expected = keras_vit.Output("values", None, ["age", "height"], ["years", "cm"])
    model.save(tmp_path / "model.keras")
    for loaded in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert keras_vit.describe(loaded).outputs == {"predictions": expected}
    assert output_of(keras.Sequential([keras.Input(SHAPE), model])) == expected


def test_each_output_of_several_has_a_kind():
    inner = tiny_model(num_layers=1, input_shape=SHAPE, include_top=False)
    heads = {"age": keras.layers.Dense(1, name="age"), "kind": keras.layers.Dense(3, activation="softmax", name="kind")}
    model = keras.Model(inner.inputs, {name: head(inner.output) for name, head in heads.items()})
    keras_vit.set_output(model, "values", units=["years"], output="age")
    assert {name: output.kind for name, output in outputs_of(model).items()} == {"age": "values", "kind": "classes"}
    with pytest.raises(ValueError, match="has several outputs: age, kind"):
        output_of(model)
    with pytest.raises(ValueError, match=r"has several outputs. Pass output=, one of age, kind"):
        keras_vit.set_output(model, "values")


def test_a_model_that_is_not_functional_is_described_without_outputs():
    class Wrapper(keras.Model):
        def __init__(self, vision):
            super().__init__()
            self.vision = vision

        def call(self, images):
            return self.vision(images)

    vision = tiny_model(num_layers=1, input_shape=SHAPE)
    for model in (Wrapper(vision), keras.Sequential([keras.layers.Dropout(0.1), vision])):
        description = keras_vit.describe(model)
        assert (description.config, description.outputs) == (keras_vit.describe(vision).config, {})
        with pytest.raises(TypeError, match=r"A functional keras\.Model is needed"):
            output_of(model)


def test_two_classes_can_have_the_same_name():
    model = tiny_model(num_layers=1, classes=3)
    keras_vit.set_output(model, "classes", names=["crane", "bee", "crane"])
    assert output_of(model).names == ["crane", "bee", "crane"]


def test_names_of_classes_are_part_of_the_description():
    model = tiny_model(num_layers=1, classes=3)
    model.get_layer("preprocessing").set_preprocessing(label_space=["ant", "bee", "cat"])
    assert output_of(model).names == ["ant", "bee", "cat"]
    encoder = keras_vit.ViTConfig(patch_size=4, hidden_dim=12, num_layers=2, num_heads=3, mlp_dim=20)
    head = keras_vit.heads.EoMTHead(num_queries=4, num_blocks=1)
    model = keras_vit.Segmenter(encoder, head, classes=3, input_shape=(8, 8, 3))
    model.get_layer("preprocessing").set_preprocessing(label_space=["ant", "bee", "cat"])
    for each in (model, keras.Model(model.input, model(model.input))):  # Masks and objects count as one output.
        assert output_of(each) == keras_vit.Output("masks", None, ["ant", "bee", "cat"])
    facts = {"names": ["tree", "sky", "sea"], "is_thing": [True, False, False]}
    keras_vit.set_output(model, "objects", output="predictions", **facts)
    assert output_of(model) == keras_vit.Output("masks", None, **facts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "value"}, "kind must be one of 'classes', .* Received: 'value'"),
        ({"kind": "depth"}, r"kind='depth' has 4 axes\. Received: output 'predictions' of shape \(None, 5\)"),
        ({"kind": "values", "names": ["a", "b", "c", "d", "a"]}, "names of values must be different"),
        ({"kind": "values", "names": ["a"]}, r"names must be a list of 5 texts.* Received: \['a'\]"),
        ({"kind": "values", "units": "years"}, r"units must be a list of 5 texts.* Received: 'years'"),
        ({"kind": "classes", "units": ["x"] * 5}, "units are for kind='values' or 'depth'"),
        (
            {"kind": "classes", "is_thing": [True] * 5},
            "is_thing is for kind='objects', with one .* kind='classes', 5 v",
        ),
        ({"kind": "values", "output": "prediction"}, "output must be one of 'predictions'. Received: 'prediction'"),
    ],
)
def test_what_cannot_be_recorded_is_refused(arguments, message):
    model = tiny_model(num_layers=1, classes=5)
    with pytest.raises(ValueError, match=message):
        keras_vit.set_output(model, **arguments)
    assert model.get_layer("preprocessing").outputs is None


def test_logits_of_labels_become_probabilities_by_a_sigmoid():
    model = tiny_model(num_layers=1, input_shape=SHAPE, classes=3, classifier_activation=None)
    keras_vit.set_output(model, "labels")
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    logits = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(answer_of(model).compute(model, images)), 1 / (1 + np.exp(-logits)), rtol=1e-5
    )
