"""The predictions of the command `predict` for each kind of output: as text, as rows of a table, and as pictures."""

import io
import itertools
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps

from training.data.masks import MAX_CLASSES
from training.errors import InputError
from training.reports.overlays import class_legend, overlay_mask


def _read_names(folder):
    """The names of a SavedModel's classes or values."""
    return tuple((folder / "assets" / "labels.txt").read_text(encoding="utf-8").splitlines())


def _numbers(array):
    """Floats with as few digits as float32 needs, such as 0.1 instead of 0.10000000149011612."""
    return [float(str(value)) for value in array]


class Classes:
    """The most probable classes of an image.

    Args:
        folder: Folder of the SavedModel.
        output: The SavedModel's `keras_vit.Output`, as a dictionary.
        top: Number of classes to predict.
        to: Folder for pictures, or `None`. Only predictions with `draws` write pictures.
        threshold: Lowest probability of a label, if an image can have several.
    """

    columns: tuple[str, ...] = ("label", "score", "labels", "scores")
    draws = False

    def __init__(self, folder, output, top, to, threshold):
        self.top = top

    def text(self, outputs, sample):
        """The prediction as a line of text, from the outputs for an image. May write a picture of the sample."""
        return ", ".join(f"{label} {score:.1%}" for label, score in self.found(outputs))

    def row(self, outputs):
        """The prediction as a row of a table: {one of `columns`: value}."""
        labels, scores = map(list, zip(*self.found(outputs), strict=True))
        return {"label": labels[0], "score": scores[0], "labels": labels, "scores": scores}

    def found(self, outputs):
        """Pairs (label, score) of the predicted classes, the best first."""
        scores = _numbers(outputs["scores"][: self.top])
        return [(label.decode(), score) for label, score in zip(outputs["labels"], scores, strict=False)]


class Labels(Classes):
    """All labels with a probability above the threshold, also those beyond the number that the SavedModel names."""

    columns = ("labels", "scores")

    def __init__(self, folder, output, top, to, threshold):
        self.names, self.threshold = _read_names(folder), threshold

    def text(self, outputs, sample):
        best = outputs["probabilities"].argmax()
        text = super().text(outputs, sample)
        return text or f"no label (best: {self.names[best]} {outputs['probabilities'][best]:.1%})"

    def row(self, outputs):
        found = self.found(outputs)
        return {"labels": [label for label, _ in found], "scores": [score for _, score in found]}

    def found(self, outputs):
        found = zip(self.names, _numbers(outputs["probabilities"]), strict=True)
        return sorted((pair for pair in found if pair[1] >= self.threshold), key=lambda pair: -pair[1])


class Values(Classes):
    """The values of a regression model, with their units."""

    def __init__(self, folder, output, top, to, threshold):
        self.columns = _read_names(folder)
        self.units = output.get("units") or [""] * len(self.columns)

    def text(self, outputs, sample):
        values = zip(self.columns, outputs["values"], self.units, strict=True)
        return ", ".join(f"{name} {value:.4g} {unit}".strip() for name, value, unit in values)

    def row(self, outputs):
        return dict(zip(self.columns, _numbers(outputs["values"]), strict=True))


class ClassMap(Classes):
    """The shares of the classes in a mask. Writes the picture with its coloured mask if a folder is given."""

    draws = True

    def __init__(self, folder, output, top, to, threshold):
        self.columns, self.top, self.to, self.written = _read_names(folder), top, to, {"legend.png"}
        if to is not None:
            if len(self.columns) > MAX_CLASSES:
                raise InputError(f"Masks of more than {MAX_CLASSES} classes cannot be drawn. Leave --to out.")
            try:
                to.mkdir(parents=True, exist_ok=True)
                class_legend(self.columns).save(to / "legend.png")
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
        name = next(name for name in names if name not in self.written)
        self.written.add(name)
        PIL.Image.fromarray(overlay_mask(pixels, mask, len(self.columns))).save(self.to / name)
        return self.to / name


PREDICTIONS = {"classes": Classes, "labels": Labels, "values": Values, "class_map": ClassMap}
"""{kind of an output: class of its predictions}"""
