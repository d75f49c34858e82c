"""SavedModels for TensorFlow Serving. They take encoded images and return what the model predicts.

Shapes: B batch, H W C image, h w grid of patches or masks, D hidden, k classes returned, Q queries, N objects, R runs.
"""

import collections.abc
import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import warnings
from importlib import metadata

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit.atomic_files import replace_atomically
from keras_vit.checks import MAX_PIXELS, check_choice, check_flag, check_positive_integer, problem_of_class_names
from keras_vit.export.answers import answer_of
from keras_vit.export.cards import write_card
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.parity import check_limits, compare, compare_masks, computes_in_float32, verified
from keras_vit.export.precision import PRECISIONS
from keras_vit.export.server_files import check_name, check_no_openvino_versions, default_name, write_operator_files
from keras_vit.export.signatures import check_output, check_signatures
from keras_vit.graph import is_quantized
from keras_vit.label_spaces import imagenet1k_classes
from keras_vit.outputs import output_of
from keras_vit.preprocessing import input_preprocessing, preprocessing_layer
from keras_vit.pretrained import describe
from keras_vit.weights.model_cards import CARD, Evaluation, check_card

_MAIN_FILE = "saved_model.pb"


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    labels: collections.abc.Sequence[str] | None = None,
    version: int = 1,
    overwrite: bool = False,
    top_k: int = 5,
    jit_compile: bool = False,
    precision: str = "float32",
    tolerance: float = 1e-5,
    min_agreement: float = 0.95,
    images: ArrayLike | None = None,
    image_size: tuple[int, int] | None = None,
    batch_sizes: collections.abc.Sequence[int] | None = None,
    max_image_pixels: int = MAX_PIXELS,
    signatures: collections.abc.Sequence[str] | None = None,
    name: str | None = None,
    card: bool | Evaluation = False,
) -> pathlib.Path:
    """Writes a model as a SavedModel, in the folder layout of TensorFlow Serving.

    The SavedModel in `path/<version>/` has these signatures, or some of them if `signatures` is given. Each takes
    batches of any size, including empty batches:

    * `serving_default` takes `image_bytes` (B,). It returns `probabilities`, `classes`, `labels`, `scores` and `valid`.
    * `predict_pixels` takes `images` (B, H, W, C) in uint8. It returns the same outputs, except `valid`.
    * `predict_pixels_float` takes `images` in float32, in [0, 255]. It returns all outputs of `serving_default`.
    * `embed` takes `image_bytes`. It returns `embedding` (B, D), the input of the classifier, and `valid`.
    * `tokens` takes `image_bytes`. It returns `tokens` (B, h, w, D), the encoder's output for each patch, and `valid`.
    * `explain` takes `image_bytes`. It returns `rollout` (B, h, w), the result of `keras_vit.attention_rollout`, and
      `valid`.

    Models that merge tokens or have no encoder blocks (such as BiT-ResNets) have neither `tokens` nor `explain`. Models
    that predict something for each pixel have the first three signatures, and others that take `image_bytes` and return
    pixels of the original images. The outputs of the first three have the model's size:

    * A map of classes: `mask` (B, H, W), the index of the most probable class of each pixel, and `score` (B, H, W), its
      probability. `mask` is uint8, with 255 for invalid images. With more than 255 classes, it is int32, with -1 for
      invalid images.
    * Depth: `depth` (B, H, W). Its unit is in `keras_vit.json` (`output`). It is in metres if the model has a
      `max_depth`. If `config` has a `focal_length`, metres are `depth` times the focal length of the camera divided by
      it, both in pixels of the resized image. Other depth has no unit.
    * Surface normals: `normals` (B, H, W, 3).
    * Masks and objects: the logits `masks` (B, h, w, Q) and `objects` (B, Q, classes + 1), where the last class means
      that there is no object; `classes`, `labels` and `scores` (B, Q), the most probable class of each query.

    The signatures for original images:

    * `predict_original` returns `mask` and `score`, `depth` or `normals`. Of masks and objects, the class of a pixel is
      that of `keras_vit.heads.segments.semantic_scores`.
    * `instances` and `panoptic`, for masks and objects, return `classes`, `labels` and `scores` (B, N) of the objects
      of each image, the best first, and their masks as COCO's run lengths, `counts` (B, N, R): the numbers of pixels
      that are alternately outside and inside, column by column. `num_objects` (B,) and `num_counts` (B, N) are the
      numbers of objects and of run lengths. Objects of `instances` may overlap. Those whose class has a probability
      below 0.05 are left out, and so are all but 100. Segments of `panoptic` do not overlap, and have a probability
      above 0.8.

    These signatures also return `sizes` (B, 2), the height and width of each image after the EXIF orientation is
    applied, or 0 for an image that is not valid. Outputs are padded to the largest image or number of the batch: with
    255 or -1 for `mask`, -1 for `classes`, and 0 or "" for others. Images are computed one by one, in strips, but the
    outputs of a batch take as much memory as if all images had the size of the largest. Models that crop images do not
    have these signatures. The names of classes are in `assets/labels.txt` and `keras_vit.json`.

    `image_bytes` are the contents of JPEG, PNG, GIF, BMP or WebP files. The SavedModel decodes them, applies the EXIF
    orientation of JPEG files, and resizes and normalises the images as the model's `preprocessing` layer defines.
    `probabilities` is (B, classes). `classes`, `labels` and `scores`, each (B, k), are the indices, names and
    probabilities of the `top_k` most probable classes, the best first. A softmax is added to a model that ends with
    logits of classes, and a sigmoid to one that ends with logits of labels. A model that returns values
    (`keras_vit.set_output`) has `values`, (B, values), in place of these outputs. `keras_vit.json` has their names and
    units. A model without a classifier, such as the image encoder of CLIP, has `embedding`, (B, D), and no `embed`.

    For an image that cannot be decoded or has pixels outside [-0.5, 255.5], `valid` is `False`, `classes` are -1,
    `labels` are empty, and other outputs are zero. The other images of the batch are unaffected.

    The folder also contains `assets/labels.txt`, warm-up requests for the server, and `keras_vit.json`, a description
    of the model. Configuration files for a server are written next to the folder (see docs/serving.md).

    The SavedModel is written to a temporary folder, loaded, and compared with the model on photographs. Only then is it
    moved to its final path. If the comparison fails, nothing is written. The outputs must agree as follows:

    * No probability of an image may differ by more than `tolerance`. For the other outputs, the difference divided by
      their Euclidean norm may be at most `10 * tolerance`.
    * In maps of classes, no score may differ by more than `10 * tolerance`. If the SavedModel and the model choose
      different classes for a pixel, the model's probabilities of the two classes may differ by at most as much.
    * Values, embeddings of `serving_default`, depth, normals and logits of masks are divided by the largest, and may
      differ by `10 * tolerance`.
    * If weights or computations have a lower precision than float32, or Keras has quantized the model, only the most
      probable class is compared. The share of the images or pixels with the same class must be at least
      `min_agreement`. Values, depths and normals agree if they differ by at most a twentieth of their range, and
      embeddings if their cosine is at least 0.99.

    Pixels of the original images are computed once, and not compared: they follow from the outputs that are compared.

    If the model's output does not depend on the image, for example because its classifier is new, a copy of the model
    with a random classifier is compared too.

    Args:
        model: A model of this package that returns classes, labels, values, embeddings (B, D), a map of classes, depth,
            normals, or masks and objects (`keras_vit.describe(model).outputs`). It may be nested in another model. If
            Keras does not run on TensorFlow, another process writes the SavedModel.
        path: Folder of all versions of the model.
        labels: List of the names of the classes, labels or values. Each is a text of one line that is not empty. A name
            that occurs twice causes a warning. By default, they are the names that `keras_vit.set_output` has recorded.
            Without a record, the model's label space defines the names. For `"imagenet1k"`, they are the ImageNet-1k
            names. If the label space is a list, they are the names in this list. Otherwise they are the indices of the
            classes.
        version: Version number.
        overwrite: Whether the folder of an existing version may be replaced, with all its files.
        top_k: Maximum number of returned classes of an image. Pixels and objects have one class each.
        jit_compile: Whether the server compiles the model with XLA, once for each of `batch_sizes`. Batches of other
            sizes are padded. Decoding is never compiled.
        precision: `"float32"`, `"bfloat16"` or `"int8"`. `"int8"` is a storage format: kernels have 8 bits on the disk,
            and computations are in float32. The size on the disk is a quarter of that in
            float32, with a scale for each output channel. With `"bfloat16"`, the size is half of that in float32, and
            computations are in bfloat16.
        tolerance: Maximum difference of the probability of an image, for float32 weights. Other outputs may differ by
            ten times as much. A large model may need a larger tolerance with JAX, torch or `jit_compile`, because other
            compilers sum in another order.
        min_agreement: Minimum share of the images, in [0, 1], for which an export of lower precision must predict the
            same class as `model`, or nearly the same values. For a segmentation model, it is a share of the pixels.
        images: Paths of image files for the comparison. By default, four photographs of this package are used. To judge
            weights of lower precision, pass a few hundred images of your own.
        image_size: (height, width) of decoded images, for a model that takes images of any size. The signatures that
            take pixels still accept any size.
        batch_sizes: Expected batch sizes, with which the server is warmed up. Batches above the largest size are split.
            By default 1, 8 and 32. For predictions of pixels, the default is 1 and 4, because the probabilities of all
            classes at all pixels take much memory.
        max_image_pixels: Maximum height times width of an image. Larger images are not decoded and not valid. Decoding
            takes up to 12 bytes per pixel. Each CPU core decodes one image at a time, and all cores decode at the same
            time. The default is Pillow's limit.
        signatures: Names of the signatures to write, with `"serving_default"` among them. By default all signatures of
            the model. With fewer signatures, the export takes less time, and the SavedModel loads faster.
        name: Name of the model for clients. By default the name of the folder `path`.
        card: Whether a model card, `README.md`, is written in the version's folder. It describes the architecture, the
            source and licence of the weights, the preprocessing and the loading, in the format of the Hugging Face Hub.
            To include measured metrics, pass a `keras_vit.Evaluation`. A `README.md` that keras_vit did not write is
            not replaced.

    Returns:
        The path of the version's folder, as a `pathlib.Path`.

    Raises:
        FileExistsError: If the version exists and `overwrite` is `False`, or if the card would replace another
            `README.md`.
        RuntimeError: If another process writes the SavedModel, and that process fails.
        TypeError: If `signatures` is not a list, or if `images` are not paths.
        ValueError: If an argument is invalid, if the model returns something else, if it changes
            pixels before its `preprocessing` layer, if the outputs of the SavedModel differ from the model's, or if
            `path` contains versions of an OpenVINO file.
        OSError: If a file cannot be written. If only a configuration file of the server cannot be written, the
            SavedModel is complete.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(weights="pets.weights.h5", classes=3)  # doctest: +SKIP
    >>> keras_vit.export_saved_model(model, "models/pets", labels=["ant", "bee", "cat"])  # doctest: +SKIP
    PosixPath('models/pets/1')
    """
    path = pathlib.Path(path)
    folder = new_version(path, version, overwrite)
    check_card(card, folder / CARD, _MAIN_FILE)
    _check_model(model, image_size, precision)
    check_limits(tolerance, min_agreement)
    options = {
        "labels": _labels(model, labels),
        "top_k": check_positive_integer("top_k", top_k),
        "jit_compile": check_flag("jit_compile", jit_compile),
        "precision": precision,
        "images": None if images is None else _image_paths(images),
        "image_size": None if image_size is None else [int(side) for side in image_size],
        "signatures": check_signatures(model, signatures),
        "max_image_pixels": check_positive_integer("max_image_pixels", max_image_pixels),
        "batch_sizes": _batch_sizes(model, batch_sizes),
        "model_name": default_name(path) if name is None else check_name(name),
    }
    path.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving ignores the temporary folder, because its name is not a number.
    with replace_atomically(folder, overwrite=overwrite) as working:
        exact = precision == "float32" and computes_in_float32(model)
        write = functools.partial(_write, name=folder.name, **options)
        parity = verified(write, model, working, exact, tolerance, min_agreement)
        facts = _facts(model, options, parity)
        write_facts(working / folder.name, options["model_name"], version, model, facts)
        write_card(working / folder.name, model, "saved_model", _MAIN_FILE, card, precision, labels)
    write_operator_files(path, options["model_name"], version, options["batch_sizes"], jit_compile)
    return folder


