"""Mappings that rename or merge the arrays of files."""

from collections.abc import Mapping


class Renamed(Mapping):
    """The arrays of a file under other names. An array is read when it is accessed.

    Args:
        file: Mapping of names to arrays with an attribute `shapes`.
        names: {new name: name in the file, or (name, index) for one entry of a stacked array}.
    """

    def __init__(self, file, names):
        self._file = file
        self._names = {new: old if isinstance(old, tuple) else (old, None) for new, old in names.items()}
        self._stacked: tuple = None, None
        self.shapes = {
            new: file.shapes[old] if index is None else file.shapes[old][1:]
            for new, (old, index) in self._names.items()
        }

    def left_out(self, file):
        """Names in the file that have no new name."""
        renamed = {old for old, _ in self._names.values()}
        return tuple(name for name in file if name not in renamed)

    def __getitem__(self, name):
        old, index = self._names[name]
        if index is None:
            return self._file[old]
        if self._stacked[0] != old:  # The entries of a stacked array are usually accessed one after the other.
            self._stacked = old, self._file[old]
        return self._stacked[1][index]

    def __iter__(self):
        return iter(self._names)

    def __len__(self):
        return len(self._names)


class Merged(Mapping):
    """The arrays of several files as one mapping."""

    def __init__(self, files):
        self._file_of = {name: file for file in files for name in file}
        self.shapes = {name: shape for file in files for name, shape in file.shapes.items()}
        self.container = files[0].container

    def __getitem__(self, name):
        return self._file_of[name][name]

    def __iter__(self):
        return iter(self._file_of)

    def __len__(self):
        return len(self._file_of)
