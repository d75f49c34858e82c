"""A run's model, or a `.keras` file, for those who serve it."""

import json
import pathlib

import numpy as np

import keras_vit
from keras_vit.decoding import image_decoder
from training.data.images import read_image
from training.errors import InputError
from training.recipe.assignments import read_facts
from training.runs.folder import Run, load_model, read_class_names

_SUFFIXES = {"onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
_OF_EVERY_FORMAT = {"precision", "tolerance", "min_agreement", "overwrite"}


def export(source, path=None, format="saved_model", name=None, images=None, **options):
    """Exports a model: as a SavedModel for TensorFlow Serving, or as a file for another runtime.

    Args:
        source: A run's folder, or a `.keras` file.
        path: Folder to write to; by default `export` beside the model.
        format: `"saved_model"`, or one of `keras_vit.export_model`.
        name: What clients call the model, and the name of another runtime's file; by default that of the run's recipe,
            or of the `.keras` file.
        images: Paths of image files to compare on; by default the run's samples.
        **options: More arguments of `keras_vit.export_saved_model` or `keras_vit.export_model`; but `labels` is the
            path of a text file with a class name a line, by default the run's classes, and `version` by default one
            more than the highest there.

    Returns:
        The path of what was written, and a sentence on its size and how exactly it answers.

    Raises:
        InputError: If something cannot be read or written; the message says what.
    """
    source = pathlib.Path(source)
    run = Run(source if source.is_dir() else source.parent)
    model = load_model(run.model if source.is_dir() else source)
    path = path or run.export
    name = name or _recipe_name(run) or source.stem
    if images is None and run.recipe.is_file():
        images = sorted(run.samples.glob("*")) or None
    if path.is_file():
        raise InputError(f"--path={path} is a file. It must be the folder to write to; --name names the file in it.")
    try:
        if format == "saved_model":
            return _export_saved_model(model, path, run, name=name, images=images, **options)
        for option in options.keys() - _OF_EVERY_FORMAT:
            flag = f"--{option.replace('_', '-')}"
            raise InputError(f"{flag} goes with --format=saved_model. Received: --format={format}")
        pixels = images and np.stack([_decoded(model, image) for image in images])
        path = path / f"{name}{_SUFFIXES[format]}"
        written = keras_vit.export_model(model, path, format, images=pixels, **options)
        return path, _sentence(written.num_bytes, written.images, written.max_difference, written.top_1_agreement)
    except FileExistsError as error:
        raise InputError(str(error).replace("overwrite=True", "--overwrite")) from None
    except (ImportError, RuntimeError, ValueError) as error:
        raise InputError(str(error)) from None


def _export_saved_model(model, path, run, labels=None, version=None, **options):
    if labels is not None and not labels.is_file():
        raise InputError(f"--labels={labels} is not a file. It has the name of a class in each line.")
    names = read_class_names(run) if labels is None else labels.read_text().splitlines()
    if version is None:
        version = max((int(folder.name) for folder in path.glob("*") if folder.name.isdigit()), default=0) + 1
    folder = keras_vit.export_saved_model(model, path, labels=names, version=version, **options)
    facts = json.loads((folder / "keras_vit.json").read_text())
    parity = facts["parity"]
    difference = parity["max_difference"]["serving_default"]
    return folder, _sentence(facts["bytes"]["weights"], parity["images"], difference, parity["top_1_agreement"])


def _decoded(model, image):
    try:
        return read_image(image, image_decoder(model))[1]
    except (OSError, ValueError) as error:
        raise InputError(f"--images: {image} cannot be read as a JPEG, PNG, GIF, BMP or WebP file. {error}") from None


def _recipe_name(run):
    return read_facts(run.recipe)["recipe"].get("name") if run.recipe.is_file() else None


def _sentence(num_bytes, images, difference, agreement):
    return (
        f"{num_bytes / 1e6:.1f} MB. Compared with the model on {images} images: largest difference of a probability "
        f"{difference:.1e}, the same class for {agreement:.1%}."
    )
