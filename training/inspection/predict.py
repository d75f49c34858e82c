"""Predicts the classes, the values or the masks of images with a SavedModel."""

import io
import itertools
import json
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from keras_vit import inference
from keras_vit.data.reading import read_samples
from training.data.masks import MAX_CLASSES
from training.errors import InputError
from training.reports.overlays import legend, overlay_mask

_THRESHOLD = 0.5  # Of the probability of a label, if an image can have several.


def predict(source, images, top=5, to=None, batch_size=32):
    """Predicts the classes of images, and prints them or writes a table.

    For a model of several labels, the labels with a probability of at least 0.5 are predicted. For a regression model,
    the predictions are values. For a segmentation model, they are the most common classes of the pixels and their
    shares.

    Args:
        source: A run's folder, a folder of exported versions (the highest is used), or a SavedModel.
        images: Sources of images, as in `keras_vit.data.reading.read_samples`.
        top: Number of classes to predict; for a classifier, at most the number that the SavedModel returns.
        to: A `.csv`, `.jsonl` or `.parquet` file for the predictions. For a segmentation model, it can be a folder.
            Each picture is written there with its coloured mask, as a PNG file. `legend.png` shows the colours of the
            classes. `None`: nothing is written.
        batch_size: Number of images that are computed together.

    Returns:
        The number of unreadable images. Unreadable images are reported and skipped.

    Raises:
        InputError: If `source` contains no SavedModel, there are no images, or `to` cannot be written.
    """
    folder = find_saved_model(source)
    model = tf.saved_model.load(str(folder))  # Must stay referenced, because the signature needs the model's variables.
    serve = model.signatures.get("serving_default")
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise InputError(f"{folder} does not take encoded images. Export the model with: python -m training export")
    is_table = to is not None and to.suffix.lower() in inference.TABLES
    if "mask" in serve.structured_outputs:
        answer: _Classes | _Values | _Mask = _Mask(folder, top, None if is_table else to)
    elif to is not None and not is_table:
        raise InputError(f"{folder} has no masks to write to a folder. Give a file: --to=predictions.csv")
    else:
        output = _read_output(folder)
        answer = _Values(folder, output) if output["kind"] == "values" else _Classes(output["kind"], top)
    samples = itertools.chain.from_iterable([_samples(source) for source in images])
    results = inference.predict(lambda contents: serve(image_bytes=tf.constant(contents)), samples, batch_size)
    unreadable = _Unreadable()
    if not is_table:
        for sample, outputs in unreadable.reported(results):
            print(f"{sample['path']}: {answer.text(outputs, sample)}")
        return unreadable.count
    rows = ({"path": sample["path"]} | answer.row(outputs) for sample, outputs in unreadable.reported(results))
    try:
        inference.write_rows(to, ["path", *answer.columns], rows)
    except (ImportError, OSError) as error:
        raise InputError(f"--to={to} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    print(f"{to}: {unreadable.total - unreadable.count:,} images")
    return unreadable.count


def _samples(source):
    try:
        return read_samples(source)
    except OSError as error:
        return [{"path": str(source), "error": f"cannot be read: {error.strerror or error}"}]
    except (ImportError, ValueError) as error:
        raise InputError(str(error)) from None


class _Unreadable:
    """Counts images, and reports those that cannot be read."""

    def __init__(self):
        self.count = self.total = 0

    def reported(self, results):
        """Yields the results of the images that can be read."""
        for sample, outputs in results:
            self.total += 1
            if outputs is None:
                self.count += 1
                print(f"{sample['path']}: {sample['error']}")
            else:
                yield sample, outputs


def _read_output(folder):
    """What the output of a SavedModel means, from its `keras_vit.json`."""
    try:
        return json.loads((folder / "keras_vit.json").read_text(encoding="utf-8"))["output"]
    except (OSError, ValueError, KeyError):  # The file was removed.
        return {"kind": "classes"}


def _read_names(folder):
    return (folder / "assets" / "labels.txt").read_text(encoding="utf-8").splitlines()


def _numbers(array):
    """Floats with as few digits as float32 needs, such as 0.1 instead of 0.10000000149011612."""
    return [float(str(value)) for value in array]


class _Classes:
    """The answer of a classifier: the most probable classes, or all labels with a probability above the threshold."""

    def __init__(self, kind, top):
        self.has_several, self.top = kind == "labels", top
        self.columns = ["labels", "scores"] if self.has_several else ["label", "score", "labels", "scores"]

    def text(self, outputs, sample):
        found = self._found(outputs)
        texts = [f"{label} {score:.1%}" for label, score in found]
        if self.has_several and not found:
            label, score = outputs["labels"][0].decode(), outputs["scores"][0]
            return f"no label (best: {label} {score:.1%})"
        return ", ".join(texts)

    def row(self, outputs):
        found = self._found(outputs)
        row = {"labels": [label for label, _ in found], "scores": [score for _, score in found]}
        return row if self.has_several else {"label": found[0][0], "score": found[0][1]} | row

    def _found(self, outputs):
        pairs = zip(outputs["labels"][: self.top], _numbers(outputs["scores"][: self.top]), strict=True)
        return [(label.decode(), score) for label, score in pairs if not self.has_several or score >= _THRESHOLD]


class _Values:
    """The answer of a regression model."""

    def __init__(self, folder, output):
        self.columns = _read_names(folder)
        self.units = output.get("units") or [""] * len(self.columns)

    def text(self, outputs, sample):
        values = zip(self.columns, outputs["values"], self.units, strict=True)
        return ", ".join(f"{name} {value:.4g} {unit}".strip() for name, value, unit in values)

    def row(self, outputs):
        return dict(zip(self.columns, _numbers(outputs["values"]), strict=True))


class _Mask:
    """The answer of a segmentation model: the shares of the classes. Writes the mask if a folder is given."""

    def __init__(self, folder, top, to):
        self.columns = _read_names(folder)
        self.top, self.to, self.written = top, to, set()
        if to is not None:
            if len(self.columns) > MAX_CLASSES:
                raise InputError(f"Masks of more than {MAX_CLASSES} classes cannot be drawn. Leave --to out.")
            try:
                to.mkdir(parents=True, exist_ok=True)
                legend(self.columns).save(to / "legend.png")
            except OSError as error:
                raise InputError(f"--to={to} cannot be written to: {error.strerror}. Choose another folder.") from None

    def _shares(self, mask):
        return np.bincount(mask.ravel(), minlength=len(self.columns)) / mask.size

    def row(self, outputs):
        return dict(zip(self.columns, self._shares(outputs["mask"]).tolist(), strict=True))

    def text(self, outputs, sample):
        shares = self._shares(outputs["mask"])
        commonest = [label for label in np.argsort(-shares, kind="stable")[: self.top] if shares[label]]
        text = ", ".join(f"{self.columns[label]} {shares[label]:.1%} of the pixels" for label in commonest)
        return text if self.to is None else f"{text}; {self._write(outputs['mask'], sample)}"

    def _write(self, mask, sample):
        """Writes a picture with its mask, and returns the path."""
        with PIL.Image.open(io.BytesIO(sample["image"])) as image:
            pixels = np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
        stem = pathlib.PurePath(sample["path"]).stem
        names = itertools.chain([f"{stem}.png"], (f"{stem}-{number}.png" for number in itertools.count(2)))
        # Several folders can contain files of the same name.
        name = next(name for name in names if name not in self.written | {"legend.png"})
        self.written.add(name)
        PIL.Image.fromarray(overlay_mask(pixels, mask, len(self.columns))).save(self.to / name)
        return self.to / name


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
