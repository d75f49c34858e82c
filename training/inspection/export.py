"""Exports the model of a run or of a `.keras` file for serving."""

import json
import pathlib

import numpy as np

import keras_vit
from keras_vit.data.decoding import image_decoder
from keras_vit.export.runtime_formats import FORMATS
from training import recipes
from training.data.images import decoded, read_image
from training.errors import InputError
from training.recipe.assignments import read_run_info
from training.runs.folder import Run, load_model, read_class_names
from training.runs.opening import load_data
from training.tasks import TASKS

_COMMON_OPTIONS = {"precision", "tolerance", "min_agreement", "overwrite", "card"}
_OPTIONS_OF_IMAGE_TEXT_MODELS = {
    *("name", "precision", "tolerance", "overwrite", "batch_sizes", "image_size", "max_patches", "max_image_pixels")
}
_NUM_CALIBRATING, _SEED = 300, 0
"""Number of training images that calibrate and check an int8 file, and the seed that selects them."""


def export(source, path=None, format="saved_model", name=None, images=None, card=False, **options):
    """Exports a model: as a SavedModel for TensorFlow Serving, or as a file for another runtime.

    Args:
        source: A run's folder, or a `.keras` file.
        path: Folder to write to. Default: `export` beside the model, and `export/openvino` for OpenVINO. An OpenVINO
            file is written to `path/<version>/`, with the configuration of OpenVINO Model Server in `path`.
        format: `"saved_model"`, or a format of `keras_vit.export_model`.
        name: Name of the model for clients, and of the file for another runtime. Default: the name of the run's recipe
            or of the `.keras` file.
        images: Paths of the image files on which the export is compared with the model. Default: the run's samples. An
            int8 file for another runtime is calibrated with three quarters of them. Default for such a file: up to 300
            training images of the run, drawn at random.
        card: Whether a model card is written. For the model of a run, it contains the results on the test images.
        **options: More arguments of `keras_vit.export_saved_model` or `keras_vit.export_model`. `labels` is the path of
            a text file with one class name per line (default: the run's classes). SavedModels and OpenVINO files have a
            `version`. The default is one more than the highest version in the folder.

    Returns:
        The path of the export, and sentences on its size, its speed and its deviation from the model.

    Raises:
        InputError: If a file cannot be read or written, or the model cannot be exported in this way.
    """
    source = pathlib.Path(source)
    run = Run(source if source.is_dir() else source.parent)
    file = run.model if source.is_dir() else source
    model = load_model(file)
    path = path or (run.export / format if format == "openvino" else run.export)
    info = read_run_info(run.recipe) if run.recipe.is_file() else {"recipe": {}}
    name = name or info["recipe"].get("name") or source.stem
    if isinstance(model, keras_vit.ImageTextModel):
        given = {"card": card, "images": images}
        given = {name: value for name, value in given.items() if value}
        return _export_image_text_model(model, path, format, name=name, **given, **options)
    if "max_patches" in options:
        raise InputError("--max-patches requires a model of images and texts, such as a run of task=contrastive.")
    if card:
        options["card"] = (file.resolve() == run.model.resolve() and _evaluation(info)) or True
    is_calibrated = options.get("precision") == "int8" and format != "saved_model"
    if images is None and run.recipe.is_file() and not is_calibrated:
        images = sorted(run.samples.glob("*")) or None
    if path.is_file():
        raise InputError(f"--path={path} is a file. Give a folder with --path, and the name of the file with --name.")
    try:
        if format == "saved_model":
            return _export_saved_model(model, path, run, name=name, images=images, **options)
        if format == "openvino":  # A server loads each version from a folder of its own.
            version = options.pop("version", None)
            path = path / str(_next_version(path) if version is None else version)
        for option in options.keys() - _COMMON_OPTIONS:
            flag = f"--{option.replace('_', '-')}"
            accepted = "--format=saved_model" + (" or --format=openvino" if option == "version" else "")
            raise InputError(f"{flag} requires {accepted}. Received: --format={format}")
        if images is None and is_calibrated:
            pixels = _training_images(model, run, source)
        else:
            pixels = images and np.stack([_decoded(model, image) for image in images])
        path = path / f"{name}{FORMATS[format].suffixes[-1]}"
        written = keras_vit.export_model(model, path, format, images=pixels, **options)
        difference, agreement = written.max_difference, written.top_1_agreement
        sentence = _sentence(written.num_bytes, written.images, difference, agreement, written.predicted_classes)
        if written.relative_speed is not None:
            sentence += f" One image: {written.relative_speed:.2f} times as fast as the float32 file."
        return path, sentence
    except FileExistsError as error:
        raise InputError(str(error).replace("overwrite=True", "--overwrite")) from None
    except (ImportError, RuntimeError, ValueError) as error:
        raise InputError(str(error)) from None


