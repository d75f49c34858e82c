"""Image files in, classes or masks out, through a SavedModel and TensorFlow alone: keras_vit is not imported here."""

import functools
import itertools
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from training.data.masks import MOST_CLASSES
from training.errors import InputError
from training.files import read_file
from training.reports.overlays import legend, overlay


def predict(source, paths, top=5, to=None):
    """Prints the most probable classes of image files, or of their pixels the classes and how many have them.

    Args:
        source: A run's folder, a folder of exported versions (the highest is taken), or a SavedModel.
        paths: Paths of JPEG, PNG, GIF, BMP or WebP files.
        top: How many classes to print, at most as many as the SavedModel of a classifier returns.
        to: Of a segmentation model: a folder to write each picture to as PNG, with the colours of its mask over it,
            and their meaning as legend.png. `None`: nothing is written.

    Returns:
        How many of the files could not be read. They are named, and the others predicted.

    Raises:
        InputError: If `source` leads to no SavedModel, or a classifier is asked for masks.
    """
    folder = find_saved_model(source)
    model = tf.saved_model.load(str(folder))  # Kept: the signature needs its variables.
    serve = model.signatures.get("serving_default")
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise InputError(f"{folder} takes no encoded images. Export the model with: python -m training export")
    if "mask" in serve.structured_outputs:
        tell = _MaskTeller(folder, top, to)
    elif to is not None:
        raise InputError(f"{folder} names what images show, and has no masks to write. Leave --to out.")
    else:
        tell = functools.partial(_tell_classes, top=top)
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
            print(f"{path}: {tell(path, outputs)}")
    return unreadable


def _tell_classes(path, outputs, top):
    classes = zip(outputs["labels"][:top], outputs["scores"][:top], strict=True)
    return ", ".join(f"{label.decode()} {score:.1%}" for label, score in classes)


class _MaskTeller:
    """Says of an image which part of its pixels has which class, and writes its mask if there is a folder for it."""

    def __init__(self, folder, top, to):
        self.names = (folder / "assets" / "labels.txt").read_text(encoding="utf-8").splitlines()
        self.top, self.to, self.written = top, to, set()
        if to is not None:
            if len(self.names) > MOST_CLASSES:
                raise InputError(f"Masks of more than {MOST_CLASSES} classes are not drawn. Leave --to out.")
            try:
                to.mkdir(parents=True, exist_ok=True)
                legend(self.names).save(to / "legend.png")
            except OSError as error:
                raise InputError(f"--to={to} cannot be written to: {error.strerror}. Name another folder.") from None

    def __call__(self, path, outputs):
        mask = outputs["mask"]
        shares = np.bincount(mask.ravel(), minlength=len(self.names)) / mask.size
        commonest = [label for label in np.argsort(-shares, kind="stable")[: self.top] if shares[label]]
        told = ", ".join(f"{self.names[label]} {shares[label]:.1%} of the pixels" for label in commonest)
        return told if self.to is None else f"{told}; {self._write(path, mask)}"

    def _write(self, path, mask):
        with PIL.Image.open(path) as image:
            pixels = np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
        name = f"{path.stem}.png"
        for number in itertools.count(2):  # Files of the same name in several folders.
            if name not in self.written | {"legend.png"}:
                break
            name = f"{path.stem}-{number}.png"
        self.written.add(name)
        PIL.Image.fromarray(overlay(pixels, mask, len(self.names))).save(self.to / name)
        return self.to / name


def find_saved_model(source):
    """The folder of the SavedModel that a run, a folder of versions or a SavedModel leads to."""
    source = pathlib.Path(source)
    for folder in (source, source / "export"):
        versions = [path for path in folder.glob("*") if path.name.isdigit()]
        for candidate in [folder, *sorted(versions, key=lambda path: int(path.name), reverse=True)]:
            if (candidate / "saved_model.pb").is_file():
                return candidate
    if (source / "recipe.json").is_file():
        raise InputError(f"The run in {source} is not finished. To go on: python -m training train run={source}")
    hint = " A .keras file is made one by: python -m training export FILE" if source.suffix == ".keras" else ""
    raise InputError(f"{source} is neither a run's folder nor a SavedModel.{hint}")
