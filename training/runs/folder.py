"""The folder of a run, and its `recipe.json`."""

import contextlib
import dataclasses
import datetime
import errno
import itertools
import json
import pathlib
import platform
import shlex
import shutil
import sys

import filelock

from training.data.contents import Record, change_lines, read_contents
from training.errors import InputError, shortened_names
from training.files import make_folder, write_text
from training.recipe.assignments import as_text, from_dict, leaves, read_run_info
from training.recipe.config import to_dict
from training.runs.provenance import git_state, installed_version, processor

_PACKAGES = (
    "keras-vit-applications",
    "keras",
    "tensorflow",
    "tensorflow-datasets",
    "numpy",
    "scikit-learn",
    "matplotlib",
)

_ANOTHER_FOLDER = "Name another folder with --runs or run=PATH."
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that do not support locks."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The paths in a run's folder."""

    folder: pathlib.Path

    recipe = property(lambda self: self.folder / "recipe.json")
    splits = property(lambda self: self.folder / "splits.csv")
    lock = property(lambda self: self.folder / "run.lock")
    history = property(lambda self: self.folder / "history.csv")
    tensorboard = property(lambda self: self.folder / "tensorboard")
    checkpoints = property(lambda self: self.folder / "checkpoints")
    model = property(lambda self: self.folder / "model.keras")
    export = property(lambda self: self.folder / "export")
    figures = property(lambda self: self.folder / "figures")
    samples = property(lambda self: self.folder / "samples")
    report = property(lambda self: self.folder / "report.html")
    subfolders = property(lambda self: (self.checkpoints, self.figures, self.samples, self.tensorboard))


