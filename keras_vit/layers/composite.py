"""What layers share that are made of other layers."""

import keras


class CompositeLayer(keras.layers.Layer):
    """A layer made of other layers, its parts, which have its dtype policy and are trainable if it is.

    Keras quantizes the parts of a layer, each by itself (`keras.Model.quantize`). The layer keeps in its config how, so
    that a `.keras` file can be loaded again.

    Args:
        quantization: {path of a part within the layer: the entries of its config that say how it is quantized}. For
            `from_config` only.
    """

    def __init__(self, *, quantization=None, **kwargs):
        super().__init__(**kwargs)
        self._quantization = dict(quantization or {})

    def part_arguments(self, name):
        """Arguments of the part of this name: what every layer takes, and how the part is quantized."""
        arguments = {"name": name, "dtype": self.dtype_policy, "trainable": self.trainable}
        if name in self._quantization:
            entries = self._quantization[name].items()
            return arguments | {key: keras.saving.deserialize_keras_object(value) for key, value in entries}
        prefix = f"{name}/"
        within = {
            path.removeprefix(prefix): entries
            for path, entries in self._quantization.items()
            if path.startswith(prefix)
        }
        return arguments | ({"quantization": within} if within else {})

    def quantized_parts(self):
        """{path of a part within the layer: the entries of its config that say how it is quantized}"""
        if not self.built:  # Some parts are not there yet.
            return dict(self._quantization)
        found = {}
        values = [part for value in vars(self).values() for part in (value if isinstance(value, list) else [value])]
        for part in values:
            if isinstance(part, CompositeLayer):
                found |= {f"{part.name}/{path}": entries for path, entries in part.quantized_parts().items()}
            elif isinstance(part, keras.layers.Layer) and part.quantization_mode is not None:
                config = part.get_config()
                found[part.name] = {key: config[key] for key in ("dtype", "quantization_config")}
        return found

    def get_config(self):
        quantization = self.quantized_parts()
        return {**super().get_config(), **({"quantization": quantization} if quantization else {})}
