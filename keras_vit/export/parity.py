"""Compares the outputs of an export with the outputs of its model. Shapes: N images, H W C image."""

import contextlib
import dataclasses
import math
import pathlib
import tempfile

import keras
import numpy as np

from keras_vit.export.answers import answer_of
from keras_vit.export.messages import without_messages
from keras_vit.export.precision import head_layers
from keras_vit.export.signatures import PREDICTING, output_of_signature
from keras_vit.graph import all_layers, is_quantized
from keras_vit.preprocessing import preprocess_input

_BATCH_SIZE = 16
_MASK_BATCH_SIZE = 2
"""Batch size for segmentation. For 64 classes, the probabilities of two images of 1,024 x 2,048 pixels take 1 GB."""
_FACTOR = 10
"""The tolerance for outputs of the encoder and for maps of classes, as a multiple of the tolerance for probabilities of
an image. Rounding differences grow from layer to layer: the tokens of a Ti/16 differ by 1.4e-5 between XLA and
TensorFlow. A map has so many probabilities that the largest difference is larger."""
PHOTOGRAPHS = pathlib.Path(__file__).parent / "photographs"


@dataclasses.dataclass(frozen=True)
class Parity:
    """Differences between the outputs of an export and of its model.

    Args:
        images: Number of images that were compared.
        max_difference: {signature: largest difference}. Probabilities: the absolute difference. A map of classes: the
            larger of two numbers. The first is the absolute difference between the export's and the model's probability
            of the class that the export predicts. The second is the model's probability of the class that the model
            predicts, minus the model's probability of the class that the export predicts. Other outputs: the Euclidean
            norm of the difference, divided by the norm of the model's output.
        top_1_agreement: Share of the images (or of their pixels) for which the export and the model predict the same
            class, in [0, 1]. If the model predicts no classes, it is the share of the images, or of the depths or
            normals, whose values differ by at most a twentieth of their range.
        effect: Largest difference of a probability between two images (a map of classes: between two pixels). Of
            several outputs, the smallest number counts. If it is zero, the model's output does not depend on the image,
            and the comparison proves nothing.
        predicted_classes: Sorted indices of the classes that the model predicts for these images or pixels.
        has_values: Whether the model returns values instead of probabilities. Then differences of values are divided by
            the largest absolute value.
        has_pixels: Whether the probabilities are those of pixels.
    """

    images: int
    max_difference: dict
    top_1_agreement: float
    effect: float
    predicted_classes: list
    has_values: bool = False
    has_pixels: bool = False

    def check(self, exact, tolerance, min_agreement):
        """Raises a `ValueError` if the export differs too much from the model.

        Args:
            exact: Whether every difference must be within `tolerance`.
            tolerance: Maximum difference of the probability of an image. For other outputs and for maps of classes, ten
                times as much is allowed.
            min_agreement: Minimum `top_1_agreement` if `exact` is `False`.
        """
        limit = tolerance if exact else np.finfo("float32").max / _FACTOR
        limits = {name: limit * self._factor(name) for name in self.max_difference}
        wrong = [name for name, difference in self.max_difference.items() if not difference <= limits[name]]
        if wrong:
            signature, difference = wrong[0], self.max_difference[wrong[0]]
            raise ValueError(
                f"The outputs of the export differ from the model's: {signature!r} by {difference:.1e} on "
                f"{self.images} images, but at most {limits[signature]:.0e} is allowed. Nothing was exported. (Another "
                f"compiler may sum float32 values in another order. For a large model, this can change the outputs by "
                f"about 1e-5. In this case, give a larger tolerance than {tolerance:.0e}.)"
            )
        if not exact and not self.top_1_agreement >= min_agreement:
            alike = "predict the same class" if self.predicted_classes else "return nearly the same values"
            raise ValueError(
                f"The export and the model {alike} for {self.top_1_agreement:.1%} of {self.images} images, but "
                f"min_agreement={min_agreement} requires {min_agreement:.1%}. Nothing was exported. Give images like "
                f"those that will be served (images=...), another precision, or a lower min_agreement."
            )

    def _factor(self, signature):
        """Multiple of the tolerance for an output of a signature."""
        return 1 if signature in PREDICTING and not (self.has_values or self.has_pixels) else _FACTOR


