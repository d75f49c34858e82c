"""Whether an export answers as its model does. N images, H W C image."""

import contextlib
import dataclasses
import pathlib

import keras
import numpy as np

from keras_vit.export.signatures import OUTPUTS, probabilities
from keras_vit.preprocessing import preprocess_input

TOLERANCE = 1e-5
"""Of float32: of probabilities, and of other outputs relative to their largest value."""
_BATCH_SIZE = 16
_PHOTOGRAPHS = pathlib.Path(__file__).parent / "photographs"


@dataclasses.dataclass(frozen=True)
class Parity:
    """How far an export's answers are from its model's.

    Args:
        images: Number of images compared.
        max_difference: {signature: largest difference}; of probabilities, otherwise relative to the largest value.
        top_1_agreement: Part of the images of which the most probable class is the same, in [0, 1].
    """

    images: int
    max_difference: dict
    top_1_agreement: float

    def check(self, exact, min_agreement):
        """Raises a `ValueError` if the export is not good enough to be served.

        Args:
            exact: Whether every difference must be within `TOLERANCE`.
            min_agreement: Otherwise the lowest `top_1_agreement`.
        """
        # What is not a number is larger than all.
        signature, difference = max(self.max_difference.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))
        if exact and not difference <= TOLERANCE:
            raise ValueError(
                f"What was written answers otherwise than the model: {signature!r} by {difference:.1e} on "
                f"{self.images} images, {TOLERANCE:.0e} is allowed. Nothing was exported."
            )
        if not exact and not self.top_1_agreement >= min_agreement:
            raise ValueError(
                f"What was written names the class that the model names for {self.top_1_agreement:.1%} of "
                f"{self.images} images, min_agreement={min_agreement} asks for {min_agreement:.1%}. Nothing was "
                f"exported. Give images of the kind that will be served (images=...), another precision, or a lower "
                f"min_agreement."
            )


def read_images(paths):
    """Contents of image files; of the photographs of this package if `paths` is `None`."""
    paths = sorted(_PHOTOGRAPHS.glob("*.jpg")) if paths is None else map(pathlib.Path, paths)
    return [path.read_bytes() for path in paths]


def compare(model, pixels, answers):
    """Compares what an export answered with what the model computes.

    Args:
        model: The Keras model, on any backend.
        pixels: uint8 (N, H, W, C), the images as they come into the model's preprocessing.
        answers: {signature: its output for the first images, or for all; of `"serving_default"` for all}

    Returns:
        A `Parity`.
    """
    images = preprocess_input(pixels, model)
    expected = {look: None for _, look in OUTPUTS.values()}
    differences = {}
    for name, answer in answers.items():
        output, look = OUTPUTS[name]
        if expected[look] is None or len(expected[look]) < len(answer):
            expected[look] = _computed(look, model, images[: len(answer)])
        known = expected[look][: len(answer)]
        scale = 1.0 if output == "probabilities" else max(np.abs(known).max(), 1e-30)
        differences[name] = float(np.abs(answer - known).max() / scale)
    best = [array.argmax(axis=1) for array in (answers["serving_default"], expected[probabilities])]
    return Parity(len(images), differences, float((best[0] == best[1]).mean()))


def computes_in_float32(model):
    """Whether all layers of a model do, as far as they compute."""
    return all(layer.compute_dtype == "float32" for layer in model._flatten_layers(include_self=False))


def _computed(look, model, images):
    starts = range(0, len(images), _BATCH_SIZE)
    with _full_precision():
        batches = [look(model, images[start : start + _BATCH_SIZE]) for start in starts]
        return np.concatenate([keras.ops.convert_to_numpy(keras.ops.cast(batch, "float32")) for batch in batches])


def _full_precision():
    """JAX multiplies float32 in fewer bits on GPUs and TPUs, unless told otherwise."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.default_matmul_precision("highest")
