"""SavedModels that TensorFlow Serving runs: encoded images in, probabilities and labels out.

TensorFlow is imported inside the functions only. B batch, H W C image, k classes returned.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile

import keras

from keras_vit.config import check_positive_integer
from keras_vit.decoding import image_decoder, input_protocol
from keras_vit.label_spaces import imagenet1k_classes
from keras_vit.preprocessing import normalize_pixels, preprocessing_layer


def export_saved_model(
    model, path, labels=None, version=1, overwrite=False, top_k=5, jit_compile=False, precision="float32"
):
    """Writes a model as a SavedModel, in the folder layout of TensorFlow Serving.

    `path/<version>/` has two signatures, each for batches of any size:

    * `serving_default`: `image_bytes` (B,), the contents of JPEG, PNG, GIF, BMP or WebP files. Decoding, the EXIF
      orientation of JPEG files, resizing and normalising happen inside, as the model's `preprocessing` layer says.
    * `predict_pixels`: `images` (B, H, W, C), uint8, of the model's input size.

    Both return `probabilities` (B, classes), and of the `top_k` most probable classes, the best first, `classes` (B, k)
    their indices, `labels` (B, k) their names and `scores` (B, k) their probabilities. A model that ends with logits is
    exported with a softmax. The folder appears under its name only when it is complete.

    Args:
        model: A classifier of this package with a fixed input size, also nested in another model. Keras must run on the
            TensorFlow backend.
        path: Folder of all versions of the model.
        labels: List of the classes' names. By default the ImageNet-1k names if the model's label space is
            `"imagenet1k"`, otherwise the indices.
        version: Number of this version.
        overwrite: Whether an existing version may be replaced.
        top_k: How many classes are named, at most.
        jit_compile: Whether the model is compiled with XLA where it is served; decoding never is.
        precision: Of the stored weights: `"float32"`.

    Returns:
        The path of the version's folder, as a `pathlib.Path`.

    Raises:
        FileExistsError: If the version exists and `overwrite` is `False`.
        RuntimeError: If Keras does not run on the TensorFlow backend.
        ValueError: If the model is not a classifier, its input size is not fixed, it changes pixels before its
            `preprocessing` layer sees them, or an argument is impossible.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViTTi16(weights="pets.weights.h5", classes=3)  # doctest: +SKIP
    >>> keras_vit.export_saved_model(model, "models/pets", labels=["ant", "bee", "cat"])  # doctest: +SKIP
    PosixPath('models/pets/1')
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"A SavedModel is written by TensorFlow, and Keras runs on {keras.backend.backend()!r}. Save the model "
            f"with model.save('model.keras'), load it in a process with KERAS_BACKEND=tensorflow, and export it there."
        )
    if precision != "float32":
        raise ValueError(f"precision={precision!r} is not available. Available: 'float32'")
    top_k = check_positive_integer("top_k", top_k)
    folder = _new_version(path, version, overwrite)
    signatures = _signatures(model, _labels(model, labels), top_k, jit_compile)
    archive = keras.export.ExportArchive()
    archive.track(model)
    for name, (function, input_signature) in signatures.items():
        archive.add_endpoint(name, function, input_signature=input_signature)
    with _appears_complete(folder) as unfinished:
        archive.write_out(str(unfinished), verbose=False)
    return folder


def _signatures(model, labels, top_k, jit_compile):
    import tensorflow as tf

    protocol, size, channels = input_protocol(model)
    decode = image_decoder(model)
    if not protocol.normalize and not _starts_with(model, protocol):
        raise ValueError(
            f"{model.name!r} changes pixels before its preprocessing layer sees them, so it is not known how images "
            f"are to be normalised. Build the inner model with include_preprocessing=True, which does it inside."
        )
    with_softmax = _ends_with_logits(model)

    @tf.function(jit_compile=jit_compile)
    def classify(pixels):
        if not protocol.normalize:
            pixels = normalize_pixels(pixels, protocol.mean, protocol.std)
        probabilities = tf.cast(model(pixels, training=False), tf.float32)
        return tf.nn.softmax(probabilities) if with_softmax else probabilities

    top_k = min(top_k, len(labels))
    names = tf.constant(labels)

    def predict_pixels(images):
        probabilities = classify(tf.cast(images, tf.float32))
        scores, classes = tf.math.top_k(probabilities, top_k)
        return {
            "probabilities": probabilities,
            "classes": classes,
            "labels": tf.gather(names, classes),
            "scores": scores,
        }

    def serving_default(image_bytes):
        return predict_pixels(
            tf.map_fn(decode, image_bytes, fn_output_signature=tf.TensorSpec([*size, channels], tf.uint8))
        )

    return {
        "serving_default": (serving_default, [tf.TensorSpec([None], tf.string, "image_bytes")]),
        "predict_pixels": (predict_pixels, [tf.TensorSpec([None, *size, channels], tf.uint8, "images")]),
    }


def _starts_with(model, layer):
    """Whether a layer is the first that sees a model's input, also where models are nested."""
    first = next(inner for inner in model.layers if not isinstance(inner, keras.layers.InputLayer))
    return _starts_with(first, layer) if isinstance(first, keras.Model) else first is layer


def _ends_with_logits(model):
    activation = _last_activation(model) if len(model.output_shape) == 2 else None
    known = activation in (keras.activations.softmax, keras.activations.sigmoid, keras.activations.linear)
    if not known or (activation is keras.activations.linear and model.output_shape[-1] < 2):
        raise ValueError(
            f"Only classifiers are exported: the last layer must return probabilities, or logits of at least two "
            f"classes, of shape (B, classes). Received: a model that returns shape {model.output_shape} from layer "
            f"{model.layers[-1].name!r}."
        )
    return activation is keras.activations.linear


def _last_activation(model):
    """The activation that a model ends with, or `None` if it ends with a layer of another kind."""
    for layer in reversed(model.layers):
        if isinstance(layer, keras.Model):
            return _last_activation(layer)
        if isinstance(layer, keras.layers.Softmax):
            return keras.activations.softmax
        is_cast = isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
        if not is_cast:
            return getattr(layer, "activation", None)
    return None


def _labels(model, labels):
    classes = model.output_shape[-1]
    if labels is None and preprocessing_layer(model).label_space == "imagenet1k":
        labels = [name for _, name in imagenet1k_classes()]
    if labels is None:
        labels = [str(index) for index in range(classes)]
    if not isinstance(labels, (list, tuple)) or len(labels) != classes:
        raise ValueError(f"labels must be a list of names for the model's {classes} classes. Received: {labels!r}")
    return [str(label) for label in labels]


def _new_version(path, version, overwrite):
    folder = pathlib.Path(path) / str(check_positive_integer("version", version))
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists. Give another version, or overwrite=True to replace it.")
    return folder


@contextlib.contextmanager
def _appears_complete(folder):
    """Gives a folder beside `folder` to write to, and renames it when all went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # TensorFlow Serving looks at folders with a number for a name only.
    unfinished = pathlib.Path(tempfile.mkdtemp(prefix=f"unfinished-{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o777 & ~_umask())
        if folder.exists():
            replaced = unfinished.with_name(f"replaced-{unfinished.name}")
            folder.rename(replaced)
            unfinished.rename(folder)
            shutil.rmtree(replaced)
        else:
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
