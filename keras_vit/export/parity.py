"""Whether an export answers as its model does. N images, H W C image."""

import contextlib
import dataclasses
import logging
import math
import pathlib
import tempfile

import keras
import numpy as np

from keras_vit.export.precision import head_layers
from keras_vit.export.signatures import OUTPUTS, probabilities
from keras_vit.graph import all_layers, is_quantized
from keras_vit.preprocessing import preprocess_input

_BATCH_SIZE = 16
_MASK_BATCH_SIZE = 2
"""Of images each pixel of which has probabilities: of two of 1,024 x 2,048 pixels, for 64 classes, they take 1 GB."""
_DEPTH = 10
"""How much more than of probabilities, in [0, 1], is allowed of what comes out of the encoder: differences in the last
digit grow from layer to layer. XLA's tokens of a Ti/16 differ from TensorFlow's by 1.4e-5."""
_PHOTOGRAPHS = pathlib.Path(__file__).parent / "photographs"


@dataclasses.dataclass(frozen=True)
class Parity:
    """How far an export's answers are from its model's.

    Args:
        images: Number of images compared.
        max_difference: {signature: largest difference}; of a probability; of masks, of a score, or of how much less
            probable for the model a named class is than the best one; of other outputs, whose values have no common
            scale, of all that an image gives, in the Euclidean norm and relative to it.
        top_1_agreement: Part of the images, of masks of the pixels, of which the most probable class is the same, in
            [0, 1].
        effect: How much the model's answers depend on the image: the largest difference of a probability between two
            images, of masks between two pixels. Where it is zero, constants were compared.
    """

    images: int
    max_difference: dict
    top_1_agreement: float
    effect: float

    def check(self, exact, tolerance, min_agreement):
        """Raises a `ValueError` if the export is not good enough to be served.

        Args:
            exact: Whether every difference must be within `tolerance`.
            tolerance: The largest difference of a probability; of other outputs it is ten times as much.
            min_agreement: Where `exact` is not asked for, the lowest `top_1_agreement`.
        """
        limit = tolerance if exact else np.finfo("float32").max / _DEPTH
        limits = {name: limit * (1 if _is_of_probabilities(name) else _DEPTH) for name in self.max_difference}
        wrong = [name for name, difference in self.max_difference.items() if not difference <= limits[name]]
        if wrong:
            signature, difference = wrong[0], self.max_difference[wrong[0]]
            raise ValueError(
                f"What was written answers otherwise than the model: {signature!r} by {difference:.1e} on "
                f"{self.images} images, {limits[signature]:.0e} is allowed. Nothing was exported. (Another compiler "
                f"may add up float32 in another order, which makes some 1e-5 of a large model: if it is that, give a "
                f"larger tolerance than {tolerance:.0e}.)"
            )
        if not exact and not self.top_1_agreement >= min_agreement:
            raise ValueError(
                f"What was written names the class that the model names for {self.top_1_agreement:.1%} of "
                f"{self.images} images, min_agreement={min_agreement} asks for {min_agreement:.1%}. Nothing was "
                f"exported. Give images of the kind that will be served (images=...), another precision, or a lower "
                f"min_agreement."
            )


def verified(write, model, folder, exact, tolerance, min_agreement):
    """Writes a model and checks the answers; if they are the same for every image, also those of a random head.

    Args:
        write: Function from a model and a folder to the `Parity` of what it writes there.
        model: The Keras model.
        folder: To write it to.
        exact: As of `Parity.check`.
        tolerance: As of `Parity.check`.
        min_agreement: As of `Parity.check`.

    Returns:
        The `Parity`; of the model with a random head, if that was compared too.

    Raises:
        ValueError: If the answers are not good enough, or say nothing.
    """
    parity = write(model, folder)
    parity.check(exact, tolerance, min_agreement)
    if parity.effect > tolerance:
        return parity
    with tempfile.TemporaryDirectory() as elsewhere:
        parity = write(with_random_head(model), pathlib.Path(elsewhere))
    parity.check(exact, tolerance, min_agreement)
    if not parity.effect > tolerance:
        raise ValueError(
            f"The model answers alike for every image: its probabilities differ by {parity.effect:.1e}, also with a "
            f"random classifier. So it cannot be known whether what was written is right. Nothing was exported. Load "
            f"weights, or give images (images=...) whose probabilities differ by more than {tolerance:.0e}."
        )
    return parity


