"""The folder that a run leaves, and what it says of itself."""

import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import pathlib
import platform
import shlex
import subprocess
import sys

from training.config import to_dict
from training.errors import InputError

_PACKAGES = (
    "keras-vit-applications",
    "keras",
    "tensorflow",
    "tensorflow-datasets",
    "numpy",
    "scikit-learn",
    "matplotlib",
)


@dataclasses.dataclass(frozen=True)
class Run:
    """The places in a run's folder."""

    folder: pathlib.Path

    recipe = property(lambda self: self.folder / "recipe.json")
    history = property(lambda self: self.folder / "history.csv")
    tensorboard = property(lambda self: self.folder / "tensorboard")
    checkpoints = property(lambda self: self.folder / "checkpoints")
    model = property(lambda self: self.folder / "model.keras")
    export = property(lambda self: self.folder / "export")
    figures = property(lambda self: self.folder / "figures")
    samples = property(lambda self: self.folder / "samples")
    report = property(lambda self: self.folder / "report.html")


def new_run(recipe, class_names, runs="runs"):
    """Makes the folder `<runs>/<recipe>-<time>` with everything that is needed to repeat the run in `recipe.json`."""
    started = datetime.datetime.now().astimezone()
    folder = _new_folder(pathlib.Path(runs), f"{recipe.name}-{started:%Y%m%d-%H%M%S}")
    run = Run(folder)
    for place in (run.checkpoints, run.figures, run.samples):
        place.mkdir()
    facts = {
        "recipe": to_dict(recipe),
        "class_names": class_names,
        "command": shlex.join(["python", "-m", "training", *sys.argv[1:]]),
        "started": started.isoformat(timespec="seconds"),
        "git": _git_state(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": platform.platform(),
    }
    run.recipe.write_text(json.dumps(facts, indent=2) + "\n")
    return run


def make_runs_folder(runs):
    """Makes the folder of all runs, or refuses it before any work."""
    try:
        pathlib.Path(runs).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Runs cannot be kept in {runs}: {error.strerror}. Name another folder with --runs.") from None


def _new_folder(parent, name):
    for attempt in itertools.count(1):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue  # Another run began in the same second.


def add_result(run, **result):
    """Adds what came out of a run to its `recipe.json`."""
    facts = json.loads(run.recipe.read_text())
    run.recipe.write_text(json.dumps(facts | {"result": result}, indent=2) + "\n")


def read_class_names(run):
    """The names of the classes that a run learned, or `None` if the folder is no run's."""
    return json.loads(run.recipe.read_text())["class_names"] if run.recipe.is_file() else None


def load_model(path):
    """The model of a `.keras` file."""
    import keras

    import keras_vit  # noqa: F401  Its layers are found by name.

    if not path.is_file():
        raise InputError(f"{path} does not exist. Give a run's folder, as training leaves it, or a .keras file.")
    try:
        return keras.models.load_model(path)
    except (ValueError, OSError, TypeError) as error:
        raise InputError(f"{path} is not a model that Keras can load: {error}") from None


def _git_state():
    root = pathlib.Path(__file__).parent

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain").splitlines()}
    except (OSError, subprocess.CalledProcessError):
        return None  # No git, or not a clone.