def is_finished(recipe, runs, folder):
    """Whether the run in a folder is finished.

    Also checks that `open_run` can use the folder, so that a wrong folder is reported before any work is done.

    Raises:
        InputError: If the folder contains a run of another recipe (the message lists the differences) or other files.
    """
    if folder is None:
        make_folder(runs, _ANOTHER_FOLDER)
        return False
    run = Run(pathlib.Path(folder))
    if not run.recipe.is_file():
        names = {path.name for path in run.folder.iterdir()} if run.folder.is_dir() else set()
        names -= {path.name for path in (run.lock, run.splits, *run.subfolders)}
        unfinished = tuple(f"unfinished-{path.name}-" for path in (run.recipe, run.splits))
        others = sorted(name for name in names if not name.startswith(unfinished))
        if others:
            raise InputError(f"run={folder} contains other files: {', '.join(others[:5])}. Name an empty folder.")
        return False
    info = read_run_info(run.recipe)
    # `from_dict` adds the fields that did not exist when the run began.
    old, new = (dict(leaves(to_dict(each))) for each in (from_dict(info["recipe"]), recipe))
    differences = [
        f"\n  {name}: was {as_text(old.get(name))}, is {as_text(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise InputError(f"run={folder} was started with another recipe:{''.join(differences)}\nName another folder.")
    return "result" in info


def new_folder(recipe, runs, engine):
    """Makes a new folder for a run, `<runs>/<recipe>-<time>`, and returns its path.

    Raises:
        InputError: If there are several processes. The user must name a folder that all of them can access.
    """
    if engine.num_processes > 1:
        raise InputError(
            "Several processes need a shared run folder. Set run=PATH to a folder that all processes can access."
        )
    name = f"{recipe.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    for attempt in itertools.count(1):
        folder = pathlib.Path(runs) / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue  # Another run started in the same second.


@contextlib.contextmanager
def hold(run):
    """Locks a run against other processes. The system releases the lock when this process ends, even after a crash.

    Nothing may be written without the lock. Otherwise two processes could start runs in the same folder.

    Raises:
        InputError: If another process holds the lock, or the folder cannot be written to.
    """
    make_folder(run.folder, _ANOTHER_FOLDER)
    lock = filelock.FileLock(run.lock)
    try:
        lock.acquire(timeout=0)
        is_used = not run.lock.exists()  # Another process has removed it, and releases it now.
    except filelock.Timeout:
        is_used = True
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise InputError(f"{run.lock} cannot be written: {error.strerror}.") from None
        problem = getattr(error, "strerror", error)
        print(f"{run.folder} cannot be locked: {problem}. Make sure that no other process uses it.")
        is_used = False
    if is_used:
        lock.release()
        raise InputError(f"run={run.folder} is in use by another process. Wait for it, or stop it.")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            run.lock.unlink()  # Removed before the lock is released.
        lock.release()


def open_run(recipe, dataset, runs, folder, engine):
    """Opens the given folder of a run, or a new folder `<runs>/<recipe>-<time>`.

    `recipe.json` in this folder contains everything that is needed to repeat the run. `splits.csv` lists the files of
    each split.

    Raises:
        InputError: If there are several processes and `folder` is `None`; if the run began with another recipe or other
            data; or if another process has finished the run in the meantime.
    """
    run = Run(pathlib.Path(folder or new_folder(recipe, runs, engine)))
    if run.recipe.is_file():
        if is_finished(recipe, runs, run.folder):
            raise InputError(f"run={run.folder} was finished by another process in the meantime. See {run.report}.")
        if changes := data_changes(run, dataset):
            raise InputError(
                "\n  ".join([f"run={run.folder} was started with other data:", *changes])
                + "\nTo resume it, restore the data. For a new run, name another folder, or omit run=PATH."
            )
    if engine.is_chief:
        for subfolder in run.subfolders:
            make_folder(subfolder, _ANOTHER_FOLDER)
        if not run.recipe.is_file():
            dataset.contents.write(run.splits)
            info = {
                "recipe": to_dict(recipe),
                "class_names": dataset.class_names,
                "num_images": _sizes(dataset),
                "command": shlex.join(["python", "-m", "training", *sys.argv[1:]]),
                "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                "git": git_state(),
                "versions": {"python": platform.python_version(), **{n: installed_version(n) for n in _PACKAGES}},
                "machine": platform.platform(),
                "processor": processor(),
            }
            write_text(run.recipe, json.dumps(info, indent=2) + "\n")
    engine.barrier()
    return run


def data_changes(run, dataset):
    """Describes how a data set differs from the data set of a run, in lines of text."""
    info, names, sizes = read_run_info(run.recipe), list(dataset.class_names), _sizes(dataset)
    old_names, old_sizes = info["class_names"], info["num_images"]
    differences = [
        f"{split} images: were {old_sizes.get(split, 0):,}, are {sizes.get(split, 0):,}"
        for split in sorted(old_sizes.keys() | sizes.keys())
        if old_sizes.get(split) != sizes.get(split)
    ]
    if old_names != names:
        changes = {"gone": set(old_names) - set(names), "new": set(names) - set(old_names)}
        texts = [f"{kind}: {shortened_names(sorted(classes))}" for kind, classes in changes.items() if classes]
        differences.append(f"classes, {'; '.join(texts) or 'in another order'}")
    return differences + change_lines(dataset.contents.changes_since(read_contents(run.splits)))


def read_record(run, purpose="measure"):
    """The `training.data.contents.Record` of a run, or `None` if there is none beside its model.

    Raises:
        InputError: If the record is damaged, or if it was removed and is needed for the purpose.
    """
    if not run.splits.is_file():
        if purpose in ("measure", "resume") and run.recipe.is_file():
            raise InputError(
                f"{run.splits} is missing. It lists the images that the run was trained on. Restore it, or choose data "
                f"that the run was not trained on, such as data.dataset=folder data.directory=PATH."
            )
        return None
    return Record(str(run.folder), read_contents(run.splits), purpose)


def _sizes(dataset):
    return {name: source.size for name, source in dataset.splits.items()}


@contextlib.contextmanager
def removed_if_untrained(run, keeps_folder):
    """Removes the files of a new run if an error ends it before it has a checkpoint, a history or other files.

    Args:
        run: `Run`
        keeps_folder: Whether the folder existed before the run, so that it remains as an empty folder.
    """
    try:
        yield
    except BaseException:
        created = {run.recipe, run.splits, run.lock, *run.subfolders, *run.tensorboard.rglob("*")}
        if created.issuperset(run.folder.rglob("*")):
            shutil.rmtree(run.folder, ignore_errors=True)
            if keeps_folder:
                run.folder.mkdir(exist_ok=True)
        raise


def is_untrained(run):
    """Whether a run has neither a checkpoint nor a row of the history, so that there is nothing to resume."""
    return not run.history.exists() and not any(run.checkpoints.glob("*"))


def resume_command(run):
    """The command that resumes a run."""
    return f"{program_path()} -m training train run={shlex.quote(str(run.folder))}"


def program_path(program="python"):
    """The path of a program of this environment, quoted for the shell. Relative if it is in the current folder."""
    path, current = pathlib.Path(sys.executable).with_name(program), pathlib.Path.cwd()
    return shlex.quote(str(path.relative_to(current) if path.is_relative_to(current) else path))


def add_result(run, **result):
    """Adds the results of a run to its `recipe.json`."""
    info = read_run_info(run.recipe)
    write_text(run.recipe, json.dumps(info | {"result": result}, indent=2) + "\n")


def read_class_names(run):
    """The class names of a run, or `None` if the folder contains no run."""
    return read_run_info(run.recipe).get("class_names") if run.recipe.is_file() else None


def load_model(path):
    """Loads the model of a `.keras` file."""
    import keras

    import keras_vit  # noqa: F401  Registers its layers.

    if not path.is_file():
        raise InputError(f"{path} does not exist. Give the folder of a finished run, or a .keras file.")
    try:
        return keras.models.load_model(path)
    except (ValueError, OSError, TypeError) as error:
        raise InputError(f"{path} is not a model that Keras can load: {error}") from None