def _training_images(model, run, source):
    """The pixels of training images of a run, drawn at random, (N, H, W, C)."""
    if not run.recipe.is_file():
        raise InputError(
            f"--precision=int8 needs images that calibrate the file, and {source} is not a run with training images. "
            f"Give a few hundred images like those that will be served: --images FILE..."
        )
    recipe = recipes.load(str(run.recipe))
    training = load_data(TASKS[recipe.task](recipe).load, run).source("train")
    drawn = training.draw(min(_NUM_CALIBRATING, training.size), _SEED)
    decode = image_decoder(model)
    return np.stack([decoded(example["image"].numpy(), decode) for example in drawn.in_order()])


def _evaluation(info):
    """The measured metrics in the `recipe.json` of a finished run, or `None`."""
    names = TASKS[info["recipe"]["task"]].published_results if "result" in info else ()
    metrics = {name: info["result"][f"test_{name}"] for name in names}
    if not metrics:
        return None
    return keras_vit.Evaluation(info["recipe"]["data"]["dataset"], metrics, "test", info["result"]["test_images"])


def _export_saved_model(model, path, run, labels=None, version=None, **options):
    if labels is not None and not labels.is_file():
        raise InputError(f"--labels={labels} is not a file. It must be a text file with one class name per line.")
    names = read_class_names(run) if labels is None else labels.read_text().splitlines()
    version = _next_version(path) if version is None else version
    folder = keras_vit.export_saved_model(model, path, labels=names, version=version, **options)
    info = json.loads((folder / "keras_vit.json").read_text())
    parity = info["parity"]
    difference = parity["max_difference"]["serving_default"]
    num_classes = len(parity["predicted_classes"])
    agreement = parity["top_1_agreement"]
    return folder, _sentence(info["bytes"]["weights"], parity["images"], difference, agreement, num_classes)


def _export_image_text_model(model, path, format, version=None, **options):
    if format != "saved_model":
        raise InputError(f"Images and texts require --format=saved_model. Received: --format={format}")
    if unsuitable := options.keys() - _OPTIONS_OF_IMAGE_TEXT_MODELS:
        flags = ", ".join(f"--{option.replace('_', '-')}" for option in sorted(unsuitable))
        raise InputError(f"The model of images and texts has no classes. Leave out {flags}.")
    version = _next_version(path) if version is None else version
    try:
        folder = keras_vit.export_image_text_model(model, path, version, **options)
    except (ValueError, OSError, ImportError) as error:
        raise InputError(str(error).replace("overwrite=True", "--overwrite")) from None
    differences = json.loads((folder / "keras_vit.json").read_text())["parity"]["max_difference"]
    return folder, (
        f"Signatures: image, text and similarity. Compared with the model on photographs and random texts: largest "
        f"difference of an embedding {max(differences['image'], differences['text']):.1e}."
    )


def _next_version(path):
    """One more than the highest version in a folder."""
    return max((int(folder.name) for folder in path.glob("*") if folder.name.isdigit()), default=0) + 1


def _decoded(model, image):
    try:
        return read_image(image, image_decoder(model))[1]
    except (OSError, ValueError) as error:
        raise InputError(f"--images: {image} cannot be read as a JPEG, PNG, GIF, BMP or WebP file. {error}") from None


def _sentence(num_bytes, images, difference, agreement, num_classes):
    if not num_classes:  # The model returns values.
        return (
            f"{num_bytes / 1e6:.1f} MB. Compared with the model on {images} images: largest difference of a value "
            f"{difference:.1e} of the largest value, nearly the same values for {agreement:.1%}."
        )
    classes = "one class" if num_classes == 1 else f"{num_classes} classes"
    return (
        f"{num_bytes / 1e6:.1f} MB. Compared with the model on {images} images, for which the model predicts "
        f"{classes}: largest difference of an output {difference:.1e}, the same class for {agreement:.1%}."
    )
