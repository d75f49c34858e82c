"""The folder of a run. A run resumes only with the settings and data that it began with."""

import errno
import importlib.metadata
import importlib.util
import json
import os

import filelock
import pytest

from training import recipes
from training.data.dataset import Dataset
from training.data.sources import IndexedSource
from training.engine.distribution import Engine
from training.errors import InputError
from training.recipe.assignments import override
from training.runs import provenance
from training.runs.folder import hold, is_finished, open_run

SIZES = {"train": 10, "validation": 2, "test": 2}
OTHER_SIZES = {"train": 14, "validation": 2, "test": 3}


@pytest.fixture
def begin(tmp_path):
    """Begins or resumes a run with the given classes and numbers of images; returns its `Run`."""
    recipe = override(recipes.load("folder"), ["data.directory=photographs"])

    def begin(class_names=("ant", "bee"), sizes=SIZES):
        dataset = Dataset(class_names, {split: IndexedSource(size, None) for split, size in sizes.items()})
        return open_run(recipe, dataset, tmp_path, tmp_path / "run", Engine(None))

    return begin


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"class_names": ("ant", "wasp")}, ["classes, gone: bee; new: wasp"]),
        ({"class_names": ("bee", "ant")}, ["classes, in another order"]),
        (
            {"class_names": ("ant", "wasp"), "sizes": OTHER_SIZES},
            ["test images: were 2, are 3", "train images: were 10, are 14", "classes, gone: bee; new: wasp"],
        ),
    ],
)
def test_a_run_does_not_go_on_with_other_data(begin, data, says):
    run = begin()
    before = {path: path.is_file() and path.read_bytes() for path in run.folder.rglob("*")}
    assert begin() == run  # Nothing has changed, so the run resumes.
    lines = "".join(f"\n  {line}" for line in says)
    with pytest.raises(InputError) as error:
        begin(**data)
    assert str(error.value) == (
        f"run={run.folder} was started with other data:{lines}\nTo resume it, restore the data. For a new run, name "
        f"another folder, or omit run=PATH."
    )
    assert {path: path.is_file() and path.read_bytes() for path in run.folder.rglob("*")} == before


def test_a_run_begun_before_a_field_was_added_goes_on(begin):
    run = begin()
    facts = json.loads(run.recipe.read_text())
    del facts["recipe"]["distillation"], facts["recipe"]["data"]["train_images"]
    run.recipe.write_text(json.dumps(facts))
    recipe = recipes.load(str(run.recipe))
    assert not is_finished(recipe, run.folder.parent, run.folder)
    changed = override(recipe, ["data.train_images=3"])
    with pytest.raises(InputError, match=r"another recipe:\n  data\.train_images: was none, is 3\nName another"):
        is_finished(changed, run.folder.parent, run.folder)


@pytest.mark.parametrize("problem", [OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)), NotImplementedError("no flock")])
def test_a_file_system_without_locks_is_said(begin, monkeypatch, capsys, problem):
    def refuse(lock, timeout):
        raise problem

    run = begin()
    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with hold(run):
        assert f"{run.folder} cannot be locked: {getattr(problem, 'strerror', problem)}" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_to(begin, monkeypatch):
    run = begin()
    run.lock.mkdir()
    with pytest.raises(InputError, match=r"run\.lock cannot be written: Is a directory"), hold(run):
        pass


@pytest.mark.combination("tensorflow-cpu in place of tensorflow", "trains; the version is recorded")
def test_the_version_of_tensorflow_under_another_name(begin, monkeypatch):
    usual = provenance.version

    def version(package):
        if package == "tensorflow":
            raise importlib.metadata.PackageNotFoundError(package)
        return usual(package)

    monkeypatch.setattr(provenance, "version", version)
    versions = json.loads(begin().recipe.read_text())["versions"]
    assert versions["tensorflow"] == importlib.import_module("tensorflow").__version__
