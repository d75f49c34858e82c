"""Writes text files, tables and folders."""

import csv
import io
import pathlib

from training.errors import InputError


def write_text(path, text):
    """Writes a text file atomically. Raises an InputError if it cannot be written."""
    # Here, because keras_vit imports Keras, and the command checks the backend first.
    from keras_vit.atomic_files import replace_file_atomically

    try:
        with replace_file_atomically(path) as unfinished:
            unfinished.write_bytes(text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def write_csv(path, rows):
    """Writes rows. The first row contains the column names. Raises an InputError if the file cannot be written."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def make_folder(folder, hint):
    """Makes a folder, and the folders that contain it. Raises an InputError, with a hint, if it cannot be made."""
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}. {hint}") from None


def check_name(name):
    """Raises an InputError if an argument, e.g. the name of a file, is not valid UTF-8.

    Python decodes each invalid byte to a surrogate. Surrogates cannot be encoded, so the name could not be printed.
    """
    try:
        str(name).encode()
    except UnicodeEncodeError:
        raise InputError(f"Names must be in UTF-8. Received: {str(name)!a}. Rename the file or folder.") from None
