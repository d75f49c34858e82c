"""Files and folders that appear complete or not at all, even if the process is killed while it writes them."""

import contextlib
import os
import pathlib
import shutil
import tempfile

_PREFIX, _REPLACED = "unfinished-", "replaced-"
_NAME_LENGTH = 40  # File systems have limits.
_LOCK = "keras_vit.lock"
"""Locked by the process that writes to a folder, as long as it lives."""


@contextlib.contextmanager
def appears_complete(*targets, overwrite=True):
    """Gives a folder to write files or folders to, which take the places of `targets` when all went well.

    They are on the disk before they take their names. If anything fails, the targets stay as they were. Several targets
    belong together: the last is the one that readers look for. It disappears first and appears last, so that nobody
    reads parts of two.

    Args:
        *targets: Paths in one existing folder.
        overwrite: Whether a folder, a version of an export, may replace what is there. Files always do.

    Yields:
        `pathlib.Path` of the folder. What has the name of a target there is moved, all else is removed.

    Raises:
        FileExistsError: If something is there that may not be replaced.
        OSError: If something cannot be written.
    """
    targets = [pathlib.Path(os.path.abspath(target)) for target in targets]
    parent = targets[0].parent
    with working_folder(parent, targets[-1].name) as folder:
        yield folder
        for path in [*folder.rglob("*"), folder]:
            sync(path)
        if len(targets) > 1:
            targets[-1].unlink(missing_ok=True)
        for target in targets:
            _move(folder / target.name, target, overwrite)
        sync(parent)


@contextlib.contextmanager
def replacing(path):
    """Gives the `pathlib.Path` of a file to write, which takes the place of `path` as in `appears_complete`."""
    path = pathlib.Path(path)
    with appears_complete(path) as folder:
        yield folder / path.name


@contextlib.contextmanager
def working_folder(parent, name):
    """Gives a new folder `unfinished-<name>-…` in an existing one, and removes it in the end.

    Folders that killed processes have left there are removed as well.
    """
    remove_abandoned(parent)
    folder, lock = _new_folder(parent, f"{_PREFIX}{name[:_NAME_LENGTH]}-")
    try:
        yield folder
    finally:
        if lock is not None:
            lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder(parent, prefix):
    """A new folder and its lock, which is `None` where the file system has no locks."""
    for attempts_left in (2, 1, 0):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _lock(folder)
        if lock is not None or not attempts_left:
            return folder, lock
        shutil.rmtree(folder, ignore_errors=True)  # Another process was just about to remove it.


def remove_abandoned(parent):
    """Removes from a folder what killed processes were writing there.

    A folder that one of them was about to replace is put back. Where the file system has no locks nothing is removed,
    because it may be in use.
    """
    parent = pathlib.Path(parent)
    for folder in parent.glob(f"{_PREFIX}*-????????"):
        with contextlib.suppress(OSError):  # It is another user's, or another process removes it.
            if not folder.is_symlink() and _is_ours(folder):
                _remove_unless_in_use(folder, parent)


def _is_ours(folder):
    """Whether a process of this package has made a folder. One that was killed at once left it empty."""
    return (folder / _LOCK).is_file() or not any(folder.iterdir())


def _remove_unless_in_use(folder, parent):
    lock = _lock(folder)
    if lock is None:
        return
    for replaced in folder.glob(f"{_REPLACED}*"):
        original = parent / replaced.name.removeprefix(_REPLACED)
        if not os.path.lexists(original):
            replaced.rename(original)
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _lock(folder):
    """The lock of a folder, or `None`: another process has it or removes it, or the file system has no locks."""
    import filelock

    lock = filelock.FileLock(folder / _LOCK)
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire(timeout=0)
        if (folder / _LOCK).exists():
            return lock
        lock.release()
    return None


def _move(complete, target, overwrite):
    if not complete.is_dir() or not os.path.lexists(target):
        complete.replace(target)
        return
    if not overwrite:
        raise FileExistsError(f"{target} exists: another export made it meanwhile. Give another version.")
    replaced = complete.with_name(f"{_REPLACED}{target.name}")  # A folder cannot be replaced in one step.
    target.rename(replaced)
    try:
        complete.rename(target)
    except OSError:
        replaced.rename(target)
        raise


def sync(path):
    """Has a file, or the names in a folder, written to the disk."""
    if os.name == "nt":  # Windows syncs no folders, and files only through the handle that wrote them.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
