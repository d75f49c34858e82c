"""A SavedModel of a run or a `.keras` file, as the next version."""

import pathlib

import keras_vit
from training.errors import InputError
from training.runs import Run, load_model, read_class_names


def export(source, path=None, version=None, labels=None):
    """Exports a model for TensorFlow Serving.

    Args:
        source: A run's folder, or a `.keras` file.
        path: Folder of the versions; by default `export` beside the model.
        version: Number of the version; by default one more than the highest there.
        labels: Path of a text file with a class name a line; by default the run's classes.

    Returns:
        The path of the SavedModel.

    Raises:
        InputError: If something cannot be read or written; the message says what.
    """
    source = pathlib.Path(source)
    run = Run(source if source.is_dir() else source.parent)
    model = load_model(run.model if source.is_dir() else source)
    path = path or run.export
    if labels is not None and not labels.is_file():
        raise InputError(f"--labels={labels} is not a file. It has the name of a class in each line.")
    names = read_class_names(run) if labels is None else labels.read_text().splitlines()
    if version is None:
        version = max((int(folder.name) for folder in path.glob("*") if folder.name.isdigit()), default=0) + 1
    try:
        return keras_vit.export_saved_model(model, path, labels=names, version=version)
    except FileExistsError:
        raise InputError(f"{path / str(version)} exists. Give another --version, or none for the next.") from None
    except ValueError as error:
        raise InputError(str(error)) from None
