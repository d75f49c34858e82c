"""Base class of layers that create other layers."""

import typing

import keras

from keras_vit.layers.configured import ConfiguredLayer


class CompositeLayer(ConfiguredLayer):
    """A layer that creates other layers, called its parts. Parts get the layer's dtype policy and its `trainable`.

    `keras.Model.quantize` quantizes each part separately. The layer stores the quantization of its parts in its config,
    so that a quantized `.keras` file can be loaded.

    Args:
        quantization: Dictionary. The keys are paths of parts within the layer. The values are the config entries that
            define a part's quantization. Only `from_config` passes this argument.
    """

    def __init__(self, *, quantization: dict[str, dict[str, typing.Any]] | None = None, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self._quantization = dict(quantization or {})

    def part_arguments(self, name):
        """Returns the arguments for a part: its name, dtype policy, `trainable` and quantization."""
        arguments = super().part_arguments(name)
        if name in self._quantization:
            entries = self._quantization[name].items()
            return arguments | {key: keras.saving.deserialize_keras_object(value) for key, value in entries}
        nested_entries = entries_below(name, self._quantization)
        return arguments | ({"quantization": nested_entries} if nested_entries else {})

    def quantized_parts(self):
        """Returns the quantization of the parts, a dictionary in the format of the argument `quantization`."""
        if not self.built:  # Some parts do not exist yet.
            return dict(self._quantization)
        quantized = {}
        parts = [part for value in vars(self).values() for part in (value if isinstance(value, list) else [value])]
        for part in parts:
            if isinstance(part, CompositeLayer):
                quantized |= {f"{part.name}/{path}": entries for path, entries in part.quantized_parts().items()}
            elif isinstance(part, keras.layers.Layer) and part.quantization_mode is not None:
                config = part.get_config()
                quantized[part.name] = {key: config[key] for key in ("dtype", "quantization_config")}
        return quantized

    def get_config(self):
        quantization = self.quantized_parts()
        return {**super().get_config(), **({"quantization": quantization} if quantization else {})}


def entries_below(name, quantization):
    """Returns the entries of `quantization` below the part `name`, with keys that are relative to this part."""
    prefix = f"{name}/"
    return {path.removeprefix(prefix): quantization[path] for path in quantization if path.startswith(prefix)}
