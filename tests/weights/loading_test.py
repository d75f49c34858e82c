import dataclasses
import logging
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.assign import in_place_of_initial_values
from tests.test_case import assert_close, canonical_weights, quantize, rest_slow, to_numpy
from tests.weights.converter_case import CONFIG as TWO_LAYERS
from tests.weights.converter_case import SHAPE, assert_refused, assert_same_weights, contents, edit, make, make_shell
from tests.weights.saving_test import FORMATS

HEAD = ["predictions/kernel", "predictions/bias"]
POSITIONS = "position_embedding/embedding"
CONFIG = TWO_LAYERS.replace(num_layers=1)
EXACT = CONFIG.replace(mlp="gelu_exact")


def test_report(saved):
    weights, path = saved(config=CONFIG)
    model = make(CONFIG, seed=5)
    report = keras_vit.load_weights(model, path)
    assert report == keras_vit.LoadReport(str(path), "google", report.loaded, {}, {}, ())
    assert sorted(report.loaded) == sorted(weights)
    assert_same_weights(model, weights)


def test_another_number_of_classes_needs_a_new_head(saved):
    weights, path = saved(config=CONFIG)
    others, headless = saved(config=CONFIG, include_top=False, seed=3)
    model = make(CONFIG, classes=6, seed=5)
    for source, expected, match in (
        (path, weights, r"has 5 classes, but the model has 6 classes\. .*classes=6.*head='reset'.*classes=5 or"),
        (headless, others, r"has no classifier, .* 6 classes\. .*head='reset'.*with include_top=False"),
    ):
        assert_refused(lambda source=source: keras_vit.load_weights(model, source), model, match)
        report = keras_vit.load_weights(model, source, head="reset")
        assert sorted(report.initialized) == sorted(HEAD)
        assert set(report.loaded) == set(weights) - set(HEAD)
        assert_same_weights(model, {**expected, HEAD[0]: np.zeros((12, 6)), HEAD[1]: np.zeros(6)})


def test_resets_the_head(saved):
    weights, path = saved(config=CONFIG)
    model = make(CONFIG, head_bias=-10.0, seed=5)
    report = keras_vit.load_weights(model, path, head="reset")
    expected = {HEAD[0]: np.zeros((12, 5)), HEAD[1]: np.full(5, -10.0)}
    assert_same_weights(model, {**weights, **expected})
    assert report.skipped == dict.fromkeys(HEAD, "the head is reset")
    assert keras_vit.describe(model).adaptations == dict.fromkeys(HEAD, "not loaded from the file")
    for head in ("new", None, True):
        assert_refused(
            lambda head=head: keras_vit.load_weights(model, path, head), model, "head must be 'keep' or 'reset'"
        )


@pytest.mark.slow
def test_a_new_head_leaves_the_norm_behind_the_pooling_and_takes_both_heads_of_a_distilled_model(saved):
    behind = {"pooling": "avg", "norm_placement": "after_pooling"}
    weights, path = saved("timm", EXACT, **behind)
    model = make(EXACT, **behind, seed=5)
    assert sorted(keras_vit.load_weights(model, path, head="reset").initialized) == sorted(HEAD)
    assert_same_weights(model, {**weights, HEAD[0]: np.zeros((12, 5)), HEAD[1]: np.zeros(5)})
    _, path = saved("timm", EXACT, distillation_token=True)
    model = make(EXACT, distillation_token=True, classes=3, seed=5)
    heads = [*HEAD, "distillation_predictions/kernel", "distillation_predictions/bias"]
    assert sorted(keras_vit.load_weights(model, path, head="reset").initialized) == sorted(heads)
    weights = canonical_weights(model)
    assert not any(weights[name].any() for name in heads)


