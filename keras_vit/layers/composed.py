"""Base class of layers that receive other layers as arguments."""

import keras


class ComposedLayer(keras.layers.Layer):
    """A layer that receives other layers as arguments and stores them in its config.

    Class attributes:
        GIVEN: (name of the argument, name of the attribute) for each of these layers.
    """

    GIVEN: tuple[tuple[str, str], ...] = ()

    def part_arguments(self, name):
        """Arguments for a layer that this layer creates itself: its name, dtype policy and `trainable`."""
        return {"name": name, "dtype": self.dtype_policy, "trainable": self.trainable}

    def get_config(self):
        layers = {name: _serialize(getattr(self, attribute)) for name, attribute in self.GIVEN}
        return {**super().get_config(), **layers}

    @classmethod
    def from_config(cls, config):
        layers = {name: keras.saving.deserialize_keras_object(config[name]) for name, _ in cls.GIVEN}
        return super().from_config({**config, **layers})


def check_layer(name, value, example):
    """Returns `value`. Raises ValueError unless it is a layer. The message shows `example`, a valid value."""
    if not isinstance(value, keras.layers.Layer):
        raise ValueError(f"{name} must be a layer, such as {example}. Received: {value!r}")
    return value


def _serialize(layer):
    serialized = keras.saving.serialize_keras_object(layer)
    # With it, Keras would build the layer alone, and the paths of its weights would not start with this layer's path.
    serialized.pop("build_config", None)
    return serialized
