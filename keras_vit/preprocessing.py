"""The preprocessing of images for a model, without augmentation. Shapes: B batch, H W C image."""

import collections.abc
import typing
import warnings

import keras
import numpy as np
from keras import ops

from keras_vit.checks import MAX_SIDE, check_flag, check_positive_integer
from keras_vit.licences import checked_licence, warn_if_restricted

_PIXEL_SETTINGS = ("mean", "std", "resize", "crop", "interpolation")
SETTINGS = (*_PIXEL_SETTINGS, "label_space")
"""The arguments of `Preprocessing.set_preprocessing`, and the attributes that store them."""


@keras.saving.register_keras_serializable(package="keras_vit")
class Preprocessing(keras.layers.Layer):
    """The first layer of every model. It stores how images are prepared, and can normalise their pixels.

    The settings are saved in `.keras` files and exports. An image is first resized (`resize`, `interpolation`). Then
    its centre is cut out (`crop`). Then its pixels from 0 to 255 become `(x / 255 - mean) / std`. If `normalize` is
    `True`, the layer itself does the last step, in float32. Otherwise the layer does not change the images.

    Args:
        mean: Mean of the pixels scaled to [0, 1]: a number in [-1e4, 1e4], or one number for each channel.
        std: Standard deviation of these pixels: a number in [1e-4, 1e4], or one number for each channel.
        resize: `(height, width)` of the resized image. If it is an integer, the short side gets this length, and the
            aspect ratio does not change. `None`: images are not resized.
        crop: `(height, width)` of the centre that is cut out after the resize, or `None`.
        interpolation: `"bilinear"` or `"bicubic"`, antialiased.
        label_space: Names of the classes: `"imagenet1k"`, `"imagenet21k"`, a list of names, or `None` if they are
            unknown.
        source: Source of the weights, or `None` for weights that were not loaded.
        architecture: The model's config as a dictionary: `to_dict()` of a config of `keras_vit.architectures`.
        adaptations: Changes that adapted the loaded weights to the model, and settings of the weights that have no
            effect: {changed part or setting: description}.
        normalize: Whether the layer normalises pixels.
        origin: The published weights from which the model's weights are derived: a dictionary with `source`, `licence`
            (`None` if unknown) and `checksum` (`None` if the weights were adapted to the model). `None`: no weights
            were loaded. The origin of a fine-tuned model is that of the weights from which it started.
        outputs: What the outputs mean, as `keras_vit.set_output` records it, or `None` if the layers show it.

    Call arguments:
        images: (B, H, W, C), pixels in [0, 255] if `normalize` is `True`, otherwise normalised images.

    Returns:
        (B, H, W, C)

    Raises:
        ValueError: If a value is invalid, if the images have another number of channels than `mean` or `std`, or if
            `normalize` is `True` and the number of channels is unknown or changes.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.Preprocessing(mean=0.5, std=0.5, normalize=True)
    >>> print(keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor([[[[0.0], [127.5], [255.0]]]])))[0, 0, :, 0])
    [-1.  0.  1.]
    """

    def __init__(
        self,
        mean: float | collections.abc.Sequence[float] = 0.5,
        std: float | collections.abc.Sequence[float] = 0.5,
        resize: tuple[int, int] | None = None,
        crop: float | None = None,
        interpolation: str = "bilinear",
        label_space: str | list[str] | None = None,
        source: str | None = None,
        architecture: dict[str, typing.Any] | None = None,
        adaptations: dict[str, str] | None = None,
        normalize: bool = False,
        origin: dict[str, typing.Any] | None = None,
        outputs: dict[str, dict] | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        self._scale_and_shift: typing.Any = None
        self.set_preprocessing(mean, std, resize, crop, interpolation, label_space)
        self.source = source
        self.architecture = architecture
        self.adaptations = dict(adaptations or {})
        self.normalize = check_flag("normalize", normalize)
        self.origin = None if origin is None else _checked_origin(origin)
        self.outputs = outputs
        if self.origin is not None:
            warn_if_restricted(self.origin["licence"], self.origin["source"])

    def build(self, input_shape):
        _check_channels(input_shape, self.mean, self.std)
        if input_shape[-1] is not None:
            # Compiled functions of this model and of models around it read this variable in each call. Constants in
            # these functions would not change when `load_weights` changes the mean and the standard deviation.
            self._scale_and_shift = self.add_weight(
                name="normalization",
                shape=(2, input_shape[-1]),
                initializer=lambda shape, dtype: ops.convert_to_tensor(
                    _scale_and_shift_of(self.mean, self.std, shape[-1]), dtype
                ),
                trainable=False,
                autocast=False,
            )
        elif self.normalize:
            raise ValueError(
                f"With normalize=True, the number of channels must be known. Received: images of shape "
                f"{tuple(input_shape)}"
            )

    @property
    def weights(self):
        """An empty list: the variable of the layer follows from its config, so it is neither counted nor saved."""
        return []

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass

    def set_preprocessing(self, mean=0.5, std=0.5, resize=None, crop=None, interpolation="bilinear", label_space=None):
        """Changes how images are prepared. The arguments are the same as in the class."""
        if interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be 'bilinear' or 'bicubic'. Received: {interpolation!r}")
        for name, values, lowest in (("mean", mean, -1e4), ("std", std, 1e-4)):
            if not _are_numbers(values, lowest, 1e4):
                raise ValueError(
                    f"{name} must be a number from {lowest:g} to 10000, or one for each channel, for pixels scaled to "
                    f"[0, 1]. Received: {values!r}"
                )
        for name, sides in (("resize", resize), ("crop", crop)):
            if sides is not None and not _are_sides(sides, name == "resize"):
                accepted = f"{'a number or ' if name == 'resize' else ''}(height, width)"
                raise ValueError(
                    f"{name} must be None, or {accepted} in pixels, at most {MAX_SIDE}. Received: {sides!r}"
                )
        if self._scale_and_shift is not None:
            _check_channels(self._scale_and_shift.shape, mean, std)
            self._scale_and_shift.assign(_scale_and_shift_of(mean, std, self._scale_and_shift.shape[-1]))
        self.mean, self.std, self.resize, self.crop = map(_as_lists, (mean, std, resize, crop))
        self.interpolation = interpolation
        self.label_space = label_space if isinstance(label_space, (str, type(None))) else list(label_space)

    @property
    def pixel_settings(self):
        """How pixels are prepared: {argument of `set_preprocessing`: value}, without `label_space`."""
        return {name: getattr(self, name) for name in _PIXEL_SETTINGS}

    def class_names(self, count):
        """Returns the label space if it is a list of `count` names, else `None`."""
        is_list = isinstance(self.label_space, list) and len(self.label_space) == count
        return self.label_space if is_list else None

    def call(self, images):
        if self.normalize:
            self._check_images(images.shape)
            images = ops.cast(images, "float32") * self._scale_and_shift[0] - self._scale_and_shift[1]
        return ops.cast(images, self.compute_dtype)

    def to_pixels(self, images):
        """Converts normalised images (..., C) to pixels in [0, 1]."""
        scale_and_shift = self._scale_and_shift
        if scale_and_shift is None:
            scale_and_shift = _scale_and_shift_of(self.mean, self.std, images.shape[-1])
        scale_and_shift = ops.cast(scale_and_shift, images.dtype)
        return (images + scale_and_shift[1]) / (255 * scale_and_shift[0])

    def compute_output_shape(self, input_shape):
        if self.normalize:
            self._check_images(input_shape)
        return input_shape

    def _check_images(self, shape):
        """Checks that images (..., C) have the channels of the layer. Gray images would be broadcast to them."""
        _check_channels(shape, self.mean, self.std)
        channels = shape[-1] if self._scale_and_shift is None else self._scale_and_shift.shape[-1]
        if shape[-1] not in (None, channels):
            raise ValueError(f"images must have {channels} channels. Received: images of shape {tuple(shape)}")

    def get_config(self):
        names = (*SETTINGS, "source", "architecture", "adaptations", "normalize", "origin", "outputs")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def normalize_pixels(images, mean, std):
    """`(images / 255 - mean) / std` in float32, for tensors of the Keras backend."""
    images = ops.cast(images, "float32")
    _check_channels(images.shape, mean, std)
    rows = _scale_and_shift_of(mean, std, max(np.size(mean), np.size(std)))  # The images' channels may be unknown.
    scale, shift = (ops.convert_to_tensor(row, "float32") for row in rows)
    return images * scale - shift


def _scale_and_shift_of(mean, std, channels):
    """Array (2, C) whose rows `scale` and `shift` normalise pixels: `pixels * scale - shift`."""
    mean, std = np.asarray(mean), np.asarray(std)
    return np.stack([np.broadcast_to(row, channels) for row in (1.0 / (255.0 * std), mean / std)])


def _check_channels(shape, mean, std):
    """Checks that images (..., C) have as many channels as the mean and the standard deviation."""
    for name, values in (("mean", mean), ("std", std)):
        if isinstance(values, (tuple, list)) and shape[-1] not in (None, len(values)):
            raise ValueError(
                f"images must have {len(values)} channels, one for each value of {name}={values}. Received: images of "
                f"shape {tuple(shape)}"
            )


def preprocess_input(images: typing.Any, model: keras.Model | None = None) -> typing.Any:
    """Normalises pixels as a model expects them.

    The images are not resized. Resize them to the model's input size first. Gray images are not converted to RGB. If a
    NumPy array of floats has no pixel above 1, a warning says that pixels from 0 to 255 are expected.

    Args:
        images: (B, H, W, C) or (H, W, C), pixels in [0, 255]: an array or a tensor of any integer or float type.
        model: A model of this package. Its `preprocessing` layer defines the mean and the standard deviation. If the
            model was built with `include_preprocessing=True`, the pixels are returned unchanged, because the model
            normalises images itself. `None`: pixels are mapped to [-1, 1], as Google's ViT, AugReg and SAM weights
            expect.

    Returns:
        The images in float32, of the same shape. If `images` is a NumPy array, the result is a NumPy array too.

    Raises:
        TypeError: If `images` are not integers or floats.
        ValueError: If `model` has no `preprocessing` layer, if `images` are not (H, W, C) or (B, H, W, C), or if they
            have another number of channels than the model takes.

    Example:

    >>> import numpy as np, keras_vit
    >>> print(keras_vit.preprocess_input(np.array([[[[0, 127.5, 255]]]]))[0, 0, 0])
    [-1.  0.  1.]
    """
    layer, input_shape = Preprocessing(normalize=True), None
    if model is not None:
        owner, layer = _find(model)
        input_shape = owner.input_shape
    array = images if hasattr(images, "dtype") else np.asarray(images)
    # A model with several inputs has a list of shapes.
    _check_images(array, input_shape[-1] if isinstance(input_shape, tuple) else None)
    if model is not None and layer.normalize:
        normalized = ops.cast(images, "float32")
    else:
        normalized = normalize_pixels(images, layer.mean, layer.std)
    return ops.convert_to_numpy(normalized) if isinstance(images, np.ndarray) else normalized


def _check_images(images, channels):
    """Checks images for `preprocess_input`. `channels` is `None` if their number is unknown."""
    dtype = str(getattr(images.dtype, "name", images.dtype)).rpartition(".")[-1]
    if not dtype.startswith(("uint", "int", "float", "bfloat")):
        raise TypeError(f"images must be integers or floats in [0, 255]. Received: images of type {dtype}")
    if getattr(images.shape, "rank", 0) is None:  # TensorFlow does not know the shape of some tensors in graphs.
        return
    shape = tuple(images.shape)
    if len(shape) not in (3, 4) or (None not in (shape[-1], channels) and shape[-1] != channels):
        hints = {
            (1, 3): " Convert gray images with np.repeat(images, 3, axis=-1).",
            (4, 3): " Leave out the alpha channel: images[..., :3].",
        }
        accepted = " or ".join(f"({axes}, {channels or 'C'})" for axes in ("H, W", "B, H, W"))
        hint = hints.get((*shape[-1:], channels), "")
        raise ValueError(f"images must have the shape {accepted}. Received: images of shape {shape}.{hint}")
    if isinstance(images, np.ndarray) and images.dtype.kind == "f" and images.any() and images.max() <= 1:
        warnings.warn(
            f"preprocess_input expects pixels from 0 to 255, but the largest value of these images is "
            f"{images.max():.3g}. If they were scaled to [0, 1], multiply them by 255. If they were normalised, do not "
            f"call preprocess_input.",
            stacklevel=3,
        )


def preprocessing_layer(model):
    """The `Preprocessing` layer of a model of this package, which may be nested in another model."""
    return _find(model)[1]


def vision_model(model):
    """The model of this package: the given model itself, or a model that is nested in it."""
    return _find(model)[0]


def _find(model):
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a model of keras_vit. Received: {model!r}")
    matches = list(_preprocessing_layers(model))
    if len(matches) != 1:
        raise ValueError(
            f"A model of keras_vit has one Preprocessing layer, but {model.name!r} has {len(matches)}. Build the model "
            f"with keras_vit.ViT or another function of keras_vit, or load such a model."
        )
    return matches[0]


def _preprocessing_layers(model):
    """Yields (model, layer) for each `Preprocessing` layer in a model and in its nested models."""
    for layer in model.layers:
        if isinstance(layer, Preprocessing):
            yield model, layer
        elif isinstance(layer, keras.Model):
            yield from _preprocessing_layers(layer)


def input_preprocessing(model, size=None):
    """Returns the preprocessing and the input size of a model that takes decoded images.

    Args:
        model: A model of this package for images of C channels, 1 or 3.
        size: (height, width) of the images, for a model of variable input size. By default, the `preprocessing` layer
            defines it.

    Returns:
        The model's `preprocessing` layer, or a copy that produces images of `size`; the input size [height, width] in
        pixels; and the number of channels.

    Raises:
        ValueError: If no size is known, if the model does not take images of `size`, if its `preprocessing` layer
            produces images of another size, or if C is neither 1 nor 3.
    """
    layer = preprocessing_layer(model)
    if not isinstance(model.input_shape, tuple):
        raise ValueError(
            f"A model with one input, the images, is needed. {model.name!r} has {len(model.inputs)} inputs. Pass the "
            f"model that keras_vit.naflex_model received. keras_vit.export_image_text_model(..., max_patches=...) "
            f"writes SavedModels for images of any proportions."
        )
    *model_size, channels = model.input_shape[1:]
    if channels not in (1, 3):
        raise ValueError(f"Decoded images have 1 or 3 channels. Received: a model for images of {channels} channels.")
    stored_size = layer.crop or layer.resize
    if size is not None:
        size = [check_positive_integer("size", side) for side in size]
    elif None not in model_size:
        size = model_size
    elif isinstance(stored_size, list):
        size = stored_size
    else:
        raise ValueError(
            f"The model takes images of any size, and its preprocessing layer defines no size: "
            f"resize={layer.resize}, crop={layer.crop}. Give image_size=(height, width)."
        )
    if len(size) != 2 or any(expected not in (None, side) for expected, side in zip(model_size, size, strict=False)):
        expected = " x ".join("any" if side is None else str(side) for side in model_size)
        raise ValueError(f"The model takes images of {expected} pixels. Received: size={tuple(size)}")
    if None in model_size and size != stored_size:
        layer = _scaled(layer, size)
    resized = [layer.resize] * 2 if isinstance(layer.resize, int) else layer.resize
    is_cut = resized is not None and all(side >= cut for side, cut in zip(resized, size, strict=True))
    if (layer.crop or layer.resize) != size or not is_cut:
        raise ValueError(
            f"The model takes images of {size[0]} x {size[1]} pixels, but its preprocessing layer does not lead to "
            f"that size: resize={layer.resize}, crop={layer.crop}. Choose how images are resized. For example, "
            f"resize whole images: layer = model.get_layer({layer.name!r}); layer.resize, layer.crop = {size}, None"
        )
    return layer, size, channels


def _scaled(layer, size):
    """Returns a copy of a `preprocessing` layer, with its resize and crop scaled in proportion to another size."""
    resized, crop = layer.resize, layer.crop
    if crop is None:
        changes = {"resize": max(size), "crop": size} if isinstance(resized, int) else {"resize": size}
    else:
        factors = [side / cut for side, cut in zip(size, crop, strict=True)]
        if isinstance(resized, int):
            resized = round(resized * max(factors))
        elif resized is not None:
            resized = [round(side * factor) for side, factor in zip(resized, factors, strict=True)]
        changes = {"resize": resized, "crop": size}
    return Preprocessing.from_config(layer.get_config() | changes)


def _checked_origin(origin):
    """Checks `origin`, because files are not trusted. Returns a copy with the result of `checked_licence`."""
    accepted = {
        "source": (str, "a string"),
        "licence": (str | None, "a string or None"),
        "checksum": (int | None, "an integer or None"),
    }
    if not isinstance(origin, dict) or origin.keys() != accepted.keys():
        raise ValueError(f"origin must be None or a dictionary with {', '.join(accepted)}. Received: {origin!r}")
    for name, (types, description) in accepted.items():
        if not isinstance(origin[name], types):
            raise ValueError(f"The {name} of origin must be {description}. Received: {origin[name]!r}")
    return {**origin, "licence": checked_licence(origin["licence"])}


def _are_numbers(values, lowest, highest):
    values = np.asarray(values)
    are_numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    return are_numbers and bool(((values >= lowest) & (values <= highest)).all())


def _are_sides(sides, may_be_one):
    sides = np.asarray(sides)
    shapes = ((), (2,)) if may_be_one else ((2,),)
    return sides.dtype.kind in "iu" and sides.shape in shapes and bool(((sides > 0) & (sides <= MAX_SIDE)).all())


def _as_lists(value):
    """Converts tuples and arrays to lists, as JSON does, so that a config is the same before and after saving."""
    return np.asarray(value).tolist() if isinstance(value, (tuple, list, np.ndarray)) else value
