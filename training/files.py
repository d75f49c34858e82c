"""Files that the user names."""

import errno
import pathlib
import stat


def read_file(path):
    """The contents of a file. Raises an OSError for what is none: a folder, or a pipe or device that may never end."""
    path = pathlib.Path(path)
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "It is a pipe, a device or a socket, not a file", str(path))
    return path.read_bytes()
