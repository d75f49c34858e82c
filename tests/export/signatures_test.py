import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.export import signatures
from keras_vit.export.answers import Classes
from keras_vit.export.signatures import check_output, check_signatures
from tests.models.segmenters import tiny_segmenter
from tests.models.tiny import tiny_model
from tests.test_case import assert_close, randomize, to_numpy


def test_signatures_of_each_kind_of_model(monkeypatch):
    common = ["serving_default", "predict_pixels", "predict_pixels_float"]
    assert check_signatures(tiny_model(), None) == [*common, "embed", "tokens", "explain"]
    dinov3 = {"rotary": keras_vit.RotaryConfig(), "position_embedding": "none", "num_register_tokens": 2}
    assert check_signatures(tiny_model(final_norm=False, **dinov3), None) == [*common, "embed", "tokens", "explain"]
    merging = tiny_model(token_merging=1)
    assert check_signatures(merging, None) == [*common, "embed"]
    resnet = keras_vit.ResNet("R18", stage_depths=(1,), width=4, input_shape=(16, 24, 3), classes=5)
    assert check_signatures(resnet, None) == [*common, "embed"]
    segmenter = tiny_segmenter("PanopticFPN", (32, 32, 3))
    assert check_signatures(segmenter, None) == [*common, "predict_original"]
    segmenter.get_layer("preprocessing").crop = [32, 32]  # Pixels outside are not seen.
    assert check_signatures(segmenter, None) == common
    for model, name in ((merging, "explain"), (segmenter, "embed")):
        with pytest.raises(ValueError, match=f"cannot have the signature '{name}'. Choose from: serving_default, "):
            check_signatures(model, ["serving_default", name])
    monkeypatch.setattr(signatures, "has_rollout", lambda model: False)
    assert check_signatures(tiny_model(), None) == [*common, "embed", "tokens"]


def test_signatures_are_chosen_by_name():
    model = tiny_model()
    assert check_signatures(model, ("embed", "serving_default")) == ["serving_default", "embed"]
    for names, message in (
        ([], r"signatures must contain 'serving_default': it answers requests .* Received: \[\]"),
        (["embed", "tokens"], "signatures must contain 'serving_default': .* Received: .'embed', 'tokens'."),
        (["embed", "serving_default", "embed"], "signatures must contain each name only once. Received: .'embed', 's"),
        (["serving_default", "embeds"], "signatures must be one of 'serving_default', .*'explain'. Received: 'embeds'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_signatures(model, names)
    with pytest.raises(TypeError, match=r"signatures must be a list of names, or None .* Received: 'serving_default'"):
        check_signatures(model, "serving_default")


@pytest.mark.parametrize("ending", ["cast", "softmax_layer", "nested_whole", "logits"])
def test_probabilities_are_the_models_however_it_ends(ending):
    activation = None if ending in ("softmax_layer", "logits") else "softmax"
    arguments = {"input_shape": (8, 12, 3), "classes": 4, "include_preprocessing": True, "num_layers": 1}
    inner = randomize(tiny_model(**arguments, classifier_activation=activation), scale=0.5)
    last = {"cast": keras.layers.Activation("linear", dtype="float32"), "softmax_layer": keras.layers.Softmax()}
    model = keras.Sequential([keras.Input((8, 12, 3)), inner, *([last[ending]] if ending in last else [])])
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype("float32")
    check_output(model)
    expected = to_numpy(model(pixels))
    expected = to_numpy(keras.ops.softmax(expected)) if ending == "logits" else expected
    assert np.ptp(expected) > 0.1
    assert_close(Classes.compute(model, pixels), expected)


@pytest.mark.parametrize("kind", ["masks", "depth", "normals", "embedding"])
def test_outputs_without_an_answer_are_refused(kind):
    model = tiny_segmenter("PanopticFPN", (32, 32, 3))
    keras_vit.set_output(model, kind)
    with pytest.raises(ValueError, match=f"Received: a model that returns {kind} of shape"):
        check_output(model)
