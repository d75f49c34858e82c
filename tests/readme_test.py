"""What the README says holds."""

import pathlib
import re

import keras_vit
from benchmarks.models import table
from training import recipes
from training.__main__ import main

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_table_of_models_is_what_its_command_prints():
    assert table() in README


def test_python_example_names_what_exists():
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    compile(code, "README.md", "exec")
    assert set(re.findall(r"keras_vit\.(\w+)\(", code)) <= set(keras_vit.__all__)


def test_commands_are_accepted_as_they_stand(capsys):
    commands = re.findall(r"^python -m training train (.*)$", README, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        arguments = command.split()
        assert arguments[0] in recipes.NAMES
        assert not main(["train", *arguments, *([] if "--show" in arguments else ["--show"])])


def test_files_that_are_linked_or_drawn_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link).exists() for link in links)
    [tree] = re.findall(r"```\n(keras_vit/ .*?)```", README, re.DOTALL)
    folder = pathlib.Path()
    for line in tree.splitlines():
        name = line.split()[0]
        folder = pathlib.Path(name) if not line.startswith(" ") else folder
        assert (ROOT / (name if not line.startswith(" ") else folder / name)).exists(), line