@pytest.mark.slow
@pytest.mark.parametrize("file_has", [True, False])
@pytest.mark.parametrize("model_has", [True, False])
def test_pre_logits(file_has, model_has, saved):
    _, path = saved(config=CONFIG, representation_dim=7 if file_has else None)
    model = make(CONFIG, representation_dim=7 if model_has else None, seed=5)
    pre_logits = ["pre_logits/kernel", "pre_logits/bias"]
    before = canonical_weights(model)
    if file_has != model_has:  # Loading is strict by default.
        match = "not in the model: pre_logits/kernel" if file_has else "missing: pre_logits/kernel"
        assert_refused(lambda: keras_vit.load_weights(model, path), model, match)
    report = keras_vit.load_weights(model, path, head="reset")
    found = canonical_weights(model)
    for name in pre_logits if model_has else ():
        np.testing.assert_array_equal(found[name], before[name])
        assert name in report.initialized
    for name in pre_logits:
        assert report.skipped.get(name) == ("the head is reset" if file_has else None)


def test_a_norm_behind_the_pooling_starts_afresh_with_a_new_head(saved):
    """MAE is fine-tuned like this: main_finetune.py of facebookresearch/mae drops the published final norm."""
    weights, path = saved("timm", EXACT)
    model = make(EXACT, pooling="avg", class_token=True, norm_placement="after_pooling", seed=5)
    assert_refused(lambda: keras_vit.load_weights(model, path), model, r"missing: pooled_norm/gamma \(12,\)")
    report = keras_vit.load_weights(model, path, head="reset")
    fresh = {HEAD[0]: np.zeros((12, 5)), HEAD[1]: np.zeros(5)}
    fresh |= {"pooled_norm/gamma": np.ones(12), "pooled_norm/beta": np.zeros(12)}
    dropped = ["encoder_norm/gamma", "encoder_norm/beta"]
    kept = {name: array for name, array in weights.items() if name not in dropped}
    assert_same_weights(model, {**kept, **fresh})
    assert sorted(report.initialized) == sorted(fresh)
    reasons = dict.fromkeys(dropped, "replaced by a new norm after the pooling")
    assert report.skipped == {**reasons, **dict.fromkeys(HEAD, "the head is reset")}
    assert (
        report.adapted["norm_placement"] == "the weights were made for 'before_pooling', the model has 'after_pooling'"
    )


def test_from_a_class_token_to_the_mean_of_the_patches(saved):
    weights, path = saved(config=CONFIG)
    model = make(CONFIG, pooling="avg", seed=5)
    report = keras_vit.load_weights(model, path)
    weights = dict(weights)
    weights.pop("class_token/token")
    assert_same_weights(model, {**weights, POSITIONS: weights[POSITIONS][1:]})
    assert report.skipped == {"class_token/token": "the model has no class token"}
    assert report.adapted == {
        "class_token": "left out: the model has no class token",
        POSITIONS: "row of the class token left out",
        "pooling": "the weights were made for 'token', the model has 'avg'",
    }


def test_positions_of_sines_take_the_place_of_learned_ones(saved):
    weights, path = saved("timm", EXACT)
    model = make(EXACT, position_embedding="sincos_2d", seed=5)
    report = keras_vit.load_weights(model, path)
    assert report.skipped == {POSITIONS: "the model's positions are 'sincos_2d'"}
    weights = dict(weights)
    weights.pop(POSITIONS)
    assert_same_weights(model, weights)


@pytest.mark.slow
def test_lists_all_that_does_not_fit(saved):
    _, path = saved()
    model = make(TWO_LAYERS.replace(mlp_dim=24, num_layers=3))
    message = assert_refused(
        lambda: keras_vit.load_weights(model, path), model, r"of another shape: encoder_block_0/mlp/hidden/kernel"
    )
    assert "missing: encoder_block_2/attention_norm/gamma (12,)" in message
    assert message.count("\n") == 20 + 1
    assert message.endswith("and 2 more")  # 16 arrays are missing, and 3 per block have another shape.


