"""The model cards of exports: their code loads the files, and their front matter is valid for the Hub."""

import re
import shutil

import pytest
from huggingface_hub import ModelCard

import keras_vit
from keras_vit.export.parity import read_images
from tests.export.exports import LABELS, TOP_K
from tests.test_case import TENSORFLOW


def run_code(folder, monkeypatch):
    """Runs the loading code of a card in its folder. Returns the card's front matter, its text and the variables."""
    card = ModelCard.load(folder / "README.md")
    [code] = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    monkeypatch.chdir(folder)
    names = {}
    exec(code, names)
    assert "keras_vit cannot load these files" in card.text
    return card.data.to_dict(), card.text, names


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="the file does not depend on the backend")
def test_a_saved_model(pets, tmp_path, monkeypatch):
    folder = shutil.copytree(pets[1], tmp_path / "1")
    (folder / "photo.jpg").write_bytes(read_images(None)[0])
    data, text, names = run_code(folder, monkeypatch)
    assert (data["library_name"], data["pipeline_tag"]) == ("tensorflow", "image-classification")
    assert "license" not in data
    assert "The SavedModel does all steps itself" in text
    assert f"| classes | {len(LABELS)} ({', '.join(LABELS)}) |" in text
    assert names["answers"]["labels"].shape == (1, TOP_K)


@pytest.mark.parametrize("format", ["onnx", "litert", "openvino"])
def test_other_runtimes(format, request, monkeypatch):
    model, written = request.getfixturevalue(f"{format}_file")
    data, text, names = run_code(written.path.parent, monkeypatch)
    assert data["library_name"] == format
    assert "It takes pixels from 0 to 255" in text
    assert names["probabilities"].shape == (1, model.output_shape[-1])


def test_a_card_that_would_replace_another_is_refused_before_the_export(pets, tmp_path):
    (tmp_path / "README.md").write_text("Mine")
    with pytest.raises(FileExistsError, match=r"README\.md is not the model card that keras_vit wrote for a\.onnx"):
        keras_vit.export_model(pets[0], tmp_path / "a.onnx", "onnx", card=True)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "README.md").write_text("Mine")
    # Without a card, the version would be replaced with this file in it, so the message does not advise it.
    message = r"1/README\.md is not the model card .*Move it, or choose another folder\.$"
    with pytest.raises(FileExistsError, match=message):
        keras_vit.export_saved_model(pets[0], tmp_path, overwrite=True, card=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "README.md"]


@pytest.mark.slow
def test_a_file_without_a_card_removes_the_card_of_the_replaced_file(onnx_file, tmp_path):
    model, written = onnx_file
    for name in (written.path.name, "README.md"):
        shutil.copy(written.path.with_name(name), tmp_path / name)
    keras_vit.export_model(model, tmp_path / written.path.name, "onnx", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [written.path.name]