def new_version(path, version, overwrite):
    """Checks that a version of a model can be written, and returns its folder."""
    check_flag("overwrite", overwrite)
    folder = path / str(check_positive_integer("version", version))
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists. Give another version, or overwrite=True to replace it.")
    check_no_openvino_versions(path)
    return folder


def _write(model, folder, name, **options):
    """Writes a model as a SavedModel to the new folder `name` in `folder`, and returns its `Parity`."""
    file, saved = folder / "answers.npz", folder / name
    saved.mkdir()
    with_tensorflow(write_saved_model, model, folder=str(saved), answers=str(file), **options)
    with np.load(file) as arrays:
        pixels = arrays["pixels"]
        answers: dict = {}
        for key in [key for key in arrays if key != "pixels"]:
            signature, output = key.split("/")
            answers.setdefault(signature, {})[output] = arrays[key]
    return (compare_masks if answer_of(model).returns_mask else compare)(model, pixels, answers)


def write_saved_model(model, **arguments):
    """Calls `writing.write_saved_model`, which imports TensorFlow."""
    from keras_vit.export import writing

    writing.write_saved_model(model, **arguments)


def _check_model(model, image_size, precision):
    check_output(model)
    input_preprocessing(model, image_size)
    check_choice("precision", precision, PRECISIONS)
    if precision != "float32" and is_quantized(model):
        raise ValueError(
            f"{model.name!r} was quantized by Keras. Export it with precision='float32', which does not change the "
            f"weights, or export it before model.quantize. Received: precision={precision!r}"
        )


