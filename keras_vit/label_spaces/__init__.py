"""Names of the classes of published classifiers: ImageNet-1k and ImageNet-21k."""

import csv
import functools
import importlib.resources

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vit.outputs import ACTIVATIONS, Output
from keras_vit.weights.sources.fetch import fetch

NUM_CLASSES = {"imagenet1k": 1000, "imagenet21k": 21843}
# These lists were published with BiT. The classes of ViT's heads have the same order.
_IMAGENET21K_URL = "https://storage.googleapis.com/bit_models/imagenet21k_wordnet_{}.txt"


def decode_predictions(
    probabilities: ArrayLike, top: int = 5, label_space: str | None = None, output: Output | None = None
) -> list[list[tuple[str, str, float]]]:
    """Names the most probable classes of ImageNet-1k or ImageNet-21k, or what a model's `Output` describes.

    Args:
        probabilities: (B, 1000), scores in the order of the sorted WordNet ids; or (B, 21843), scores in the order of
            the published ImageNet-21k heads. The list of ImageNet-21k names is downloaded once. With `output`, the
            values of this output, (B, ...).
        top: Number of classes to name.
        label_space: `"imagenet1k"`, `"imagenet21k"`, or `None` to infer it from the number of scores.
        output: What the output means, from `keras_vit.describe(model).outputs`. Classes, labels and values can be
            decoded. Logits are converted to probabilities.

    Returns:
        A list of `top` tuples `(WordNet id, class name, score)` for each image, the best first. With `output`, the
        first element is the index as text. Labels are those with a probability of at least 0.5, the best first, and
        values are all numbers, in their order.

    Raises:
        ValueError: If `probabilities` has another shape or contains NaN, or `top` is not from 1 to the number of
            classes.
        OSError: If the list of names cannot be downloaded.

    Example:

    >>> import numpy as np, keras_vit
    >>> probabilities = np.eye(1000)[[96]]
    >>> keras_vit.decode_predictions(probabilities, top=1)
    [[('n01843383', 'toucan', 1.0)]]
    """
    probabilities = np.asarray(ops.convert_to_numpy(probabilities))
    if output is not None:
        return _decode(probabilities, output, top)
    label_space = _label_space(probabilities.shape, label_space)
    _check_numbers(probabilities)
    if top not in range(1, NUM_CLASSES[label_space] + 1):
        raise ValueError(f"top must be from 1 to {NUM_CLASSES[label_space]}. Received: {top!r}")
    classes = imagenet1k_classes() if label_space == "imagenet1k" else imagenet21k_classes()
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    return [
        [(*classes[index], float(row[index])) for index in indices]
        for row, indices in zip(probabilities, best, strict=True)
    ]


def _check_numbers(probabilities):
    if np.isnan(probabilities).any():
        rows = np.flatnonzero(np.isnan(probabilities).any(axis=1)).tolist()
        raise ValueError(
            f"probabilities must be numbers. Received: NaN in rows {rows[:8]}. Check the images and weights for NaN."
        )


def _decode(numbers, output, top):
    """The result of `decode_predictions` for numbers (B, N) of an `Output`."""
    if output.kind not in ("classes", "labels", "values") or numbers.ndim != 2:
        raise ValueError(
            f"Classes, labels and values of shape (B, N) can be decoded. Received: {output.kind} of shape "
            f"{numbers.shape}"
        )
    _check_numbers(numbers)
    names = output.names or [str(index) for index in range(numbers.shape[1])]
    if output.has_logits:
        numbers = ops.convert_to_numpy(keras.activations.get(ACTIVATIONS[output.kind])(numbers))
    rows = [[(str(index), names[index], float(value)) for index, value in enumerate(row)] for row in numbers]
    if output.kind == "values":
        return rows
    rows = [sorted(row, key=lambda entry: -entry[2]) for row in rows]
    return [row[:top] if output.kind == "classes" else [entry for entry in row if entry[2] >= 0.5] for row in rows]


def _label_space(shape, label_space):
    """Infers the label space from the shape of scores. Raises a ValueError if the shape does not fit."""
    if label_space not in (None, *NUM_CLASSES):
        raise ValueError(f"label_space must be None or one of {', '.join(NUM_CLASSES)}. Received: {label_space!r}")
    for space, count in NUM_CLASSES.items():
        if label_space in (None, space) and len(shape) == 2 and shape[1] == count:
            return space
    if label_space is None and shape[1:] in ((21841,), (21842,)):
        hint = (
            "ImageNet-21k also exists with 21,841 or 21,842 classes. Those class lists are different and not supported."
        )
    else:
        hint = "For the classes of another model, pass output=keras_vit.describe(model).outputs['predictions']."
    accepted = [f"(B, {NUM_CLASSES[space]}) for {space}" for space in ([label_space] if label_space else NUM_CLASSES)]
    raise ValueError(
        f"decode_predictions needs scores of shape {' or '.join(accepted)}. Received: shape {tuple(shape)}. {hint}"
    )


@functools.cache
def imagenet1k_classes():
    """The 1,000 classes of ImageNet-1k as tuples (WordNet id, name), in the order of the published heads."""
    with importlib.resources.files("keras_vit.label_spaces").joinpath("imagenet1k_classes.csv").open() as file:
        return tuple((row["wnid"], row["name"]) for row in csv.DictReader(file))


def imagenet21k_classes():
    """The 21,843 classes of ImageNet-21k as tuples (WordNet id, names), in the order of the published heads.

    These are the classes of ImageNet's release of fall 2011. The lists are downloaded once, to the cache of weights.
    """
    paths = [fetch(_IMAGENET21K_URL.format(kind)) for kind in ("ids", "lemmas")]
    lists = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    for path, lines in zip(paths, lists, strict=True):
        if len(lines) != NUM_CLASSES["imagenet21k"]:
            raise OSError(f"{path} has {len(lines)} lines, not 21843. Delete it, so that it is downloaded again.")
    return tuple(zip(*lists, strict=True))