def verified(write, model, folder, exact, tolerance, min_agreement):
    """Exports and checks a model. If its outputs do not depend on the image, a copy with a random head is checked too.

    Args:
        write: Function `write(model, folder)` that exports a model to a folder, and returns the export's `Parity`.
        model: The Keras model.
        folder: Folder to write to.
        exact: Same as in `Parity.check`.
        tolerance: Same as in `Parity.check`.
        min_agreement: Same as in `Parity.check`.

    Returns:
        The `Parity` of the export. If a copy with a random head was checked too, it is the `Parity` of that copy.

    Raises:
        ValueError: If the outputs differ too much, or do not depend on the image even with a random head.
    """
    parity = write(model, folder)
    parity.check(exact, tolerance, min_agreement)
    if parity.effect > tolerance:
        return parity
    with tempfile.TemporaryDirectory() as other_folder:
        parity = write(with_random_head(model), pathlib.Path(other_folder))
    parity.check(exact, tolerance, min_agreement)
    if not parity.effect > tolerance:
        raise ValueError(
            f"The model's output does not depend on the image: its probabilities differ by {parity.effect:.1e}, even "
            f"with a random classifier, so the export cannot be checked. Nothing was exported. Load weights, or give "
            f"images (images=...) with probabilities that differ by more than {tolerance:.0e}."
        )
    return parity


def with_random_head(model):
    """A copy of a model with random kernels in the classifier, so that its outputs depend on the images."""
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    rng = np.random.default_rng(0)
    for weight in [weight for layer in head_layers(twin) for weight in layer.weights]:
        if weight.name == "kernel" and keras.backend.is_float_dtype(weight.dtype):
            weight.assign(rng.normal(scale=math.prod(weight.shape[:-1]) ** -0.5, size=weight.shape))
    return twin


def check_limits(tolerance, min_agreement):
    """Checks `tolerance` and `min_agreement`, before any work is done."""
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0. Received: {tolerance!r}")
    if not 0 <= min_agreement <= 1:
        raise ValueError(f"min_agreement must be in [0, 1]. Received: {min_agreement!r}")


def read_images(paths):
    """Reads the contents of image files. If `paths` is `None`, it reads the photographs of this package."""
    paths = sorted(PHOTOGRAPHS.glob("*.jpg")) if paths is None else map(pathlib.Path, paths)
    return [path.read_bytes() for path in paths]


def compare(model, pixels, answers):
    """Compares the outputs of an export with the model's outputs.

    Args:
        model: The Keras model, on any backend.
        pixels: uint8 (N, H, W, C), the images before they are normalised.
        answers: {signature: output of the export, or {name: output}}. `"serving_default"` contains outputs for all
            images. The other signatures contain outputs for the first images only.

    Returns:
        A `Parity`.
    """
    # The negative of the first image is added, so that there are always two different images.
    images = preprocess_input(np.concatenate([pixels, 255 - pixels[:1]]), model)
    answer_kind = answer_of(model)
    main = answer_kind.compute
    outputs = _computed(main, model, images)
    known, negatives = [array[:-1] for array in outputs], [array[-1] for array in outputs]
    expected, scales = {main: known}, [answer_kind.scale(array) for array in known]
    effects = [np.max(np.abs(array - other)) for array, other in zip(known, negatives, strict=True)]
    differences = {}
    for name, answer in answers.items():
        _, function = output_of_signature(model, name)
        arrays = keras.tree.flatten(answer)
        count = len(arrays[0])
        if function not in expected:
            expected[function] = _computed(function, model, images[:count])
        pairs = [(array, other[:count]) for array, other in zip(arrays, expected[function], strict=True)]
        if function is main:
            each = [np.max(np.abs(array - other)) / scale for (array, other), scale in zip(pairs, scales, strict=True)]
        else:
            each = [np.max(_norms(array - other) / _norms(other)) for array, other in pairs]
        differences[name] = float(np.max(each))
    agreement = float(answer_kind.agreement(keras.tree.flatten(answers["serving_default"]), known, negatives))
    effect = float(np.min(np.divide(effects, scales)))
    predicted = answer_kind.predicted_classes(known)
    kind = {"has_values": not answer_kind.has_probabilities, "has_pixels": answer_kind.returns_mask}
    return Parity(len(pixels), differences, agreement, effect, predicted, **kind)