def _image_paths(images):
    if isinstance(images, (str, os.PathLike)) or not all(isinstance(image, (str, os.PathLike)) for image in images):
        raise TypeError(
            f"images must be a list of paths of image files, because the SavedModel decodes files. (export_model takes "
            f"arrays of pixels.) Received: {type(images).__name__}"
        )
    missing = [image for image in images if not pathlib.Path(image).is_file()]
    if missing or not images:
        raise ValueError(f"images must be paths of files. Received: {', '.join(map(str, missing)) or 'none'}")
    return [str(pathlib.Path(image).resolve()) for image in images]


def _batch_sizes(model, sizes):
    if sizes is None:
        return list(answer_of(model).batch_sizes)
    if not sizes:
        raise ValueError(f"batch_sizes must contain at least one number of images. Received: {sizes!r}")
    return sorted({check_positive_integer("batch_sizes", size) for size in sizes})


def _labels(model, labels):
    answer, preprocessing = answer_of(model), preprocessing_layer(model)
    classes, known = answer.num_names(model), output_of(model).names or answer.labels
    is_given = labels is not None
    if not is_given and preprocessing.label_space == "imagenet1k" and classes == len(imagenet1k_classes()):
        labels = [name for _, name in imagenet1k_classes()]
    elif not is_given:
        labels = list(known or map(str, range(classes)))
    if not isinstance(labels, (list, tuple)) or len(labels) != classes:
        raise ValueError(f"labels must be a list of names for the model's {classes} classes. Received: {labels!r}")
    labels = [str(label) for label in labels]
    if problem := problem_of_class_names(labels):
        raise ValueError(f"labels must have one line each, as in assets/labels.txt, but {problem}")
    repeated = [label for label, count in collections.Counter(labels).items() if count > 1]
    if is_given and repeated:
        warnings.warn(
            f"labels contains {repeated[0]!r} more than once. Clients can only distinguish these classes by their "
            f"indices, `classes`.",
            stacklevel=3,
        )
    return labels


