"""Arguments that several commands take."""

import argparse
import pathlib
import re

_MOST_DIGITS = 9


def is_assignment(text):
    """Whether an argument is `section.field=value`; a path or an address may have a = in it too."""
    return re.match(r"[\w.]+=", text) is not None


def take(name, assignments):
    """The assignments without those of a name, and the value of its last one, or `None`."""
    values = [text.removeprefix(f"{name}=") for text in assignments if text.startswith(f"{name}=")]
    return [text for text in assignments if not text.startswith(f"{name}=")], values[-1] if values else None


def add_measured(command):
    command.add_argument(
        "source", metavar="RUN_OR_MODEL", help="a run's folder, a .keras file, or weights by name or path"
    )
    command.add_argument(
        "assignments", nargs="*", metavar="section.field=value", help="changes of its data; data.dataset=NAME: another"
    )


def new_file(text):
    """The path of a file that can be written when the work is done."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that exists")
    return path


def new_folder(text):
    """The path of a folder that can be made when the work is done."""
    path = pathlib.Path(text)
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    if not nearest.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {nearest} is not a folder")
    return path


def count(text):
    return _at_least(0, text)


def positive(text):
    return _at_least(1, text)


def _at_least(least, text):
    if text.isdecimal() and len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{text} has more than {_MOST_DIGITS} digits")
    if text.isdecimal() and int(text) >= least:
        return int(text)
    # An option that takes several numbers takes what follows them, too.
    hint = ". Changes of fields stand before the options." if "=" in text else ""
    raise argparse.ArgumentTypeError(f"{text} is no whole number of {least} or more{hint}")
