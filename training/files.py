"""Files that the user names."""

import errno
import pathlib
import stat


def read_file(path):
    """The contents of a file. Raises an OSError for what is none: a folder, or a pipe or device that may never end."""
    path = pathlib.Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return path.read_bytes()