@pytest.mark.slow
def test_a_model_nested_in_another(saved):
    """Transfer learning: the nested model has no head, and the layers around it keep their weights."""
    weights, path = saved(config=CONFIG)
    base = outer = make(CONFIG, include_top=False, seed=5)
    kernels = []
    for _ in range(2):
        inputs, added = keras.Input(SHAPE), keras.layers.Dense(3)
        outer = keras.Model(inputs, added(outer(inputs)))
        kernels.append((added, added.get_weights()[0]))
    report = keras_vit.load_weights(outer, path)
    assert set(report.loaded) == weights.keys() - set(HEAD)
    assert_same_weights(base, {name: weights[name] for name in report.loaded})
    described, expected = (dataclasses.replace(keras_vit.describe(each), outputs={}) for each in (outer, base))
    assert described == expected
    assert keras_vit.describe(outer).source == str(path)
    for added, kernel in kernels:
        np.testing.assert_array_equal(added.get_weights()[0], kernel)


@pytest.mark.slow
def test_one_line_in_the_log_for_each_adaptation(saved, caplog):
    _, path = saved("timm", EXACT)
    caplog.set_level(logging.INFO, "keras_vit")
    model = make(EXACT, seed=5)
    keras_vit.load_weights(model, path)
    assert not caplog.records
    other = make(CONFIG, input_shape=(16, 12, 1), seed=5)
    report = keras_vit.load_weights(other, path, head="reset")
    assert report.adapted.keys() == {POSITIONS, "patch_embedding/kernel", "mlp"}
    expected = report.adapted | dict.fromkeys(HEAD, "not loaded from the file")
    lines = [record.getMessage() for record in caplog.records]
    assert sorted(lines) == sorted(f"{path}: {what}: {how}" for what, how in expected.items())
    quiet = {record.getMessage() for record in caplog.records if record.levelno < logging.WARNING}
    assert quiet == {f"{path}: {what}: not loaded from the file" for what in HEAD}  # `head="reset"` requests it.


def test_refuses_weights_that_the_model_cannot_hold(tmp_path):
    model = make(CONFIG)
    for path, value in (("encoder_norm", 7e4), ("predictions", -7e4)):  # A mixed policy keeps it in float32.
        model.get_layer(path).weights[0].assign(np.full_like(model.get_layer(path).weights[0], value))
    keras_vit.save_weights(model, tmp_path / "large.npz", "google")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        other = make(CONFIG)
    finally:
        keras.config.set_dtype_policy("float32")
    match = r"large\.npz: Weights become infinite in the precision .*: encoder_norm/gamma in float16\. .* set another"
    assert_refused(lambda: keras_vit.load_weights(other, tmp_path / "large.npz"), other, match)


def test_quantized_weights_are_of_no_published_format(saved, tmp_path):
    _, path = saved(config=CONFIG)
    model = make(CONFIG)
    quantize(model, "int8", filters="hidden")
    for refuse in (
        lambda: keras_vit.load_weights(model, path),
        lambda: keras_vit.save_weights(model, tmp_path / "a.npz", "google"),
    ):
        with pytest.raises(ValueError, match=r"was quantized by Keras.* before model\.quantize"):
            refuse()


@pytest.mark.slow
def test_describe_and_keras_files(saved, tmp_path):
    _, path = saved("timm", EXACT)
    model = make(EXACT, input_shape=(16, 12, 3), include_preprocessing=True, seed=5)
    before = keras_vit.describe(model)
    assert (before.source, before.adaptations, before.label_space, before.config) == (None, {}, None, EXACT)
    keras_vit.load_weights(model, path)
    after = keras_vit.describe(model)
    assert after.source == str(path)
    assert after.adaptations == {POSITIONS: "2 x 3 positions resampled to 4 x 4 (bicubic_antialias)"}
    assert after.pixels == {
        **{"mean": [0.1, 0.2, 0.4], "std": [0.25, 0.5, 0.75], "resize": [16, 12], "crop": None},
        **{"interpolation": "bicubic", "normalize": True},
    }
    assert after.config == before.config
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    assert keras_vit.describe(reloaded) == after
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 12, 3)).astype("uint8")
    np.testing.assert_array_equal(to_numpy(reloaded(pixels)), to_numpy(model(pixels)))


@pytest.mark.slow
@pytest.mark.each_backend
def test_functions_compiled_before_normalise_as_the_new_weights_need(saved):
    _, path = saved("timm", EXACT)
    model = make(EXACT, include_preprocessing=True, seed=5)
    outer = keras.Sequential([keras.Input(SHAPE), model])
    pixels = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype("uint8")
    before = [compiled.predict(pixels, verbose=0) for compiled in (model, outer)]
    keras_vit.load_weights(model, path)
    plain = keras_vit.from_pretrained(path, classifier_activation=None)
    expected = to_numpy(plain(keras_vit.preprocess_input(pixels, plain)))
    for compiled, old in zip((model, outer), before, strict=True):
        assert np.abs(expected - old).max() > 0.1
        assert_close(compiled.predict(pixels, verbose=0), expected)


def test_refuses_what_is_not_there(tmp_path):
    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="Build the model with"):
        keras_vit.load_weights(keras.Model(inputs, keras.layers.Dense(2)(inputs)), tmp_path)
    model = make_shell(CONFIG)
    for source, error in ((tmp_path / "no.npz", FileNotFoundError), ("./no", FileNotFoundError), ("no", ValueError)):
        with pytest.raises(error, match="no"):
            keras_vit.load_weights(model, source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"It contains: nothing\. Pass the path"):
        keras_vit.load_weights(model, tmp_path / "empty")


SPOILED = "encoder_block_1/mlp/output/bias"


def place_of(values, path):
    """(file, array name) of an array with these values."""
    for file, arrays in contents(path).items():
        for name in arrays if not file.endswith(".json") else ():
            if np.array_equal(arrays[name], values):
                return path / file if path.is_dir() else path, name
    raise AssertionError("the array was not saved")


@pytest.mark.parametrize("format", rest_slow(list(FORMATS)))
def test_names_what_does_not_fit(format, saved, copy_of):
    """The error names missing and unknown arrays and arrays of another shape, and nothing is loaded."""
    weights, path = saved(format, FORMATS[format])
    path, model = copy_of(path), make(FORMATS[format], seed=7)
    file, name = place_of(weights[SPOILED], path)
    original = file.read_bytes()
    misspelt = f"{name[:-3]}{name[-2:]}"
    for match, change in {
        rf"missing: {SPOILED} \(12,\)": {},
        rf"another shape: {SPOILED} is \(13,\) .* \(12,\) in": {name: np.ones(13, "float32")},
        "1 arrays with unknown names: .*1.*_extra": {name: np.ones(12, "float32"), f"{name}_extra": np.ones(12)},
        "unknown names: .* Did you mean '": {misspelt: np.ones(12, "float32")},
    }.items():
        edit(file, lambda arrays, change=change: {key: arrays[key] for key in arrays if key != name} | change)
        message = assert_refused(lambda: keras_vit.load_weights(model, path), model, match)
        assert str(path) in message
        if match.startswith("another shape"):
            with pytest.raises(ValueError, match=match):
                keras_vit.from_pretrained(path, input_shape=SHAPE)
        file.write_bytes(original)
    assert re.search("Did you mean '(.*?)'", message)[1][-12:] == name[-12:]


def test_scalars_take_the_place_of_initial_values():
    """Such as the number of calls of an `EoMTHead`."""
    with in_place_of_initial_values() as assign_later:
        count = keras.layers.Layer().add_weight((), "zeros")
        assign_later({"count": np.array(5.0)}, {"count": count})
    assert (keras.ops.shape(count.value), float(to_numpy(count))) == ((), 5.0)
