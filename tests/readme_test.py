"""The statements in the README and on the first pages of the documentation are true."""

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.documented_code import check_names, publish
from training import recipes
from training.__main__ import main
from training.studies import papers as studies

ROOT = pathlib.Path(__file__).parents[1]
README, STARTED, TRAINING = (
    (ROOT / name).read_text() for name in ("README.md", "docs/getting_started.md", "docs/training.md")
)


def _python(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("code", [code for code in _python(README + STARTED) if "keras_vit" in code])
def test_names_and_arguments_in_python_examples(code):
    """Each name exists and accepts these arguments. Slow tests run the examples."""
    assert len(code.splitlines()) <= 11
    check_names(code)


@pytest.mark.slow
def test_examples_of_getting_started_run(tmp_path, monkeypatch, capsys):
    import tensorflow as tf

    publish(tmp_path, monkeypatch)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3)).astype("float32")
    given = {"photographs": tf.data.Dataset.from_tensors((pixels, np.array([3, 7]))), "class_names": list("abcdefghij")}
    given |= {"unlabelled": pixels, "pixels": pixels}
    for code in _python(STARTED):
        exec(compile(code, "getting_started.md", "exec"), dict(given))
    printed = capsys.readouterr().out
    assert re.search(r"^[\w ]+: \d+\.\d%$", printed, re.MULTILINE)
    assert "14 x 14 positions resampled to 20 x 16 (align_corners)" in printed
    assert "200 {} {}" in printed


@pytest.mark.slow
def test_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    publish(tmp_path, monkeypatch)
    for name in ("cat", "dog"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for number in range(3):
            keras.utils.save_img(tmp_path / "photographs" / name / f"{number}.jpg", np.full((60, 80, 3), 99.0))
    classify, fine_tune, use = _python(README)
    exec(compile(classify, "README.md", "exec"), {})
    assert re.search(r"\[\[\('n\d{8}', '\w+', ", capsys.readouterr().out)
    exec(compile(fine_tune, "README.md", "exec"), {})
    assert (tmp_path / "served/1/assets/labels.txt").read_text().split() == ["cat", "dog"]
    exec(compile(use, "README.md", "exec"), {})
    assert re.search(r"b'(cat|dog)'", capsys.readouterr().out)


@pytest.mark.parametrize("text", [README, TRAINING], ids=["README", "training"])
def test_commands_are_accepted_as_they_stand(text, capsys):
    commands = re.findall(r"^(?:\.venv/bin/)?python -m training train (.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        arguments = command.split()
        assert arguments[0] in recipes.NAMES
        assert not main(["train", *arguments, *([] if "--show" in arguments else ["--show"])])


def test_all_studies_are_named():
    [line] = re.findall(r"^python -m training study (.*)$", TRAINING, re.MULTILINE)
    assert sorted(re.sub(" *# or", ",", line).split(", ")) == sorted(studies.NAMES)


def test_number_of_published_weights():
    assert f"knows {len(keras_vit.list_weights())} published weights" in README


def test_files_that_are_linked_or_drawn_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link.partition("#")[0].replace("\n", "")).exists() for link in links)


def test_where_things_are():
    [tree] = re.findall(r"```\n(keras_vit/ .*?)```", (ROOT / "docs/project/where_things_are.md").read_text(), re.DOTALL)
    folder = pathlib.Path()
    for line in tree.splitlines():
        name = line.split()[0]
        folder = pathlib.Path(name) if not line.startswith(" ") else folder
        assert (ROOT / (name if not line.startswith(" ") else folder / name)).exists(), line