def compare_masks(model, pixels, answers):
    """Same as `compare`, for a segmentation model.

    Args:
        model: Same as in `compare`.
        pixels: Same as in `compare`.
        answers: {signature: (N, H, W, 2), or {name: (N, H, W, 2)}, the class and the score of each pixel}, for the same
            images as in `compare`.

    Returns:
        A `Parity`.
    """
    answers = {name: keras.tree.flatten(answer)[0] for name, answer in answers.items()}
    parities = []
    for start in range(0, len(pixels), _MASK_BATCH_SIZE):
        batch = slice(start, start + _MASK_BATCH_SIZE)
        [known] = _computed(answer_of(model).compute, model, preprocess_input(pixels[batch], model))
        best, effect, differences = known.argmax(axis=-1), float(np.ptp(known, axis=(0, 1, 2)).max()), {}
        for name, answer in answers.items():
            masks, scores = np.moveaxis(answer[batch], -1, 0)
            expected = known[: len(masks)]
            known_scores = np.take_along_axis(expected, masks[..., None].astype(int), axis=-1)[..., 0]
            errors = [np.abs(scores - known_scores), expected.max(axis=-1) - known_scores]
            differences[name] = float(np.max(errors, initial=0))
        agreement = float((answers["serving_default"][batch][..., 0] == best).mean())
        classes = np.unique(best).tolist()
        parities.append(Parity(len(known), differences, agreement, effect, classes, has_pixels=True))
    return joined(parities)


def joined(parities):
    """The `Parity` of all images of several comparisons."""
    counts = [parity.images for parity in parities]
    # Unlike `max`, `np.max` propagates NaN.
    return Parity(
        sum(counts),
        {name: float(np.max([each.max_difference[name] for each in parities])) for name in parities[0].max_difference},
        float(np.average([parity.top_1_agreement for parity in parities], weights=counts)),
        float(np.max([parity.effect for parity in parities])),
        sorted(set().union(*(parity.predicted_classes for parity in parities))),
        parities[0].has_values,
        parities[0].has_pixels,
    )


def _norms(array):
    """The Euclidean norm of the values of each image, (N,)."""
    return np.maximum(np.linalg.norm(array.reshape(len(array), -1), axis=1), np.finfo("float32").tiny)


def computes_in_float32(model):
    """Whether all layers of a model compute in float32, and Keras has quantized none of them."""
    return not is_quantized(model) and all(layer.compute_dtype == "float32" for layer in all_layers(model))


class _OutputModel(keras.Model):
    """A model that returns `function(model, images)`. Keras compiles it in the same way as the model itself."""

    def __init__(self, model, function):
        super().__init__(name="output_model")
        self.model, self.output_function = model, function
        self.built = True

    def call(self, images):
        outputs = self.output_function(self.model, images)
        return [keras.ops.cast(output, "float32") for output in keras.tree.flatten(outputs)]


def _computed(function, model, images):
    """The outputs of `function(model, images)`, a list of arrays."""
    with without_messages("tensorflow"), full_precision():  # TensorFlow would warn about repeated tracing.
        return _OutputModel(model, function).predict(images, batch_size=_BATCH_SIZE, verbose=0)


@contextlib.contextmanager
def full_precision():
    """Multiplies float32 values in full precision. By default, TensorFlow and JAX use fewer bits on GPUs and TPUs."""
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
