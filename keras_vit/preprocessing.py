"""Pixels in: what stands before a model.

No augmentation here. B batch, H W C image.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.checks import check_flag


@keras.saving.register_keras_serializable(package="keras_vit")
class Preprocessing(keras.layers.Layer):
    """The first layer of every model: knows how its images are prepared, and normalises them if asked to.

    The protocol travels with the model through `.keras` files and exports: an image is resized (`resize`,
    `interpolation`), its centre is cut out (`crop`), and its pixels from 0 to 255 become `(x / 255 - mean) / std`. The
    layer itself does the last step, in float32, when `normalize` is `True`; otherwise it passes pixels on as they are.

    Args:
        mean: Mean of the pixels scaled to [0, 1]: a number, or one for each channel. In [-1e4, 1e4].
        std: Standard deviation of the same. In [1e-4, 1e4].
        resize: `(height, width)`: an image is resized to exactly this. An integer: its short side is, the other in
            proportion. `None`: it keeps its size.
        crop: `(height, width)` of the centre that is cut out after the resize, or `None`.
        interpolation: `"bilinear"` or `"bicubic"`, antialiased.
        label_space: What the classes are: `"imagenet1k"`, `"imagenet21k"`, a list of their names, or `None` if nothing
            is known.
        source: Where the weights come from, or `None` for weights that were not loaded.
        architecture: The model's `ViTConfig`, or that of `keras_vit.architectures`, as its `to_dict` gives it.
        adaptations: {what: how} the loaded weights were changed to fit the model.
        normalize: Whether the layer normalises.

    Call arguments:
        images: (B, H, W, C), pixels in [0, 255] if `normalize`, otherwise normalised already.

    Returns:
        (B, H, W, C)

    Raises:
        ValueError: If a value is impossible, or the layer normalises images that have another number of channels than
            `mean` or `std`.

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
        architecture=None,
        adaptations=None,
        normalize=False,
        **kwargs,
    ):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.set_protocol(mean, std, resize, crop, interpolation, label_space)
        self.source = source
        self.architecture = architecture
        self.adaptations = dict(adaptations or {})
        self.normalize = check_flag("normalize", normalize)
        self.built = True

    def set_protocol(self, mean=0.5, std=0.5, resize=None, crop=None, interpolation="bilinear", label_space=None):
        """Changes how images are prepared; the arguments are those of the class."""
        if interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be 'bilinear' or 'bicubic'. Received: {interpolation!r}")
        for name, values in (("mean", mean), ("std", std)):
            lowest = 1e-4 if name == "std" else -1e4
            if not _are_numbers(values, lowest, 1e4):
                raise ValueError(
                    f"{name} must be a number from {lowest:g} to 10000, or one for each channel, for pixels scaled to "
                    f"[0, 1]. Received: {values!r}"
                )
        for name, sides in (("resize", resize), ("crop", crop)):
            if sides is not None and not _are_sides(sides, name == "resize"):
                raise ValueError(f"{name} must be None or (height, width) in pixels. Received: {sides!r}")
        self.mean = _plain(mean)
        self.std = _plain(std)
        self.resize = _plain(resize)
        self.crop = _plain(crop)
        self.interpolation = interpolation
        self.label_space = label_space if isinstance(label_space, (str, type(None))) else list(label_space)

    def class_names(self, count):
        """The names of `count` classes, if the label space is a list of so many; else `None`."""
        is_list = isinstance(self.label_space, list) and len(self.label_space) == count
        return self.label_space if is_list else None

    def call(self, images):
        if self.normalize:
            images = normalize_pixels(images, self.mean, self.std)
        return ops.cast(images, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        if self.normalize:
            _check_channels(input_shape, self.mean, self.std)
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
            "architecture": self.architecture,
            "adaptations": self.adaptations,
            "normalize": self.normalize,
        }


def normalize_pixels(images, mean, std):
    """`(images / 255 - mean) / std` in float32, for tensors of the Keras backend."""
    scale = 1.0 / (255.0 * np.asarray(std))
    shift = np.asarray(mean) / np.asarray(std)
    images = ops.cast(images, "float32")
    _check_channels(images.shape, mean, std)
    return images * ops.convert_to_tensor(scale, "float32") - ops.convert_to_tensor(shift, "float32")


def _check_channels(shape, mean, std):
    """Refuses images (..., C) that have another number of channels than the mean or the standard deviation."""
    for name, values in (("mean", mean), ("std", std)):
        if isinstance(values, (tuple, list)) and shape[-1] not in (None, len(values)):
            raise ValueError(
                f"images must have {len(values)} channels, one for each value of {name}={values}. Received: images of "
                f"shape {tuple(shape)}"
            )


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
        ValueError: If `model` has no `preprocessing` layer, or `images` have another number of channels than it.

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
    return _find(model)[1]


def vision_model(model):
    """The model of this package that a model is, or that is nested in it."""
    return _find(model)[0]


def _find(model):
    found = list(_preprocessing_layers(model))
    if len(found) != 1:
        raise ValueError(
            f"A model of keras_vit has one Preprocessing layer; {model.name!r} has {len(found)}. Build the model with "
            f"keras_vit.ViT or another of its functions, or load one that was."
        )
    return found[0]


def _preprocessing_layers(model):
    """(model, its layer) for each `Preprocessing` layer in a model and those nested in it."""
    for layer in model.layers:
        if isinstance(layer, Preprocessing):
            yield model, layer
        elif isinstance(layer, keras.Model):
            yield from _preprocessing_layers(layer)


def _are_numbers(values, lowest, highest):
    values = np.asarray(values)
    are_numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    return are_numbers and bool(((values >= lowest) & (values <= highest)).all())


def _are_sides(sides, may_be_one):
    sides = np.asarray(sides)
    shapes = ((), (2,)) if may_be_one else ((2,),)
    return sides.dtype.kind in "iu" and sides.shape in shapes and bool((sides > 0).all())


def _plain(value):
    """Numbers and tuples as JSON keeps them, so that a config is the same before and after a file."""
    return np.asarray(value).tolist() if isinstance(value, (tuple, list, np.ndarray)) else value
