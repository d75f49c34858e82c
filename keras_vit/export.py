"""SavedModels that TensorFlow Serving runs: encoded images in, probabilities and labels out.

The only module that imports TensorFlow, and only inside its functions. B batch, H W C image, k classes returned.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile

import keras

from keras_vit.config import check_positive_integer
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


def image_decoder(model):
    """Makes the function that reads an encoded image as a model expects it.

    Args:
        model: A model of this package with a fixed input size (H, W, C), where C is 1 or 3.

    Returns:
        A TensorFlow function from a scalar string, the contents of a JPEG, PNG, GIF, BMP or WebP file, to uint8
        (H, W, C). The EXIF orientation of JPEG files is applied, transparency dropped (a WebP file must have none), the
        first frame of an animation taken, and the result resized and cropped as the model's `preprocessing` layer says.

    Raises:
        ValueError: If the model's input size is not fixed, is not what its protocol leads to, or C is neither 1 nor 3.
    """
    import tensorflow as tf

    protocol, size, channels = _input_protocol(model)

    def decode(image_bytes):
        image = tf.cond(
            tf.io.is_jpeg(image_bytes),
            # As Pillow decodes it. TensorFlow's default is off by some grey levels.
            lambda: tf.io.decode_jpeg(image_bytes, channels=3, dct_method="INTEGER_ACCURATE"),
            lambda: tf.io.decode_image(image_bytes, channels=3, expand_animations=False),
        )
        image = _upright(image, _exif_orientation(image_bytes))
        if channels == 1:
            image = _luma(image)
        resize = protocol.resize
        if isinstance(resize, int):
            sides = tf.cast(tf.shape(image)[:2], tf.float32)
            resize = tf.cast(tf.round(sides * (resize / tf.reduce_min(sides))), tf.int32)
        image = tf.image.resize(image, resize, protocol.interpolation, antialias=True)
        top_left = (tf.shape(image)[:2] - size) // 2
        image = tf.slice(image, [top_left[0], top_left[1], 0], [*size, channels])
        return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

    return decode


def _input_protocol(model):
    protocol = preprocessing_layer(model)
    _, *size, channels = model.input_shape
    if None in size:
        raise ValueError(
            f"Reading encoded images needs a model of fixed size. Received: a model for images of shape "
            f"{tuple(model.input_shape[1:])}. Build it with an input_shape such as (224, 224, 3) and copy the "
            f"weights."
        )
    if channels not in (1, 3):
        raise ValueError(f"Encoded images have 1 or 3 channels here. Received: a model for {channels}.")
    result = protocol.crop or protocol.resize
    resized = [protocol.resize] * 2 if isinstance(protocol.resize, int) else protocol.resize
    if result != size or resized is None or any(side < cut for side, cut in zip(resized, size, strict=True)):
        raise ValueError(
            f"The model takes images of {size[0]} x {size[1]} pixels, but its preprocessing layer does not lead to "
            f"that size: resize={protocol.resize}, crop={protocol.crop}."
        )
    return protocol, size, channels


def _signatures(model, labels, top_k, jit_compile):
    import tensorflow as tf

    protocol, size, channels = _input_protocol(model)
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


def _luma(image):
    """RGB to gray, ITU-R 601-2 as in Pillow, exact where the channels agree: uint8 (H, W, 3) to (H, W, 1)."""
    import tensorflow as tf

    weighted = tf.cast(image, tf.int32) * tf.constant([299, 587, 114])
    return tf.cast((tf.reduce_sum(weighted, axis=-1, keepdims=True) + 500) // 1000, tf.uint8)


def _upright(image, orientation):
    """Undoes an EXIF orientation from 1 to 8 (Exif 2.32, section 4.6.4)."""
    import tensorflow as tf

    def where(orientations, change, image):
        return tf.cond(tf.reduce_any(orientation == orientations), lambda: change(image), lambda: image)

    image = where([5, 6, 7, 8], tf.image.transpose, image)
    image = where([2, 3, 6, 7], tf.image.flip_left_right, image)
    return where([3, 4, 7, 8], tf.image.flip_up_down, image)


def _exif_orientation(image_bytes):
    """The EXIF orientation of an encoded image, from 1 to 8; 1 (upright) if it is no JPEG or says nothing."""
    import tensorflow as tf

    head = tf.strings.substr(image_bytes, 0, 2**16 + 2**12)
    head = tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int64)
    last = tf.size(head, tf.int64) - 1

    def number(position, num_bytes, little_endian=False):
        powers = [256**i for i in range(num_bytes)]
        weights = tf.where(little_endian, tf.constant(powers, tf.int64), tf.constant(powers[::-1], tf.int64))
        positions = position[..., None] + tf.range(num_bytes, dtype=tf.int64)
        # A damaged file may point anywhere: the last byte answers for all that are not there.
        return tf.reduce_sum(tf.gather(head, tf.minimum(positions, last)) * weights, axis=-1)

    def is_exif(segment):
        return (number(segment, 2) == 0xFFE1) & (number(segment + 4, 4) == 0x45786966)  # APP1, "Exif"

    def is_other_header(segment):
        marker = number(segment, 2)
        return (segment + 4 < last) & (marker >= 0xFF00) & (marker != 0xFFDA) & ~is_exif(segment)

    def read():
        segment = tf.constant(2, tf.int64)
        [segment] = tf.while_loop(is_other_header, lambda start: [start + 2 + number(start + 2, 2)], [segment])
        tiff = segment + 10
        little_endian = number(tiff, 2) == 0x4949  # "II"; otherwise "MM"
        directory = tiff + number(tiff + 4, 4, little_endian)
        entries = directory + 2 + 12 * tf.range(tf.minimum(number(directory, 2, little_endian), 1000))
        is_orientation = number(entries, 2, little_endian) == 0x0112
        found = tf.boolean_mask(number(entries + 8, 2, little_endian), is_orientation)
        found = tf.concat([found, [1]], axis=0)[0]
        return tf.where(is_exif(segment) & (found >= 1) & (found <= 8), found, 1)

    is_jpeg = tf.strings.substr(image_bytes, 0, 2) == b"\xff\xd8"
    return tf.cond(is_jpeg & (last > 16), read, lambda: tf.constant(1, tf.int64))
