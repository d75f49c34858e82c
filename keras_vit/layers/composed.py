"""What layers share that are given other layers."""

import keras


class ComposedLayer(keras.layers.Layer):
    """A layer that is given other layers as arguments, and holds them in its config.

    Class attributes:
        GIVEN: For each of them the argument's name, and that of the attribute that holds it.
    """

    GIVEN = ()

    def part_arguments(self, name):
        """Arguments of a layer that this one makes itself: its name, dtype policy and whether it is trainable."""
        return {"name": name, "dtype": self.dtype_policy, "trainable": self.trainable}

    def get_config(self):
        layers = {name: _serialize(getattr(self, attribute)) for name, attribute in self.GIVEN}
        return {**super().get_config(), **layers}

    @classmethod
    def from_config(cls, config):
        layers = {name: keras.saving.deserialize_keras_object(config[name]) for name, _ in cls.GIVEN}
        return super().from_config({**config, **layers})


def check_layer(name, value, example):
    """Refuses what is not a layer; returns it. `example` is one, as it stands in the message."""
    if not isinstance(value, keras.layers.Layer):
        raise ValueError(f"{name} must be a layer, such as {example}. Received: {value!r}")
    return value


def _serialize(layer):
    serialized = keras.saving.serialize_keras_object(layer)
    # With it Keras would build the layer by itself, and the paths of its weights would not begin with this layer's.
    serialized.pop("build_config", None)
    return serialized