def with_random_head(model):
    """A copy of a model whose classifier has random kernels, so that its answers depend on the images."""
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    rng = np.random.default_rng(0)
    for weight in [weight for layer in head_layers(twin) for weight in layer.weights]:
        if weight.name == "kernel" and keras.backend.is_float_dtype(weight.dtype):
            weight.assign(rng.normal(scale=math.prod(weight.shape[:-1]) ** -0.5, size=weight.shape))
    return twin


def check_limits(tolerance, min_agreement):
    """Refuses limits that are none, before any work."""
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be a number from 0. Received: {tolerance!r}")
    if not 0 <= min_agreement <= 1:
        raise ValueError(f"min_agreement must be in [0, 1]. Received: {min_agreement!r}")


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
    images = preprocess_input(np.concatenate([pixels, 255 - pixels[:1]]), model)  # With a negative, unlike the others.
    *known, negative = _computed(probabilities, model, images)
    expected = {probabilities: np.stack(known)}
    effect = float(np.max(np.abs(expected[probabilities] - negative)))
    differences = {}
    for name, answer in answers.items():
        _, look = OUTPUTS[name]
        if look not in expected:
            expected[look] = _computed(look, model, images[: len(answer)])
        known = expected[look][: len(answer)]
        difference = np.abs(answer - known) if _is_of_probabilities(name) else _norms(answer - known) / _norms(known)
        differences[name] = float(np.max(difference))
    best = [array.argmax(axis=-1) for array in (answers["serving_default"], expected[probabilities])]
    return Parity(len(pixels), differences, float((best[0] == best[1]).mean()), effect)


def compare_masks(model, pixels, answers):
    """The same for a segmentation model.

    Args:
        model: As of `compare`.
        pixels: As of `compare`.
        answers: {signature: (N, H, W, 2), which class of each pixel, and its score}, of as many images as there.

    Returns:
        A `Parity`.
    """
    differences, num_equal, effect = dict.fromkeys(answers, 0.0), 0, 0.0
    for start in range(0, len(pixels), _MASK_BATCH_SIZE):
        part = slice(start, start + _MASK_BATCH_SIZE)
        known = _computed(probabilities, model, preprocess_input(pixels[part], model))
        for name, answer in answers.items():
            masks, scores = np.moveaxis(answer[part], -1, 0)
            of_these = known[: len(masks)]
            named = np.take_along_axis(of_these, masks[..., None].astype(int), axis=-1)[..., 0]
            found = [np.abs(scores - named), of_these.max(axis=-1) - named]
            differences[name] = float(np.max([differences[name], *(np.max(each, initial=0) for each in found)]))
        effect = float(np.max([effect, np.ptp(known, axis=(0, 1, 2)).max()]))
        num_equal += np.sum(answers["serving_default"][part][..., 0] == known.argmax(axis=-1))
    num_pixels = answers["serving_default"][..., 0].size
    return Parity(len(pixels), differences, float(num_equal / num_pixels), effect)


def _is_of_probabilities(signature):
    return OUTPUTS[signature][0] == "probabilities"


def _norms(array):
    """The Euclidean norm of all that each image gives, (N,)."""
    return np.maximum(np.linalg.norm(array.reshape(len(array), -1), axis=1), np.finfo("float32").tiny)


def computes_in_float32(model):
    """Whether all layers of a model do, as far as they compute; Keras has quantized none."""
    return not is_quantized(model) and all(layer.compute_dtype == "float32" for layer in all_layers(model))


class _Looking(keras.Model):
    """What is looked at in a model, as a model: compiled as a model's own predictions are."""

    def __init__(self, model, look):
        super().__init__(name="looking")
        self.model, self.look = model, look
        self.built = True

    def call(self, images):
        return keras.ops.cast(self.look(self.model, images), "float32")


def _computed(look, model, images):
    tensorflow = logging.getLogger("tensorflow")
    level = tensorflow.level
    tensorflow.setLevel(logging.ERROR)  # It warns that one function is traced for each look: they are not the same.
    try:
        with full_precision():
            return _Looking(model, look).predict(images, batch_size=_BATCH_SIZE, verbose=0)
    finally:
        tensorflow.setLevel(level)


@contextlib.contextmanager
def full_precision():
    """On GPUs and TPUs, TensorFlow and JAX multiply float32 in fewer bits, unless told otherwise."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(was_enabled)
    elif keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield
