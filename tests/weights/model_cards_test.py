"""Model cards are valid for the Hub, claim only what is known, and contain code that runs."""

import dataclasses
import importlib.util
import json
import re
import warnings

import keras
import numpy as np
import pytest
from huggingface_hub import ModelCard

import keras_vit
from keras_vit.export.cards import card_format
from keras_vit.licences import warn_if_restricted
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.weights import opening
from keras_vit.weights.catalogue.lookup import entry_at, exact_entry, get_entry
from keras_vit.weights.model_cards import model_card
from tests.test_case import canonical_weights, slow_except
from tests.weights.converter_case import assert_same_weights, make, make_shell
from tests.weights.saving_test import FORMATS, WRITTEN

pytestmark = pytest.mark.filterwarnings("ignore::keras_vit.LicenceWarning")
ONNX = card_format("onnx", ["probabilities"])
MAE, DEIT = "Ti/16@mae", "Ti/16@deit"


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Makes files of a small model available as a name of the catalogue, and returns its entry."""
    small = FORMATS["timm"].replace(num_layers=1, patch_size=16)
    monkeypatch.setitem(keras_vit.VARIANTS, "Ti/16", small)
    keras_vit.save_weights(make(small, (224, 224, 3), classes=1000), tmp_path / "published", "timm")
    entry = get_entry(DEIT)
    entries = {
        DEIT: entry,
        MAE: dataclasses.replace(entry, name=MAE, licence="CC-BY-NC-4.0", url="hf://somebody/mae", top1=None),
    }
    for module, name in ((opening, "get_entry"), (keras_vit.weights.model_cards, "exact_entry")):
        monkeypatch.setattr(module, name, lambda name, variant=None: entries.get(name) or exact_entry(name, variant))
    monkeypatch.setattr(
        opening, "locate", lambda source, *_: tmp_path / "published" if "://" in str(source) else source
    )
    warn_if_restricted.cache_clear()
    return entries


def card_of(folder):
    card = ModelCard.load(folder / "README.md")
    return card.data.to_dict(), card.text


def code_of(text):
    """{program: code} of the section on loading."""
    return dict(re.findall(r"^In (\w[\w ]*):\n\n```python\n(.*?)```$", text, re.DOTALL | re.MULTILINE))


def licensed(model, licence="CC-BY-NC-4.0"):
    preprocessing_layer(model).origin = {"source": "somewhere", "licence": licence, "checksum": None}
    return model


@pytest.mark.slow
def test_restricted_weights(published, tmp_path):
    with pytest.warns(keras_vit.LicenceWarning, match=f"'{MAE}' have the licence CC-BY-NC-4.0. Commercial use is not"):
        model = keras_vit.from_pretrained(MAE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", keras_vit.LicenceWarning)
        finetuned = keras_vit.from_pretrained(MAE, classes=3)
        finetuned.save(tmp_path / "finetuned.keras")
        again = keras_vit.from_pretrained(tmp_path / "finetuned.keras", classes=4)
    for loaded in (model, finetuned, again, keras.saving.load_model(tmp_path / "finetuned.keras")):
        assert keras_vit.describe(loaded).licence == "CC-BY-NC-4.0"
    keras_vit.save_weights(again, tmp_path / "again", "timm", card=True)
    data, text = card_of(tmp_path / "again")
    assert (data["license"], data["base_model"]) == ("cc-by-nc-4.0", "somebody/mae")
    assert "Commercial use is not permitted. The restriction also applies to these weights." in text
    assert keras_vit.describe(keras_vit.from_pretrained(tmp_path / "again")).licence == "CC-BY-NC-4.0"


def test_published_accuracy_is_claimed_for_unchanged_weights_only(published, tmp_path):
    model = keras_vit.from_pretrained(DEIT)
    model.save(tmp_path / "saved.keras")
    claim = r"Published for these weights: 72\.20 % top-1 .* \(DeiT README, 224 px\)\. It was not measured"
    changed = [keras_vit.from_pretrained(DEIT, **change) for change in ({"input_shape": (240, 224, 3)}, {"classes": 3})]
    for number, loaded in enumerate([model, keras_vit.from_pretrained(tmp_path / "saved.keras"), *changed]):
        is_unchanged = number < 2
        keras_vit.save_weights(loaded, tmp_path / str(number), "timm", card=True)
        data, text = card_of(tmp_path / str(number))
        assert bool(re.search(claim, text)) == is_unchanged
        # The licence of changed weights is for their author to choose.
        assert data.get("license") == ("apache-2.0" if is_unchanged else None)
        assert "model-index" not in data
        assert data.get("datasets") == (None if loaded.output_shape[-1] == 3 else ["imagenet-1k"])
        assert data["base_model"] == "timm/deit_tiny_patch16_224.fb_in1k"
    variable = model.get_layer("encoder_norm").weights[0]
    variable.assign(variable + 1e-3)
    keras_vit.save_weights(model, tmp_path / "0", "timm", card=True)
    assert "No metrics were measured." in card_of(tmp_path / "0")[1]


@pytest.mark.parametrize("format", slow_except(["keras_hub"], FORMATS))
def test_formats(format, tmp_path, monkeypatch):
    """The front matter is valid, the licence is kept, and the code of this package loads the model."""
    model = licensed(make(FORMATS[format].replace(num_layers=1)))
    name = "no: \"ours\" #1 - [é, {猫}] 🐈\n'yes'"
    evaluation = keras_vit.Evaluation(name, {"accuracy": 0.9375}, "validation", 32)
    suffix = WRITTEN[format].file_suffix
    keras_vit.save_weights(model, tmp_path / f"a{suffix}" if suffix else tmp_path, format, card=evaluation)
    data, text = card_of(tmp_path)
    assert (data["license"], data["pipeline_tag"]) == ("cc-by-nc-4.0", "image-classification")
    [result] = ModelCard.load(tmp_path / "README.md").data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (name, "accuracy", 0.9375)
    assert "| accuracy | 0.9375 |" in text
    for code in code_of(text).values():
        compile(code, "card", "exec")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code_of(text)["keras_vit"], names)
    assert_same_weights(names["model"], canonical_weights(model))
    assert keras_vit.describe(names["model"]).licence == "CC-BY-NC-4.0"


def test_without_huggingface_hub_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"A model card needs huggingface_hub: pip install huggingface_hub\. Or"):
        keras_vit.save_weights(make(num_layers=1), tmp_path / "a.npz", "google", card=True)
    assert not list(tmp_path.iterdir())


def test_other_licences_and_headless_models(tmp_path):
    model = licensed(make(FORMATS["timm"], num_layers=1, include_top=False), "ours-noncommercial")
    keras_vit.save_weights(model, tmp_path, "timm", card=True)
    data, _ = card_of(tmp_path)
    assert (data["license"], data["license_name"]) == ("other", "ours-noncommercial")
    assert data["pipeline_tag"] == "image-feature-extraction"


def test_never_replaces_another_card(tmp_path):
    model, card = make(num_layers=1), tmp_path / "README.md"
    keras_vit.save_weights(model, tmp_path / "a.npz", "google", card=True)
    written = card.read_text()
    keras_vit.save_weights(model, tmp_path / "a.npz", "google", card=True)
    assert card.read_text() == written
    message = r"README\.md is not the model card that keras_vit wrote for .*, or it was changed\. It is not replaced"
    changed = written.replace("## Weights", "## My weights")
    for text, name in ((written, "b.npz"), (changed, "a.npz"), ("Mine", "a.npz")):
        card.write_text(text)
        (tmp_path / "a.npz").unlink(missing_ok=True)
        with pytest.raises(FileExistsError, match=message):
            keras_vit.save_weights(model, tmp_path / name, "google", card=True)
        assert card.read_text() == text
        assert not (tmp_path / name).exists()
    with pytest.raises(ValueError, match=r"card must be True, False or a keras_vit\.Evaluation\. Received: 'yes'"):
        keras_vit.save_weights(model, tmp_path / "c.npz", "google", card="yes")


def test_weights_without_a_card_remove_the_card_of_the_replaced_weights(tmp_path):
    path, card = tmp_path / "a.npz", tmp_path / "README.md"
    keras_vit.save_weights(licensed(make(num_layers=1)), path, "google", card=True)
    changed = card.read_text().replace("## Weights", "## My weights")
    other = make(num_layers=1, seed=2)
    keras_vit.save_weights(other, path, "google")
    assert not card.exists()
    card.write_text(changed)
    keras_vit.save_weights(other, path, "google")
    assert card.read_text() == changed


def test_the_task_of_a_preset_has_no_licence(tmp_path):
    keras_vit.save_weights(licensed(make(FORMATS["keras_hub"], num_layers=1)), tmp_path, "keras_hub")
    assert json.loads((tmp_path / "config.json").read_text())["license"] == "CC-BY-NC-4.0"
    assert "license" not in (tmp_path / "task.json").read_text()


def test_names_of_users_and_files_are_not_markdown(tmp_path):
    text = r"[free](https://x.y) `a` *b* _c_ <b> d|e \ f" + "\ng"
    shown = r"\[free\](https://x.y) \`a\` \*b\* \_c\_ \<b> d\|e \\ f g"
    model = licensed(make(FORMATS["timm"], num_layers=1))
    model.name = "a_[b]"
    layer = preprocessing_layer(model)
    layer.origin["source"], layer.adaptations, layer.label_space = text, {text: text}, [text] * model.output_shape[-1]
    evaluation = keras_vit.Evaluation(text, {text: 0.5}, text)
    keras_vit.save_weights(model, tmp_path, "timm", card=evaluation)
    card = card_of(tmp_path)[1]
    for line in (
        r"# a\_\[b\]",
        f"* Source: {shown}. It is not recorded whether",
        f"* Adapted: {shown}: {shown}\n",
        f"({shown}, {shown}",
        f"Measured on the {shown} split of {shown}:",
        f"| {shown} | 0.5000 |",
    ):
        assert line in card
    assert "[free]" not in card


@pytest.mark.combination("names with marks that reverse the text, in a model card", "the card without the marks")
def test_hidden_characters_are_left_out(tmp_path):
    name = "a\u202eb\x07\u2066c\ud800\u200d"
    model = licensed(make_shell())
    model.name = name
    text = model_card(model, ONNX, "a.onnx", keras_vit.Evaluation("a\u202eb", {"c\u202ed": 0.5}), 5)
    assert "# abc\u200d\n" in text
    assert "| cd | 0.5000 |" in text
    assert "type: ab" in text
    text.encode()


def test_classes_are_those_of_the_head():
    """A head that was added later does not have the classes of the published weights."""
    features = make(FORMATS["timm"], num_layers=1, include_top=False)
    preprocessing_layer(features).label_space = "imagenet1k"
    model = keras.Sequential([features, keras.layers.Dense(5)])
    text = model_card(model, ONNX, "a.onnx", True, 5)
    assert "| classes | 5 |" in text
    assert "datasets" not in text
    assert "| classes | 1000 (imagenet1k) |" in model_card(model, ONNX, "a.onnx", True, 1000)
    assert "| classes | 2 (cat, dog) |" in model_card(model, ONNX, "a.onnx", True, 2, class_names=["cat", "dog"])


def test_fields_of_an_evaluation_are_checked():
    for metrics in (
        {"accuracy": "93 %"},
        {"accuracy": float("nan")},
        {1: 0.5},
        {"\ud800": 0.5},
        {},
        [("accuracy", 0.5)],
    ):
        with pytest.raises(ValueError, match=r"metrics must be a dictionary of names and finite numbers.* Received: "):
            keras_vit.Evaluation("pets", metrics)
    for name, value in (("dataset", None), ("split", ""), ("dataset", "\ud800"), ("num_images", "many")):
        with pytest.raises(ValueError, match=f"{name} must be a .* Received: {re.escape(repr(value))}"):
            keras_vit.Evaluation(**{"dataset": "pets", "metrics": {"accuracy": np.float32(0.5)}, name: value})


@pytest.mark.slow
def test_published_accuracy_is_not_claimed_for_other_settings(published):
    """The weights of these models are the published ones."""
    model = keras_vit.from_pretrained(DEIT)
    layer = preprocessing_layer(model)
    architecture = layer.architecture
    for changes in ({}, {"token_merging": 2}, {"mlp": "gelu_tanh"}, {"layer_norm_epsilon": 1e-5}):
        layer.architecture = architecture | changes
        text = model_card(model, ONNX, "a.onnx", True, 1000)
        assert "The weights are unchanged" in text
        assert ("Published for these weights" in text) == (not changes)


def test_an_origin_that_is_not_recorded_completely():
    model = make(num_layers=1)
    text = model_card(model, ONNX, "a.onnx", True, 5)
    assert "It is not recorded from which weights the model comes. Their licence is not known." in text
    text = model_card(licensed(model), ONNX, "a.onnx", True, 5)
    assert "It is not recorded whether the weights were changed." in text
    assert "CC-BY-NC-4.0. Commercial use is not permitted. The restriction also applies to these weights." in text


def test_sources_and_precisions():
    """The folders of local weights are not shown."""
    model = licensed(make_shell())
    for format, precision, sentence in (
        ("openvino", "int8", "computes in int8"),
        ("saved_model", "int8", "stores weights in int8"),
        ("litert", "float16", "stores weights in float16"),
    ):
        assert f"\n* The file {sentence}.\n" in model_card(
            model, card_format(format, ["probabilities"]), "a", True, 5, precision
        )
    for source, shown in (
        ("/home/me/private/a.npz", "a.npz"),
        ("C:\\private\\a.npz", "a.npz"),
        ("~/private/pets/", "pets"),
        (".", "."),
        ("hf://owner/repository", "hf://owner/repository"),
        (DEIT, DEIT),
    ):
        preprocessing_layer(model).origin["source"] = source
        text = model_card(model, ONNX, "a.onnx", True, 5)
        assert re.search(rf"^\* Source: {re.escape(shown)}[ .]", text, re.MULTILINE)
        assert "private" not in text


def test_entries_at_addresses():
    stem = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_224"
    for address, name in {
        "hf://timm/vit_base_patch16_224.mae": "B/16@mae",
        "hf://timm/vit_base_patch16_224.mae@main": "B/16@mae",
        "hf://timm/vit_base_patch16_224.mae/model.safetensors": "B/16@mae",
        "gs://vit_models/sam/ViT-B_16.npz": "B/16@sam",
        f"gs://vit_models/augreg/{stem}.npz": f"B/16@{stem}",
    }.items():
        entry, has_its_weights = entry_at(address)
        assert (entry.name, has_its_weights) == (name, True)
    for address in ("", "vit.npz", "hf://timm/vit_base_patch16_224.mae2", f"gs://mine/{stem}.npz"):
        assert entry_at(address) == (None, False)


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["@v2/model.safetensors", "/other.safetensors"])
def test_another_revision_or_file_has_only_the_licence(rest, published, tmp_path):
    source = get_entry(DEIT).url + rest
    model = keras_vit.from_pretrained(source)
    assert preprocessing_layer(model).origin["source"] == source
    assert keras_vit.describe(model).licence == "Apache-2.0"
    keras_vit.save_weights(model, tmp_path / "saved", "timm", card=True)
    assert "No metrics were measured." in card_of(tmp_path / "saved")[1]
