"""SavedModels that TensorFlow Serving runs: encoded images in, probabilities and labels, or masks, out.

B batch, H W C image, h w grid of patches, D hidden, k classes returned.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import pathlib
import platform
from importlib import metadata

import keras
import numpy as np

from keras_vit.atomic_files import appears_complete
from keras_vit.checks import check_choice, check_flag, check_positive_integer, is_one_line
from keras_vit.decoding import MAX_PIXELS, input_protocol
from keras_vit.export.elsewhere import with_tensorflow
from keras_vit.export.operator_files import check_name, default_name, write_operator_files
from keras_vit.export.parity import check_limits, compare, compare_masks, computes_in_float32, verified
from keras_vit.export.precision import PRECISIONS
from keras_vit.export.signatures import check_output, is_segmenter
from keras_vit.export.writing import write_saved_model
from keras_vit.graph import is_quantized
from keras_vit.label_spaces import imagenet1k_classes
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.pretrained import describe


def export_saved_model(
    model,
    path,
    labels=None,
    version=1,
    overwrite=False,
    top_k=5,
    jit_compile=False,
    precision="float32",
    tolerance=1e-5,
    min_agreement=0.95,
    images=None,
    image_size=None,
    batch_sizes=None,
    max_image_pixels=MAX_PIXELS,
    name=None,
):
    """Writes a model as a SavedModel, in the folder layout of TensorFlow Serving.

    `path/<version>/` has these signatures, each for batches of any size, also of none:

    | signature | takes | returns |
    |---|---|---|
    | `serving_default` | `image_bytes` (B,) | `probabilities`, `classes`, `labels`, `scores`, `valid` |
    | `predict_pixels` | `images` (B, H, W, C) uint8 | `probabilities`, `classes`, `labels`, `scores` |
    | `predict_pixels_float` | the same in float32, [0, 255] | the same, and `valid` |
    | `embed` | `image_bytes` (B,) | `embedding` (B, D), what the classifier reads; `valid` |
    | `tokens` | `image_bytes` (B,) | `tokens` (B, h, w, D), what the encoder makes of each patch; `valid` |
    | `explain` | `image_bytes` (B,) | `rollout` (B, h, w), as `keras_vit.attention_rollout`; `valid` |

    A model without encoder blocks, such as a BiT-ResNet, or whose tokens are merged, has no `tokens` and no
    `explain`. A segmentation model has the first three only, which return masks at the model's input size in place of
    `probabilities` and names: `mask` (B, H, W), the index of the most probable class of each pixel, and `score` (B,
    H, W), its probability. `mask` is uint8, and 255 where an image is not valid; of more than 255 classes it is
    int32, and -1. Names are in `assets/labels.txt` and `keras_vit.json`.

    `image_bytes` are the contents of JPEG, PNG, GIF, BMP or WebP files. Decoding, the EXIF orientation of JPEG files,
    resizing and normalising happen inside, as the model's `preprocessing` layer says. `probabilities` is (B, classes);
    of the `top_k` most probable classes, the best first, `classes` (B, k) are the indices, `labels` (B, k) the names
    and `scores` (B, k) the probabilities. A model that ends with logits is exported with a softmax.

    An image that cannot be decoded, or has pixels that are not finite, does not harm its neighbours: its row of `valid`
    (B,) is `False`, its numbers are zero, its `classes` -1 and its `labels` empty.

    In the folder are also `assets/labels.txt`, requests that a server warms the model up with, and `keras_vit.json`
    with all that is known of the model. Beside it are configurations of a server, see docs/serving.md.

    Before it appears under its name, what was written is loaded and compared with the model on photographs: every
    probability to 1e-5, and what the other signatures give for an image to 1e-4 of its Euclidean norm; of masks every
    score, and that the model gives the named class as much, and no class more, to 1e-5. A model with smaller weights,
    or one that computes in less than float32 or that Keras has quantized, must name the same class for most of the
    images, or of their pixels. If it does not, nothing is left behind. Of a model that answers alike for every image,
    as one with a fresh classifier does, a copy with a random classifier is written and compared too.

    Args:
        model: A classifier or segmentation model of this package, also nested in another model. Where Keras does not
            run on TensorFlow, the SavedModel is written by another process.
        path: Folder of all versions of the model.
        labels: List of the classes' names. By default the ImageNet-1k names if the model's label space is
            `"imagenet1k"`, otherwise the indices.
        version: Number of this version.
        overwrite: Whether an existing version may be replaced.
        top_k: How many classes are named, at most. Masks name one.
        jit_compile: Whether the model is compiled with XLA where it is served, for each of `batch_sizes`, to which
            others are filled up; decoding never is.
        precision: Of the weights: `"float32"`; `"bfloat16"`, half the size, computing in bfloat16; or `"int8"`, a
            quarter of the size on the disk, kernels of 8 bits for each output channel, computing in float32.
        tolerance: The largest difference of a float32 probability; of other outputs ten times as much. A large model
            may need more where another compiler adds up in another order: with JAX, torch or `jit_compile`.
        min_agreement: The part of the images, in [0, 1], for which a model with smaller weights must name the class
            that `model` names; of a segmentation model the part of the pixels.
        images: Paths of image files to compare with. By default four photographs of this package; give some hundred of
            your own to judge smaller weights.
        image_size: (height, width) that encoded images are brought to, for a model that takes images of any size. The
            signatures of pixels take any size then.
        batch_sizes: Numbers of images that are expected in one batch: the server is warmed up with each. The largest
            passes through the model at once; larger batches do in parts. By default 1, 8 and 32; of a segmentation
            model, which computes a probability for each class at each pixel, 1 and 4.
        max_image_pixels: Height times width of the largest image that is decoded; larger ones are not valid. Reading an
            image takes up to 12 bytes for each pixel, and a batch reads as many at a time as there are cores. The
            default is the limit of Pillow.
        name: What clients call the model; by default the name of the folder `path`.

    Returns:
        The path of the version's folder, as a `pathlib.Path`.

    Raises:
        FileExistsError: If the version exists and `overwrite` is `False`.
        RuntimeError: If TensorFlow is in another process, and that fails.
        ValueError: If the model is neither a classifier nor a segmentation model, it changes pixels before its
            `preprocessing` layer sees them, an argument is impossible, or what was written answers otherwise than the
            model.
        OSError: If something cannot be written. The version is there already if it is one of the files beside it.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(weights="pets.weights.h5", classes=3)  # doctest: +SKIP
    >>> keras_vit.export_saved_model(model, "models/pets", labels=["ant", "bee", "cat"])  # doctest: +SKIP
    PosixPath('models/pets/1')
    """
    path = pathlib.Path(path)
    check_flag("overwrite", overwrite)
    check_flag("jit_compile", jit_compile)
    folder = _new_version(path, version, overwrite)
    check_output(model)
    input_protocol(model, image_size)
    _check_precision(model, precision)
    check_limits(tolerance, min_agreement)
    options = {
        "labels": _labels(model, labels),
        "top_k": check_positive_integer("top_k", top_k),
        "jit_compile": jit_compile,
        "precision": precision,
        "images": None if images is None else _image_paths(images),
        "image_size": None if image_size is None else [int(side) for side in image_size],
        "max_image_pixels": check_positive_integer("max_image_pixels", max_image_pixels),
        "batch_sizes": _batch_sizes(_default_batch_sizes(model) if batch_sizes is None else batch_sizes),
        "model_name": default_name(path) if name is None else check_name(name),
    }
    path.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving looks at folders with a number for a name only.
    with appears_complete(folder, overwrite=overwrite) as working:
        exact = precision == "float32" and computes_in_float32(model)
        write = functools.partial(_write, name=folder.name, **options)
        parity = verified(write, model, working, exact, tolerance, min_agreement)
        unfinished = working / folder.name
        facts = _facts(model, int(version), options, parity, unfinished)
        (unfinished / "keras_vit.json").write_text(json.dumps(facts, indent=2) + "\n")
    write_operator_files(path, options["model_name"], version, options["batch_sizes"], jit_compile)
    return folder


def _new_version(path, version, overwrite):
    """The folder of a version, which does not exist or may be replaced."""
    folder = path / str(check_positive_integer("version", version))
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists. Give another version, or overwrite=True to replace it.")
    return folder


def _write(model, folder, name, **options):
    """Writes a model as a SavedModel, in a new folder of that name in another one; returns its `Parity`."""
    file, saved = folder / "answers.npz", folder / name
    saved.mkdir()
    with_tensorflow(write_saved_model, model, folder=str(saved), answers=str(file), **options)
    with np.load(file) as arrays:
        answers = dict(arrays)
    compare_answers = compare_masks if is_segmenter(model) else compare
    return compare_answers(model, answers.pop("pixels"), answers)


def _check_precision(model, precision):
    check_choice("precision", precision, PRECISIONS)
    if precision != "float32" and is_quantized(model):
        raise ValueError(
            f"{model.name!r} was quantized by Keras and is exported as it is, with precision='float32'. Received: "
            f"precision={precision!r}. Or export it before model.quantize."
        )


def _image_paths(images):
    missing = [image for image in images if not pathlib.Path(image).is_file()]
    if missing or not images:
        raise ValueError(f"images must be paths of files. Received: {', '.join(map(str, missing)) or 'none'}")
    return [str(pathlib.Path(image).resolve()) for image in images]


def _default_batch_sizes(model):
    return (1, 4) if is_segmenter(model) else (1, 8, 32)


def _batch_sizes(sizes):
    if not sizes:
        raise ValueError(f"batch_sizes must name at least one number of images. Received: {sizes!r}")
    return sorted({check_positive_integer("batch_sizes", size) for size in sizes})


def _labels(model, labels):
    classes, preprocessing = model.output_shape[-1], preprocessing_layer(model)
    if labels is None and preprocessing.label_space == "imagenet1k":
        labels = [name for _, name in imagenet1k_classes()]
    elif labels is None:
        labels = preprocessing.class_names(classes) or [str(index) for index in range(classes)]
    if not isinstance(labels, (list, tuple)) or len(labels) != classes:
        raise ValueError(f"labels must be a list of names for the model's {classes} classes. Received: {labels!r}")
    labels = [str(label) for label in labels]
    broken = [label for label in labels if not is_one_line(label)]
    if broken:
        raise ValueError(f"labels must be of one line each, as in assets/labels.txt. Received: {broken[0]!r}")
    return labels


def _facts(model, version, options, parity, folder):
    """What `keras_vit.json` says of a SavedModel."""
    description = describe(model)
    kept = ("top_k", "jit_compile", "precision", "image_size", "max_image_pixels", "batch_sizes")
    return {
        "name": options["model_name"],
        "version": version,
        "exported": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "task": "segmentation" if is_segmenter(model) else "classification",
        "signatures": sorted(parity.max_difference),
        "input_shape": model.input_shape[1:],
        "classes": model.output_shape[-1],
        # A mask has indices only; what they mean must come along.
        **({"labels": options["labels"]} if is_segmenter(model) else {}),
        "config": description.config.to_dict(),
        "weights": {"source": description.source, "adaptations": description.adaptations},
        "preprocessing": description.pixels | {"label_space": description.label_space},
        "options": {name: options[name] for name in kept},
        "parity": dataclasses.asdict(parity),
        "bytes": {
            "all": _num_bytes(folder),
            "weights": _num_bytes(folder / "variables"),
            "weights_in_float32": 4 * model.count_params(),
        },
        "versions": _versions() | {"keras_backend": keras.backend.backend()},
    }


def _num_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _versions():
    found = {"python": platform.python_version()}
    for package in ("keras-vit-applications", "keras", "tensorflow", "jax", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