def _facts(model, options, parity):
    description = describe(model)
    names = ("top_k", "jit_compile", "precision", "image_size", "max_image_pixels", "batch_sizes")
    output = {name: getattr(output_of(model), name) for name in ("kind", "activation", "units")}
    if things := output_of(model).is_thing:
        output["is_thing"] = things
    return {
        "output": output,
        "signatures": sorted(options["signatures"]),
        "input_shape": model.input_shape[1:],
        "classes": answer_of(model).num_names(model),
        # Maps and values do not contain names, and embeddings have none.
        **({} if answer_of(model).has_names or not options["labels"] else {"labels": options["labels"]}),
        "config": description.config.to_dict(),
        "weights": {name: getattr(description, name) for name in ("source", "licence", "adaptations")},
        "preprocessing": description.pixels | {"label_space": description.label_space},
        "options": {name: options[name] for name in names},
        "parity": dataclasses.asdict(parity),
    }


def write_facts(folder, name, version, model, facts):
    """Writes `keras_vit.json` into the folder of a version: facts of all SavedModels, and further ones."""
    known = {
        "name": name,
        "version": int(version),
        "exported": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **facts,
        "bytes": {
            "all": _num_bytes(folder),
            "weights": _num_bytes(folder / "variables"),
            "weights_in_float32": 4 * model.count_params(),
        },
        "versions": _versions() | {"keras_backend": keras.backend.backend()},
    }
    (folder / "keras_vit.json").write_text(json.dumps(known, indent=2) + "\n")


def _num_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _versions():
    versions = {"python": platform.python_version()}
    for package in ("keras-vit-applications", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
