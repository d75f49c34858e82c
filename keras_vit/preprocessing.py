"""Pixels in, class names out: what stands before and behind a model.

No augmentation here. B batch, H W C image.
"""

import csv
import functools
import importlib.resources

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class Preprocessing(keras.layers.Layer):
    """The first layer of every model: knows how its images are prepared, and normalises them if asked to.

    The protocol travels with the model through `.keras` files and exports: an image is resized (`resize`,
    `interpolation`), its centre is cut out (`crop`), and its pixels from 0 to 255 become `(x / 255 - mean) / std`. The
    layer itself does the last step, in float32, when `normalize` is `True`; otherwise it passes pixels on as they are.

    Args:
        mean: Mean of the pixels scaled to [0, 1]: a number, or one for each channel.
        std: Standard deviation of the same.
        resize: `(height, width)`: an image is resized to exactly this. An integer: its short side is, the other in
            proportion. `None`: it keeps its size.
        crop: `(height, width)` of the centre that is cut out after the resize, or `None`.
        interpolation: `"bilinear"` or `"bicubic"`, antialiased.
        label_space: What the classes are, such as `"imagenet1k"`, or `None` if nothing is known.
        source: Where the weights come from, or `None` for weights that were not loaded.
        normalize: Whether the layer normalises.

    Call arguments:
        images: (B, H, W, C), pixels in [0, 255] if `normalize`, otherwise normalised already.

    Returns:
        (B, H, W, C)

    Raises:
        ValueError: If a value is impossible.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.Preprocessing(mean=0.5, std=0.5, normalize=True)
    >>> print(keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor([[[[0.0], [127.5], [255.0]]]])))[0, 0, :, 0])
    [-1.  0.  1.]
    """

    def __init__(
        self,
        mean=0.5,
        std=0.5,
        resize=None,
        crop=None,
        interpolation="bilinear",
        label_space=None,
        source=None,
        normalize=False,
        **kwargs,
    ):
        super().__init__(**{"dtype": "float32", **kwargs})
        if interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be 'bilinear' or 'bicubic'. Received: {interpolation!r}")
        if np.any(np.asarray(std) <= 0):
            raise ValueError(f"std must be positive. Received: {std!r}")
        self.mean = _plain(mean)
        self.std = _plain(std)
        self.resize = _plain(resize)
        self.crop = _plain(crop)
        self.interpolation = interpolation
        self.label_space = label_space
        self.source = source
        self.normalize = normalize
        self.built = True

    def call(self, images):
        if self.normalize:
            images = normalize_pixels(images, self.mean, self.std)
        return ops.cast(images, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mean": self.mean,
            "std": self.std,
            "resize": self.resize,
            "crop": self.crop,
            "interpolation": self.interpolation,
            "label_space": self.label_space,
            "source": self.source,
            "normalize": self.normalize,
        }


def normalize_pixels(images, mean, std):
    """`(images / 255 - mean) / std` in float32, for tensors of the Keras backend."""
    scale = 1.0 / (255.0 * np.asarray(std))
    shift = np.asarray(mean) / np.asarray(std)
    images = ops.cast(images, "float32")
    return images * ops.convert_to_tensor(scale, "float32") - ops.convert_to_tensor(shift, "float32")


def preprocess_input(images, model=None):
    """Normalises pixels as a model expects them.

    Sizes are left alone: images are resized before, to the model's input size.

    Args:
        images: (B, H, W, C) or (H, W, C), pixels in [0, 255]: an array or a tensor of any numeric type.
        model: A model of this package, whose `preprocessing` layer says how. A model that was built with
            `include_preprocessing=True` normalises inside, so its images are returned with their values unchanged.
            `None`: pixels are mapped to [-1, 1], as Google's ViT, AugReg and SAM weights expect.

    Returns:
        float32, of the same shape; a NumPy array if `images` is one.

    Raises:
        ValueError: If `model` has no `preprocessing` layer.

    Example:

    >>> import numpy as np, keras_vit
    >>> print(keras_vit.preprocess_input(np.array([[[[0, 127.5, 255]]]]))[0, 0, 0])
    [-1.  0.  1.]
    """
    layer = Preprocessing(normalize=True) if model is None else preprocessing_layer(model)
    if model is not None and layer.normalize:
        normalized = ops.cast(images, "float32")
    else:
        normalized = normalize_pixels(images, layer.mean, layer.std)
    return ops.convert_to_numpy(normalized) if isinstance(images, np.ndarray) else normalized


def preprocessing_layer(model):
    """The `Preprocessing` layer of a model of this package, also where the model is nested in another."""
    found = list(_preprocessing_layers(model))
    if len(found) != 1:
        raise ValueError(
            f"A model of keras_vit has one Preprocessing layer; {model.name!r} has {len(found)}. Build the model with "
            f"keras_vit.ViT, or load one that was."
        )
    return found[0]


def _preprocessing_layers(model):
    for layer in model.layers:
        if isinstance(layer, Preprocessing):
            yield layer
        elif isinstance(layer, keras.Model):
            yield from _preprocessing_layers(layer)


def decode_predictions(probabilities, top=5):
    """Names the most probable of the 1,000 ImageNet-1k classes.

    Args:
        probabilities: (B, 1000), scores in the usual order, that of the sorted WordNet ids.
        top: How many classes to name.

    Returns:
        For each image a list of `top` tuples `(WordNet id, class name, score)`, the best first.

    Raises:
        ValueError: If `probabilities` is not of shape (B, 1000), or `top` is not from 1 to 1000.

    Example:

    >>> import numpy as np, keras_vit
    >>> probabilities = np.eye(1000)[[96]]
    >>> keras_vit.decode_predictions(probabilities, top=1)
    [[('n01843383', 'toucan', 1.0)]]
    """
    probabilities = np.asarray(ops.convert_to_numpy(probabilities))
    classes = imagenet1k_classes()
    if probabilities.ndim != 2 or probabilities.shape[1] != len(classes):
        raise ValueError(
            f"decode_predictions names the {len(classes)} classes of ImageNet-1k and needs scores of shape (B, "
            f"{len(classes)}). Received: shape {probabilities.shape}. For other classes, index your own list of names."
        )
    if top not in range(1, len(classes) + 1):
        raise ValueError(f"top must be from 1 to {len(classes)}. Received: {top!r}")
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    return [
        [(*classes[index], float(row[index])) for index in indices]
        for row, indices in zip(probabilities, best, strict=True)
    ]


@functools.cache
def imagenet1k_classes():
    """The 1,000 classes of ImageNet-1k as tuples (WordNet id, name), in the order of the published heads."""
    with importlib.resources.files("keras_vit").joinpath("imagenet1k_classes.csv").open() as file:
        return tuple((row["wnid"], row["name"]) for row in csv.DictReader(file))


def _plain(value):
    """Numbers and tuples as JSON keeps them, so that a config is the same before and after a file."""
    return np.asarray(value).tolist() if isinstance(value, (tuple, list, np.ndarray)) else value
