"""Predicts the classes or the masks of image files with a SavedModel. Needs TensorFlow, not keras_vit."""

import functools
import itertools
import json
import pathlib
from collections.abc import Callable

import numpy as np
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from training.data.masks import MAX_CLASSES
from training.errors import InputError
from training.files import read_file
from training.reports.overlays import legend, overlay_mask

_THRESHOLD = 0.5  # Of the probability of a label, if an image can have several.


def predict(source, paths, top=5, to=None):
    """Prints the most probable classes of each image file.

    For a model of several labels, prints the labels with a probability of at least 0.5. For a regression model, prints
    the values. For a segmentation model, prints the most common classes of the pixels and their shares.

    Args:
        source: A run's folder, a folder of exported versions (the highest is used), or a SavedModel.
        paths: Paths of JPEG, PNG, GIF, BMP or WebP files.
        top: Number of classes to print; for a classifier, at most the number that the SavedModel returns.
        to: Folder for the results of a segmentation model. Each picture is written there with its coloured mask, as a
            PNG file. `legend.png` shows the colours of the classes. `None`: nothing is written.

    Returns:
        The number of unreadable files. Unreadable files are reported and skipped.

    Raises:
        InputError: If `source` contains no SavedModel, or `to` is given for a classifier.
    """
    folder = find_saved_model(source)
    model = tf.saved_model.load(str(folder))  # Must stay referenced, because the signature needs the model's variables.
    serve = model.signatures.get("serving_default")
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise InputError(f"{folder} does not take encoded images. Export the model with: python -m training export")
    if "mask" in serve.structured_outputs:
        predicted: Callable = _PredictedMask(folder, top, to)
    elif to is not None:
        raise InputError(f"{folder} has no masks to write. Leave --to out.")
    else:
        predicted = functools.partial(_predicted_text, output=_read_output(folder), top=top)

    unreadable = 0
    for path in map(pathlib.Path, paths):
        try:
            content = read_file(path)
        except OSError as error:
            unreadable += 1
            print(f"{path}: cannot be read: {error.strerror}")
            continue
        outputs = {name: output.numpy()[0] for name, output in serve(image_bytes=tf.constant([content])).items()}
        if not outputs["valid"]:
            unreadable += 1
            print(f"{path}: is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP)")
        else:
            print(f"{path}: {predicted(path, outputs)}")
    return unreadable


def _read_output(folder):
    """What the output of a SavedModel means, from its `keras_vit.json`, with the names of values."""
    try:
        output = json.loads((folder / "keras_vit.json").read_text(encoding="utf-8"))["output"]
    except (OSError, ValueError, KeyError):  # The file was removed.
        output = {"kind": "classes"}
    if output["kind"] == "values":
        output["names"] = (folder / "assets" / "labels.txt").read_text(encoding="utf-8").splitlines()
    return output


def _predicted_text(path, outputs, output, top):
    """Describes the outputs for an image that are not a mask."""
    if "values" in outputs:
        units = output.get("units") or [""] * len(output["names"])
        values = zip(output["names"], outputs["values"], units, strict=True)
        return ", ".join(f"{name} {value:.4g} {unit}".strip() for name, value, unit in values)
    classes = zip(outputs["labels"][:top], outputs["scores"][:top], strict=True)
    texts = [(f"{label.decode()} {score:.1%}", score) for label, score in classes]
    if output["kind"] != "labels":
        return ", ".join(text for text, _ in texts)
    return ", ".join(text for text, score in texts if score >= _THRESHOLD) or f"no label (best: {texts[0][0]})"


class _PredictedMask:
    """Describes an image by its most common classes and their shares. Writes the mask if a folder is given."""

    def __init__(self, folder, top, to):
        self.names = (folder / "assets" / "labels.txt").read_text(encoding="utf-8").splitlines()
        self.top, self.to, self.written = top, to, set()
        if to is not None:
            if len(self.names) > MAX_CLASSES:
                raise InputError(f"Masks of more than {MAX_CLASSES} classes cannot be drawn. Leave --to out.")
            try:
                to.mkdir(parents=True, exist_ok=True)
                legend(self.names).save(to / "legend.png")
            except OSError as error:
                raise InputError(f"--to={to} cannot be written to: {error.strerror}. Choose another folder.") from None

    def __call__(self, path, outputs):
        mask = outputs["mask"]
        shares = np.bincount(mask.ravel(), minlength=len(self.names)) / mask.size
        commonest = [label for label in np.argsort(-shares, kind="stable")[: self.top] if shares[label]]
        text = ", ".join(f"{self.names[label]} {shares[label]:.1%} of the pixels" for label in commonest)
        if self.to is None:
            return text
        with PIL.Image.open(path) as image:
            pixels = np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
        name = f"{path.stem}.png"
        for number in itertools.count(2):  # Several folders can contain files of the same name.
            if name not in self.written | {"legend.png"}:
                break
            name = f"{path.stem}-{number}.png"
        self.written.add(name)
        PIL.Image.fromarray(overlay_mask(pixels, mask, len(self.names))).save(self.to / name)
        return f"{text}; {self.to / name}"


def find_saved_model(source):
    """The folder of a SavedModel: `source`, or the highest version in `source` or in its folder `export`."""
    source = pathlib.Path(source)
    for folder in (source, source / "export"):
        versions = [path for path in folder.glob("*") if path.name.isdigit()]
        for candidate in [folder, *sorted(versions, key=lambda path: int(path.name), reverse=True)]:
            if (candidate / "saved_model.pb").is_file():
                return candidate
    if (source / "model.keras").is_file():
        raise InputError(
            f"{source} has no export. If the model predicts classes or masks, export it with: "
            f"python -m training export {source}"
        )
    if (source / "recipe.json").is_file():
        raise InputError(f"The run in {source} is not finished. To continue it: python -m training train run={source}")
    raise InputError(
        f"{source} is neither a run's folder nor a SavedModel. To make a SavedModel of a .keras file: python -m "
        f"training export FILE. Of weights: keras_vit.export_saved_model(keras_vit.from_pretrained(NAME), FOLDER)."
    )
