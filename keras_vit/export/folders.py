"""The folder of a version, which a server sees when it is complete and not before."""

import contextlib
import os
import pathlib
import shutil
import tempfile

from keras_vit.checks import check_positive_integer


def new_version(path, version, overwrite):
    """The folder of a version, which does not exist or may be replaced."""
    folder = pathlib.Path(path) / str(check_positive_integer("version", version))
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists. Give another version, or overwrite=True to replace it.")
    return folder


@contextlib.contextmanager
def appears_complete(target, overwrite):
    """Gives a folder beside `target` to write to, and renames it when all went well; else nothing is left of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving looks at folders with a number for a name only.
    unfinished = pathlib.Path(tempfile.mkdtemp(prefix=f"unfinished-{target.name}-", dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} exists: another export made it meanwhile. Give another version.")
        if target.exists():
            _replace(target, unfinished)
        else:
            unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _replace(target, complete):
    replaced = complete.with_name(f"replaced-{complete.name}")
    target.rename(replaced)
    try:
        complete.rename(target)
    except OSError:
        replaced.rename(target)
        raise
    shutil.rmtree(replaced)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
