"""Predicts the classes, the values, the objects, the masks or the depth of images with a SavedModel."""

import itertools
import json
import pathlib

import tensorflow as tf

from keras_vit import inference
from keras_vit.data.reading import read_samples
from training.errors import InputError
from training.inspection.predictions import PREDICTIONS
from training.recipe.assignments import read_run_info
from training.runs.folder import Run


def predict(source, images, top=5, to=None, batch_size=32, threshold=0.5):
    """Predicts the classes of images, and prints them or writes a table.

    For a model of several labels, the labels with a probability of at least `threshold` are predicted. For a regression
    model, the predictions are values. For a segmentation model, they are the most common classes of the pixels and
    their shares, or the objects with a score of at least `threshold`. For a depth estimator, they are the smallest, the
    median and the largest depth.

    Masks and objects of a run are shown as its task means them: as objects, as panoptic segments or as classes of
    pixels. Those of other SavedModels are shown as objects.

    Args:
        source: A run's folder, a folder of exported versions (the highest is used), or a SavedModel.
        images: Sources of images, as in `keras_vit.data.reading.read_samples`.
        top: Number of classes to predict; for a classifier, at most the number that the SavedModel returns.
        to: A `.csv`, `.jsonl` or `.parquet` file for the predictions. If they are made for pixels, it can be a folder:

            * Each picture is written there with its prediction, as a PNG file of the same name.
            * Classes of pixels: `masks/` contains PNG files of class indices, and `legend.png` shows the colours.
            * Objects: `instances.json` in COCO's format.
            * Panoptic segments: `panoptic.json` and `panoptic/`, in COCO's panoptic format.
            * Depth: `depth/` contains PNG files of 16 bits, in millimetres. Depth without a unit is scaled. The text
              `unit` in these files names the unit.

            `None`: nothing is written.
        batch_size: Number of images that are computed together. Pixels of original images are computed one by one.
        threshold: Lowest probability of a label, or score of an object, from 0 to 1.

    Returns:
        The number of unreadable images. Unreadable images are reported and skipped.

    Raises:
        InputError: If `source` contains no SavedModel, there are no images, or `to` cannot be written.
    """
    folder = find_saved_model(source)
    model = tf.saved_model.load(str(folder))  # Must stay referenced, because the signature needs the model's variables.
    serve = model.signatures.get("serving_default")
    if "text" in model.signatures:
        raise InputError(
            f"{folder} compares images with texts and predicts no classes. Make a classifier of the names of classes "
            f"(keras_vit.ImageTextModel.classifier) and export it, or send images and texts to a server "
            f"(keras_vit.text.client.Client)."
        )
    if serve is None or "image_bytes" not in serve.structured_input_signature[1]:
        raise InputError(f"{folder} does not take encoded images. Export the model with: python -m training export")
    is_table = to is not None and to.suffix.lower() in inference.TABLES
    if to is not None and to.suffix and not is_table and not to.is_dir():
        raise InputError(f"--to={to} must be a file {', '.join(inference.TABLES)}, or a folder without a suffix.")
    if is_table and to.resolve() in [pathlib.Path(source).resolve() for source in images]:
        raise InputError(f"--to={to} is a table of images, which would be replaced. Choose another file.")
    output = _read_output(folder, serve.structured_outputs)
    pictures = None if is_table else to
    answer = PREDICTIONS[_shown_as(folder, output["kind"])](folder, output, top, pictures, threshold)
    if pictures is not None and not answer.draws:
        suffixes = ", ".join(inference.TABLES)
        raise InputError(f"{folder} has no masks to write to a folder. Give a file {suffixes}. Received: --to={to}")
    signature = next((name for name in answer.signatures if name in model.signatures), None)
    if signature is None:
        raise InputError(f"{folder} needs the signature {answer.signatures[0]!r}. Export the model with it.")
    serve, samples = model.signatures[signature], itertools.chain.from_iterable([_samples(source) for source in images])
    batch_size = batch_size if signature == "serving_default" else 1
    results = inference.predict(lambda contents: serve(image_bytes=tf.constant(contents)), samples, batch_size)
    unreadable = _Unreadable()
    if not is_table:
        for sample, outputs in unreadable.reported(results):
            print(f"{sample['path']}: {answer.text(outputs, sample)}")
        answer.finish()
        return unreadable.count
    rows = ({"path": sample["path"]} | answer.row(outputs) for sample, outputs in unreadable.reported(results))
    try:
        inference.write_rows(to, ["path", *answer.columns], rows)
    except (ImportError, OSError) as error:
        raise InputError(f"--to={to} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    count = unreadable.total - unreadable.count
    print(f"{to}: {count:,} image{'' if count == 1 else 's'}")
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


def _read_output(folder, outputs):
    """What the output of a SavedModel means, from its `keras_vit.json`. `outputs` are those of its signature."""
    try:
        facts = json.loads((folder / "keras_vit.json").read_text(encoding="utf-8"))
        return facts["output"] | {"is_inverse": (facts.get("config") or {}).get("is_inverse", False)}
    except (OSError, ValueError, KeyError):  # The file was removed.
        return {"kind": "class_map" if "mask" in outputs else "classes"}


def _shown_as(folder, kind):
    """How predictions of a kind are shown: a key of `PREDICTIONS`. The task of a run decides what its masks mean."""
    recipe = Run(folder.resolve().parents[1]).recipe
    if kind != "masks" or not recipe.is_file():
        return kind
    task = read_run_info(recipe)["recipe"]["task"]
    return {"panoptic_segmentation": "panoptic", "segmentation": "class_map"}.get(task, kind)


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
