"""The predictions of the command `predict` for each kind of output: as text, as rows of a table, and as pictures."""

import io
import itertools
import json
import pathlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import PIL.PngImagePlugin
from pycocotools import mask as run_lengths

from training.data.masks import MAX_CLASSES
from training.errors import InputError
from training.files import write_text
from training.reports.figures import depth_scale, plot_color_bars
from training.reports.overlays import class_legend, overlay_mask, overlay_objects, with_labels


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
        threshold: Lowest probability of a label, if an image can have several, or score of an object.

    Attributes:
        columns: Columns of a table.
        draws: Whether pictures can be written.
        signatures: Names of the SavedModel's signatures that return the prediction. The first that exists is used.
    """

    columns: tuple[str, ...] = ("label", "score", "labels", "scores")
    draws = False
    signatures: tuple[str, ...] = ("serving_default",)

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

    def finish(self):
        """Writes what all images have in common, after the last one."""


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


class Embedding(Classes):
    """The vector of an image."""

    columns = ("embedding",)

    def __init__(self, folder, output, top, to, threshold):
        """Needs nothing from the folder."""

    def text(self, outputs, sample):
        vector = outputs["embedding"]
        return f"a vector of {len(vector):,} numbers, length {np.linalg.norm(vector):.4g}"

    def row(self, outputs):
        return {"embedding": _numbers(outputs["embedding"])}


class Pixels(Classes):
    """Predictions for the pixels of images. If a folder is given, pictures and files are written there.

    Attributes:
        folder: Name of the folder in `to` for the file of each image, or "" if there is none.
    """

    folder = ""
    draws = True
    signatures: tuple[str, ...] = ("predict_original", "serving_default")

    def __init__(self, folder, output, top, to, threshold):
        self.names, self.units = _read_names(folder), output.get("units")
        self.top, self.to, self.threshold, self.written = top, to, threshold, {"legend"}
        if to is not None:
            try:
                (to / self.folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"--to={to} cannot be written to: {error.strerror}. Choose another folder.") from None

    def text(self, outputs, sample):
        summary = self.summary(outputs)
        if self.to is None:
            return summary
        with PIL.Image.open(io.BytesIO(sample["image"])) as image:
            pixels = np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
        stem = pathlib.PurePath(sample["path"]).stem
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        # Several folders can contain files of the same name.
        name = next(name for name in names if name not in self.written)
        self.written.add(name)
        self.draw(pixels, outputs).save(self.to / f"{name}.png")
        self.write(f"{name}.png", outputs, sample)
        return f"{summary}; {self.to / name}.png"

    def summary(self, outputs):
        """The prediction as a line of text."""
        raise NotImplementedError

    def draw(self, pixels, outputs):
        """The prediction as a `PIL.Image`. `pixels` are those of the image, uint8 (H, W, 3)."""
        raise NotImplementedError

    def write(self, name, outputs, sample):
        """Writes the file of an image to `folder`."""


class ClassMap(Pixels):
    """The shares of the classes in a mask. Writes the picture with its coloured mask, and the mask."""

    folder = "masks"

    def __init__(self, folder, output, top, to, threshold):
        self.columns = _read_names(folder)
        if to is None and output["kind"] == "class_map":
            self.signatures = ("serving_default",)  # It is faster.
        if to is not None and len(self.columns) > MAX_CLASSES:
            raise InputError(f"Masks of more than {MAX_CLASSES} classes cannot be drawn. Leave --to out.")
        super().__init__(folder, output, top, to, threshold)

    def finish(self):
        if len(self.written) > 1:  # Besides the legend.
            class_legend(self.columns).save(self.to / "legend.png")

    def _shares(self, mask):
        return np.bincount(mask.ravel(), minlength=len(self.columns)) / mask.size

    def row(self, outputs):
        return dict(zip(self.columns, self._shares(outputs["mask"]).tolist(), strict=True))

    def summary(self, outputs):
        shares = self._shares(outputs["mask"])
        commonest = [label for label in np.argsort(-shares, kind="stable")[: self.top] if shares[label]]
        return ", ".join(f"{self.columns[label]} {shares[label]:.1%} of the pixels" for label in commonest)

    def draw(self, pixels, outputs):
        return PIL.Image.fromarray(overlay_mask(pixels, outputs["mask"], len(self.columns)))

    def write(self, name, outputs, sample):
        PIL.Image.fromarray(outputs["mask"]).save(self.to / self.folder / name)


class Instances(Pixels):
    """The objects of an image. Writes the picture with its objects, and `instances.json` in COCO's format.

    The id of a category is the index of its class.
    """

    columns = ("labels", "scores", "shares")
    signatures = ("instances",)
    file = "instances.json"

    def __init__(self, folder, output, *arguments):
        super().__init__(folder, output, *arguments)
        self.images, self.annotations, self.is_thing = [], [], output.get("is_thing") or ()

    def objects(self, outputs):
        """The objects with a score above the threshold, the best first, as annotations of COCO."""
        height, width = outputs["sizes"].tolist()
        scores, found = _numbers(outputs["scores"]), []
        for i in range(outputs["num_objects"]):
            runs = {"size": [height, width], "counts": outputs["counts"][i, : outputs["num_counts"][i]].tolist()}
            code = run_lengths.frPyObjects(runs, height, width)
            known = {"area": int(run_lengths.area(code)), "bbox": run_lengths.toBbox(code).tolist(), "iscrowd": 0}
            code = {"size": [height, width], "counts": code["counts"].decode()}
            known |= {"category_id": int(outputs["classes"][i]), "score": scores[i], "segmentation": code}
            found += [known] * (scores[i] >= self.threshold)
        return found

    def row(self, outputs):
        found = self.objects(outputs)
        shares = [each["area"] / outputs["sizes"].prod().item() for each in found]
        labels = [self.names[each["category_id"]] for each in found]
        return {"labels": labels, "scores": [each["score"] for each in found], "shares": shares}

    def summary(self, outputs):
        return ", ".join(map(self._title, self.objects(outputs)[: self.top])) or "no object"

    def _title(self, known):
        return f"{self.names[known['category_id']]} {known['score']:.1%}"

    def _regions(self, found, size):
        """The number of the object of each pixel, from 1, int (H, W). Where they overlap, the best one counts."""
        regions = np.zeros(size, int)
        for number, known in reversed(list(enumerate(found, 1))):
            regions[run_lengths.decode(known["segmentation"]) > 0] = number
        return regions

    def draw(self, pixels, outputs):
        found = self.objects(outputs)
        classes = np.array([known["category_id"] for known in found], int)
        drawn = overlay_objects(pixels, self._regions(found, outputs["sizes"]), classes, len(self.names))
        return with_labels(drawn, [(self._title(known), known["bbox"][:2]) for known in reversed(found)])

    def write(self, name, outputs, sample):
        height, width = outputs["sizes"].tolist()
        self.images.append({"id": len(self.images) + 1, "file_name": sample["path"], "height": height, "width": width})
        self.annotations += self.annotated(name, self.objects(outputs), outputs["sizes"])

    def annotated(self, name, found, size):
        """The annotations of the last image, from its objects."""
        first = len(self.annotations) + 1
        return [{"id": first + i, "image_id": len(self.images)} | known for i, known in enumerate(found)]

    def finish(self):
        if self.to is not None:
            categories = [{"id": index, "name": name} for index, name in enumerate(self.names)]
            for category, is_thing in zip(categories, self.is_thing, strict=False):
                category["isthing"] = int(is_thing)
            content = {"images": self.images, "categories": categories, "annotations": self.annotations}
            write_text(self.to / self.file, json.dumps(content))


class Panoptic(Instances):
    """The segments of an image. Writes the picture, and `panoptic.json` with PNG files in COCO's panoptic format."""

    folder, file = "panoptic", "panoptic.json"
    signatures = ("panoptic",)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_thing = self.is_thing or [True] * len(self.names)

    def annotated(self, name, found, size):
        regions = self._regions(found, size)
        colors = np.stack([regions >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype("uint8")
        PIL.Image.fromarray(colors).save(self.to / self.folder / name)
        for number, known in enumerate(found, 1):
            known.pop("segmentation")
            known["id"] = number
        return [{"image_id": len(self.images), "file_name": name, "segments_info": found}]


class Depth(Pixels):
    """The depth of each pixel. Writes the coloured depth with its legend, and the depth in 16 bits.

    Metres are written as millimetres, up to 65.535 metres. Depth of another unit, or without one, is scaled so that the
    largest is 65535. The text `unit` in the file says which number is 1.
    """

    columns = ("minimum", "median", "maximum")
    folder = "depth"

    def __init__(self, folder, output, *arguments):
        super().__init__(folder, output, *arguments)
        self.title = "inverse depth" if output.get("is_inverse") else "depth"

    def row(self, outputs):
        depth = outputs["depth"]
        return dict(zip(self.columns, _numbers([depth.min(), np.median(depth), depth.max()]), strict=True))

    def summary(self, outputs):
        low, median, high = self.row(outputs).values()
        return f"{self.title} {low:.4g} to {high:.4g} ({self._unit}), median {median:.4g}"

    @property
    def _unit(self):
        return self.units[0] if self.units else "relative"

    def draw(self, pixels, outputs):
        depth = outputs["depth"]
        high = max(float(np.quantile(depth, 0.99)), 1e-6)
        scale = depth_scale(max(float(np.quantile(depth, 0.01)), 1e-3 * high) * 0.99, high, self.title != "depth")
        colors = PIL.Image.fromarray(scale.to_rgba(depth, bytes=True)[..., :3])
        buffer = io.BytesIO()
        plot_color_bars({f"{self.title} ({self._unit})": scale}).savefig(buffer)
        legend = PIL.Image.open(buffer).convert("RGB")
        size = max(colors.width, legend.width), colors.height + legend.height
        drawn = PIL.Image.new("RGB", size, "white")
        drawn.paste(colors)
        drawn.paste(legend, (0, colors.height))
        return drawn

    def write(self, name, outputs, sample):
        depth, facts = outputs["depth"], PIL.PngImagePlugin.PngInfo()
        factor = 1000 if self.units == ["metres"] else 65535 / max(float(depth.max()), 1e-6)
        facts.add_text("unit", f"{1 / factor:.6g} {self._unit}")
        values = np.clip(np.rint(factor * depth), 0, 65535).astype("uint16")
        PIL.Image.fromarray(values).save(self.to / self.folder / name, pnginfo=facts)


class Normals(Pixels):
    """The surface normals. Writes them as a picture: red, green and blue are x, y and z from -1 to 1."""

    columns = ("x", "y", "z")

    def row(self, outputs):
        return dict(zip(self.columns, _numbers(outputs["normals"].mean(axis=(0, 1))), strict=True))

    def summary(self, outputs):
        return "mean normal " + ", ".join(f"{name} {value:.3f}" for name, value in self.row(outputs).items())

    def draw(self, pixels, outputs):
        return PIL.Image.fromarray(np.rint(np.clip(127.5 * (outputs["normals"] + 1), 0, 255)).astype("uint8"))


PREDICTIONS = {
    "classes": Classes,
    "labels": Labels,
    "values": Values,
    "embedding": Embedding,
    "class_map": ClassMap,
    "masks": Instances,
    "panoptic": Panoptic,
    "depth": Depth,
    "normals": Normals,
}
"""{kind of an output, or `"panoptic"` for masks that are drawn as segments: class of its predictions}"""
