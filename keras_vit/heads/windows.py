"""Class scores of large photographs, computed in windows. Shapes: H W photograph, h w resized photograph, C classes."""

import math

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit.architectures import read_architecture
from keras_vit.checks import check_positive_integer
from keras_vit.graph import to_array
from keras_vit.heads import segments
from keras_vit.inference import predictor
from keras_vit.layers.ops.resizing import resize_bilinear
from keras_vit.outputs import output_of
from keras_vit.preprocessing import preprocess_input, preprocessing_layer
from keras_vit.resampling import resize_matrix

_BATCH_SIZE = 4
"""Number of windows that are computed together."""


def class_scores(
    model: keras.Model, image: ArrayLike, window: int | None = None, stride: int | None = None
) -> np.ndarray:
    """Computes the scores of the classes of each pixel of a photograph, in windows that keep its proportions.

    The photograph is resized so that its short side is that of a window. Square windows are placed along its long side.
    The scores of a pixel are averaged over the windows that contain it, and resized to the size of the photograph.

    * Without `stride`, there are as few windows as possible, with equal overlaps. Published EoMTs are evaluated in this
      way (arXiv 2503.19108; `EomtImageProcessor` with `do_split_image` of transformers).
    * With `stride`, a window starts every `stride` pixels, and the last one ends at the border. The linear heads of
      DINOv2 (arXiv 2304.07193) are evaluated in this way, with a stride of half a window. They average logits, which a
      model with `classifier_activation=None` returns.

    Args:
        model: A model that returns a map of classes, or masks and objects.
        image: (height, width, channels), pixels in [0, 255].
        window: Side of a window in pixels. By default that of the images that the model takes. A smaller window, or one
            that is not a multiple of the patch size, gets an equal border of zeros (after the normalisation) on each
            side, and the scores of the border are cut off.
        stride: Distance of windows in pixels, or `None`.

    Returns:
        float32 NumPy array (height, width, classes): probabilities, or what else the model returns for each pixel. It
        takes 7 GB for 12 megapixels and 150 classes. Of masks and objects, the scores are those of
        `keras_vit.heads.segments.semantic_scores`.

    Raises:
        ValueError: If the model returns something else, or if `image`, `window` or `stride` do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> head = keras_vit.heads.LinearHead()
    >>> model = keras_vit.Segmenter("Ti/16", head, classes=5, input_shape=(64, 64, 3))
    >>> keras_vit.class_scores(model, np.zeros((64, 100, 3)), stride=36).shape
    (64, 100, 5)
    """
    kind, image = output_of(model).kind, np.asarray(image, "float32")
    if kind not in ("class_map", "masks") or image.ndim != 3 or image.size == 0:
        raise ValueError(
            f"class_scores needs a model that returns class_map or masks, and one image (height, width, channels). "
            f"Received: a model that returns {kind}, and an image of shape {image.shape}"
        )
    if not np.isfinite(image).all():
        raise ValueError("The pixels of image must be numbers in [0, 255]. Received: NaN or infinite values")
    side, size = _sides(model, window)
    small = _resized(image, side, preprocessing_layer(model).interpolation)
    axis = int(np.argmax(small.shape[:2]))
    starts = _starts(small.shape[axis], side, stride)
    windows = np.stack([small.take(range(start, start + side), axis) for start in starts])
    scores = _scores(model, windows, size)
    total, count = np.zeros((*small.shape[:2], scores.shape[-1]), "float32"), np.zeros(small.shape[axis], "float32")
    for start, each in zip(starts, scores, strict=True):
        np.moveaxis(total, axis, 0)[start : start + side] += np.moveaxis(each, axis, 0)
        count[start : start + side] += 1
    mean = total / np.expand_dims(count, (1 - axis, 2))
    return to_array(resize_bilinear(keras.ops.convert_to_tensor(mean[None]), image.shape[:2]))[0]


def _sides(model, window):
    """The side of a window, and the (height, width) of the images that the model gets."""
    model_size = model.input_shape[1:3]
    strides = read_architecture(preprocessing_layer(model).architecture).total_stride
    if window is None and (model_size[0] is None or model_size[0] != model_size[1]):
        raise ValueError(f"The model takes images of {model_size} pixels. Pass window=, the side of square windows.")
    side = check_positive_integer("window", model_size[0] if window is None else window)
    size = [known or math.ceil(side / step) * step for known, step in zip(model_size, strides, strict=True)]
    if min(size) < side:
        raise ValueError(f"window must be at most {min(size)}, the side of the model's images. Received: {window!r}")
    return side, size


def _resized(image, side, interpolation):
    """Resizes an image (H, W, channels), antialiased, so that its short side has `side` pixels. Pixels are rounded."""
    height, width, channels = image.shape
    # transformers and torchvision round down, too.
    new_height, new_width = (side * each // min(height, width) for each in (height, width))
    down, right = (
        resize_matrix(*sizes, f"{interpolation}_antialias").astype("float32")
        for sizes in ((height, new_height), (width, new_width))
    )
    rows = (down @ image.reshape(height, -1)).reshape(new_height, width, channels)
    return np.clip(np.rint(right @ rows), 0, 255)


def _starts(length, side, stride):
    """Where windows start along an axis."""
    if stride is None:
        count = math.ceil(length / side)
        overlap = (count * side - length) / max(count - 1, 1)
        return [int(i * (side - overlap)) for i in range(count)]
    if check_positive_integer("stride", stride) > side:
        raise ValueError(f"stride must be at most {side}, the side of a window. Received: {stride!r}")
    return [min(i * stride, length - side) for i in range(math.ceil((length - side) / stride) + 1)]


def _scores(model, windows, size):
    """The scores of windows (n, side, side, channels), which are padded to `size`: (n, side, side, C)."""
    side, before = windows.shape[1], [(length - windows.shape[1]) // 2 for length in size]
    images = np.empty((len(windows), *size, windows.shape[-1]), "float32")
    images[:] = 255 * np.asarray(preprocessing_layer(model).mean, "float32")
    inside = (slice(None), *(slice(start, start + side) for start in before))
    images[inside] = windows
    images, compute, chunks = preprocess_input(images, model), predictor(model), []
    for first in range(0, len(images), _BATCH_SIZE):
        outputs = compute(images[first : first + _BATCH_SIZE])
        if isinstance(outputs, dict):
            masks, objects = (keras.ops.convert_to_tensor(outputs[name]) for name in ("masks", "objects"))
            outputs = to_array(segments.semantic_scores(segments.resized(masks, size), objects))
        chunks.append(outputs[inside])
    return np.concatenate(chunks)
