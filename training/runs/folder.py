"""The folder that a run leaves, and what it says of itself."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

from training.errors import InputError, shortened_names
from training.files import write_text
from training.recipe.assignments import as_text, from_dict, leaves, read_facts
from training.recipe.config import to_dict

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
    lock = property(lambda self: self.folder / "run.lock")
    history = property(lambda self: self.folder / "history.csv")
    tensorboard = property(lambda self: self.folder / "tensorboard")
    checkpoints = property(lambda self: self.folder / "checkpoints")
    model = property(lambda self: self.folder / "model.keras")
    export = property(lambda self: self.folder / "export")
    figures = property(lambda self: self.folder / "figures")
    samples = property(lambda self: self.folder / "samples")
    report = property(lambda self: self.folder / "report.html")
    places = property(lambda self: (self.checkpoints, self.figures, self.samples, self.tensorboard))


def is_finished(recipe, runs, folder):
    """Whether the run in a folder is finished. Refuses, before any work, what `open_run` could not do.

    Raises:
        InputError: If the folder is another recipe's run (with the differences), or no run's at all.
    """
    if folder is None:
        _make_folder(pathlib.Path(runs))
        return False
    run = Run(pathlib.Path(folder))
    if not run.recipe.is_file():
        strangers = {path.name for path in run.folder.iterdir()} if run.folder.is_dir() else set()
        strangers -= {path.name for path in (run.lock, *run.places)}
        strangers = sorted(name for name in strangers if not name.startswith(f"unfinished-{run.recipe.name}-"))
        if strangers:
            raise InputError(f"run={folder} holds other things: {', '.join(strangers[:5])}. Name an empty folder.")
        return False
    facts = read_facts(run.recipe)
    # Completed as it is read: a run may have been begun before there were some of the fields.
    was, now = (dict(leaves(to_dict(each))) for each in (from_dict(facts["recipe"]), recipe))
    differences = [
        f"\n  {name}: was {as_text(was.get(name))}, is {as_text(now.get(name))}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]
    if differences:
        raise InputError(f"run={folder} was begun with another recipe:{''.join(differences)}\nName another folder.")
    return "result" in facts


def new_folder(recipe, runs, engine):
    """The path of a new folder for a run, `<runs>/<recipe>-<time>`.

    Raises:
        InputError: If there are several processes: they need to be given one, which all of them see.
    """
    if engine.num_processes > 1:
        raise InputError("Several processes need the folder of their run: run=PATH, where all of them see it.")
    name = f"{recipe.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    for attempt in itertools.count(1):
        folder = pathlib.Path(runs) / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue  # Another run began in the same second.


@contextlib.contextmanager
def hold(run):
    """Keeps other processes from working on a run. The system lets go of it when this process ends, however it does.

    Nothing may be written before: two processes could begin two runs in one folder.

    Raises:
        InputError: If another process works on it, or its folder cannot be written to.
    """
    _make_folder(run.folder)
    with _locked(run):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                run.lock.unlink()  # While it is locked.


def _locked(run):
    """The open lock file of a run, locked if its file system has locks."""
    while True:
        try:
            file = open(run.lock, "a")  # noqa: SIM115  Its caller closes it.
        except OSError as error:
            raise InputError(f"{run.lock} cannot be written: {error.strerror}.") from None
        try:
            import fcntl  # There is none on Windows.

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.close()
            raise InputError(
                f"run={run.folder} is being worked on by another process. Wait for it, or stop it."
            ) from None
        except (ImportError, OSError) as error:
            # There are file systems without locks.
            problem = getattr(error, "strerror", error)
            print(f"{run.folder} cannot be locked: {problem}. See that no other process works on it.")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(run.lock)):
                return file
        file.close()  # Another process ended, and removed it, between the two steps.


def open_run(recipe, dataset, runs, folder, engine):
    """The folder of a run: the one that is named, or a new `<runs>/<recipe>-<time>`.

    What is needed to repeat the run is in its `recipe.json`.

    Raises:
        InputError: If there are several processes and no folder, the run was begun with another recipe or other data,
            or another process has finished it meanwhile.
    """
    run = Run(pathlib.Path(folder or new_folder(recipe, runs, engine)))
    if run.recipe.is_file():
        if is_finished(recipe, runs, run.folder):
            raise InputError(f"run={run.folder} was finished by another process meanwhile: {run.report}.")
        _check_data(run, dataset)
    if engine.is_chief:
        for place in run.places:
            _make_folder(place)
        if not run.recipe.is_file():
            write_text(run.recipe, json.dumps(_facts(recipe, dataset), indent=2) + "\n")
    engine.barrier()
    return run


def _check_data(run, dataset):
    """Refuses data that changed since the run began: its labels and batches would mean something else from here on."""
    facts, names, sizes = read_facts(run.recipe), list(dataset.class_names), _sizes(dataset)
    # Runs begun before sizes were written have none to compare.
    begun_names, begun_sizes = facts.get("class_names", names), facts.get("num_images", sizes)
    differences = [
        f"{split} images: were {begun_sizes.get(split, 0):,}, are {sizes.get(split, 0):,}"
        for split in sorted(begun_sizes.keys() | sizes.keys())
        if begun_sizes.get(split) != sizes.get(split)
    ]
    if begun_names != names:
        changes = {"gone": set(begun_names) - set(names), "new": set(names) - set(begun_names)}
        found = [f"{what}: {shortened_names(sorted(which))}" for what, which in changes.items() if which]
        differences.append(f"classes, {'; '.join(found) or 'in another order'}")
    if differences:
        lines = "".join(f"\n  {difference}" for difference in differences)
        raise InputError(
            f"run={run.folder} was begun with other data:{lines}\nTo go on, put the data back as they were. For a new "
            f"run name another folder, or none."
        )


def _sizes(dataset):
    return {name: source.size for name, source in dataset.splits.items()}


def _facts(recipe, dataset):
    return {
        "recipe": to_dict(recipe),
        "class_names": dataset.class_names,
        "num_images": _sizes(dataset),
        "command": shlex.join(["python", "-m", "training", *sys.argv[1:]]),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_state(),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": platform.platform(),
    }


def resume_command(run):
    """What goes on with a run."""
    return f"{program_path()} -m training train run={shlex.quote(str(run.folder))}"


def program_path(program="python"):
    """What runs a program of this environment from here, as short as it can be."""
    path = pathlib.Path(sys.executable).with_name(program)
    here = pathlib.Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _make_folder(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made: {error.strerror}. Name another folder with --runs or run=PATH."
        ) from None


def add_result(run, **result):
    """Adds what came out of a run to its `recipe.json`."""
    facts = read_facts(run.recipe)
    write_text(run.recipe, json.dumps(facts | {"result": result}, indent=2) + "\n")


def read_class_names(run):
    """The names of the classes that a run learned, or `None` if the folder is no run's."""
    return read_facts(run.recipe).get("class_names") if run.recipe.is_file() else None


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


def git_state():
    """The commit of the checkout, and the files that differ from it; `None` where it is no clone."""
    root = pathlib.Path(__file__).parent

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed_files": git("status", "--porcelain").splitlines()}
    except (OSError, subprocess.CalledProcessError):
        return None  # No git, or not a clone.
