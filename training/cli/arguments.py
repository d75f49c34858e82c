"""Arguments that several commands share."""

import argparse
import pathlib
import re

_MOST_DIGITS = 9


def is_assignment(text):
    """Whether an argument has the form `section.field=value`. Paths and URLs may contain a = too."""
    return re.match(r"[\w.]+=", text) is not None


def take(name, assignments):
    """Returns the assignments to other names, and the last value assigned to `name` (`None` if there is none)."""
    values = [text.removeprefix(f"{name}=") for text in assignments if text.startswith(f"{name}=")]
    return [text for text in assignments if not text.startswith(f"{name}=")], values[-1] if values else None


def add_assignments(command, description, metavar="section.field=value"):
    command.add_argument("assignments", nargs="*", metavar=metavar, help=description)


def add_source_arguments(command):
    help_text = "folder of a run, .keras file, or name or path of weights"
    command.add_argument("source", metavar="RUN_OR_MODEL", help=help_text)
    add_assignments(command, "change the data, e.g. data.dataset=NAME")


def add_image_size(command):
    help_text = "size of the images, for a model that takes any size"
    command.add_argument("--image-size", type=positive, nargs=2, metavar=("H", "W"), help=help_text)


def share(text):
    """Converts an argument to a float from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return value


def new_file(text):
    """Converts an argument to a path, and checks that a file can be written to this path."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file in a folder that exists")
    return path


def new_folder(text):
    """Converts an argument to a path, and checks that a folder can be made at this path."""
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
    # If assignments follow an option with several numbers, argparse passes them to this function, too.
    hint = ". Put section.field=value before the options." if "=" in text else ""
    raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}{hint}")
