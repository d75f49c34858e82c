"""Writes files and folders atomically: they exist completely or not at all, even if the process is killed."""

import contextlib
import os
import pathlib
import shutil
import tempfile

_PREFIX, _REPLACED = "unfinished-", "replaced-"
_NAME_LENGTH = 40  # Longer names are cut, because file systems limit the length of names.
_LOCK = "keras_vit.lock"
"""Name of the lock file in an unfinished folder. The writing process keeps this file locked as long as it runs."""


@contextlib.contextmanager
def replace_atomically(*targets, overwrite=True):
    """Provides a folder. The files or folders that are written to it replace `targets` at the end.

    All data is on the disk before the targets are replaced. If anything fails, the targets do not change. If there are
    several targets, the last target is removed first and written last. Readers must check that the last target exists.
    Otherwise they could read a mixture of an old and a new version.

    Args:
        *targets: Paths in one existing folder.
        overwrite: Whether folders may replace existing targets. Files always replace existing files.

    Yields:
        `pathlib.Path` of the folder. An entry with the name of a target replaces this target. All other entries are
        removed.

    Raises:
        FileExistsError: If a target exists and must not be replaced.
        OSError: If a file cannot be written.
    """
    paths = [pathlib.Path(os.path.abspath(target)) for target in targets]
    parent = paths[0].parent
    with working_folder(parent, paths[-1].name) as folder:
        yield folder
        for entry in [*folder.rglob("*"), folder]:
            sync(entry)
        if len(paths) > 1:
            paths[-1].unlink(missing_ok=True)
        for target in paths:
            _move(folder / target.name, target, overwrite)
        sync(parent)


@contextlib.contextmanager
def replace_file_atomically(path):
    """Provides the `pathlib.Path` of a new file. At the end, the file replaces `path`, as in `replace_atomically`."""
    path = pathlib.Path(path)
    with replace_atomically(path) as folder:
        yield folder / path.name


@contextlib.contextmanager
def working_folder(parent, name):
    """Provides a new folder `unfinished-<name>-…` in `parent`, and removes it at the end.

    It also removes the folders of killed processes in `parent`.
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
    """Creates a folder. Returns its path and its lock. The lock is `None` if the file system has no locks."""
    for attempts_left in (2, 1, 0):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _lock(folder)
        if lock is not None or not attempts_left:
            return folder, lock
        shutil.rmtree(folder, ignore_errors=True)  # Another process was about to remove this folder.


def remove_abandoned(parent):
    """Removes the unfinished files of killed processes from a folder.

    If a process was killed while it replaced a folder, the old folder is restored. If the file system has no locks,
    nothing is removed, because the files may be in use.
    """
    parent = pathlib.Path(parent)
    for folder in parent.glob(f"{_PREFIX}*-????????"):
        with contextlib.suppress(OSError):  # Another user may own the folder, or another process may remove it.
            # An unfinished folder is empty if its process was killed before it created the lock.
            is_ours = (folder / _LOCK).is_file() or not any(folder.iterdir())
            if is_ours and not folder.is_symlink():
                _remove_unless_in_use(folder, parent)


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
    """Locks a folder and returns the lock, or `None` if the folder could not be locked.

    A folder cannot be locked if another process has locked or removed it, or if the file system has no locks.
    """
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
        raise FileExistsError(f"{target} exists. Another export created it meanwhile. Give another version.")
    replaced = complete.with_name(f"{_REPLACED}{target.name}")  # A folder cannot be replaced in one step.
    target.rename(replaced)
    try:
        complete.rename(target)
    except OSError:
        replaced.rename(target)
        raise


def sync(path):
    """Writes a file, or the names in a folder, from the system's buffers to the disk."""
    if os.name == "nt":  # Windows does not sync folders, and syncs files only through the handle that wrote them.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
