"""Base class of the layers."""

import dataclasses
import inspect
import typing

import keras

from keras_vit.architectures.rotary import RotaryConfig


class BaseLayer(keras.layers.Layer):
    """A layer that stores its arguments in its config and can contain other layers, called its parts.

    The config contains the arguments of `__init__`. The attributes have the same names, except those in `ATTRIBUTES`.
    An argument can be a layer or a list of layers.

    Parts that the layer creates itself get the layer's dtype policy and its `trainable`. `keras.Model.quantize`
    quantizes each part separately. The layer stores the quantization of the parts that it created in its config, so
    that a quantized `.keras` file can be loaded.

    Class attributes:
        ATTRIBUTES: {name of an argument: name of its attribute}, where the names differ.

    Args:
        quantization: Dictionary. The keys are paths of parts within the layer. The values are the config entries that
            define a part's quantization. Only `from_config` passes this argument.
    """

    ATTRIBUTES: typing.ClassVar[dict[str, str]] = {}

    def __init__(self, *, quantization: dict[str, dict[str, typing.Any]] | None = None, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self._quantization = dict(quantization or {})

    def part_arguments(self, name):
        """Returns the arguments for a part: its name, dtype policy, `trainable` and quantization."""
        arguments = {"name": name, "dtype": self.dtype_policy, "trainable": self.trainable}
        if name in self._quantization:
            entries = self._quantization[name].items()
            return arguments | {key: keras.saving.deserialize_keras_object(value) for key, value in entries}
        prefix = f"{name}/"
        nested = {path: entries for path, entries in self._quantization.items() if path.startswith(prefix)}
        nested = {path.removeprefix(prefix): entries for path, entries in nested.items()}
        return arguments | ({"quantization": nested} if nested else {})

    def build_part(self, create, name, input_shape, *arguments, **options):
        """Returns the part `create(*arguments, **options)`, built for inputs of `input_shape`."""
        part = create(*arguments, **options, **self.part_arguments(name))
        part.build(input_shape)
        return part

    def quantized_parts(self):
        """Returns the quantization of the parts, a dictionary in the format of the argument `quantization`."""
        if not self.built:  # Some parts do not exist yet.
            return dict(self._quantization)
        quantized = {}
        given = [value for value in keras.tree.flatten(self._arguments()) if isinstance(value, keras.Layer)]
        for part in [part for value in vars(self).values() for part in (value if isinstance(value, list) else [value])]:
            if not isinstance(part, keras.Layer) or part in given:
                continue
            if isinstance(part, BaseLayer):
                quantized |= {f"{part.name}/{path}": entries for path, entries in part.quantized_parts().items()}
            elif part.quantization_mode is not None:
                config = part.get_config()
                quantized[part.name] = {key: config[key] for key in ("dtype", "quantization_config")}
        return quantized

    def _arguments(self):
        names = inspect.getfullargspec(type(self).__init__).args[1:]
        return {name: getattr(self, self.ATTRIBUTES.get(name, name)) for name in names}

    def get_config(self):
        arguments = {name: _serialized(value) for name, value in self._arguments().items()}
        quantization = self.quantized_parts()
        return {**super().get_config(), **arguments, **({"quantization": quantization} if quantization else {})}

    @classmethod
    def from_config(cls, config):
        return super().from_config({name: _deserialized(value) for name, value in config.items()})

    def compute_output_shape(self, input_shape, *other_shapes):
        """Returns the shape of the first input. Layers that change the shape override this method."""
        return input_shape


def check_layer(name, value, example):
    """Returns `value`. Raises ValueError unless `value` is a layer. The message shows `example`, a valid value."""
    if not isinstance(value, keras.layers.Layer):
        raise ValueError(f"{name} must be a layer, such as {example}. Received: {value!r}")
    return value


def _serialized(value):
    if isinstance(value, RotaryConfig):
        return dataclasses.asdict(value)
    if isinstance(value, list):
        return [_serialized(each) for each in value]
    if not isinstance(value, (keras.Layer, keras.Initializer)):
        return value
    serialized = keras.saving.serialize_keras_object(value)
    # If this entry remained, Keras would build the inner layer before the outer layer. The paths of the inner layer's
    # weights would then not contain the path of the outer layer.
    serialized.pop("build_config", None)
    return serialized


def _deserialized(value):
    """The inverse of `_serialized`, for layers and initializers."""
    if isinstance(value, list):
        return [_deserialized(each) for each in value]
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) and "class_name" in value else value
