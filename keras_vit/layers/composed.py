"""Base class of layers that receive other layers as arguments."""

import keras

from keras_vit.layers.configured import ConfiguredLayer


class ComposedLayer(ConfiguredLayer):
    """A layer that receives other layers as arguments and stores them in its config.

    Class attributes:
        GIVEN: One pair (name of the argument, name of the attribute) per received layer.
    """

    GIVEN: tuple[tuple[str, str], ...] = ()

    def get_config(self):
        layers = {name: _serialize(getattr(self, attribute)) for name, attribute in self.GIVEN}
        return {**super().get_config(), **layers}

    @classmethod
    def from_config(cls, config):
        layers = {name: keras.saving.deserialize_keras_object(config[name]) for name, _ in cls.GIVEN}
        return super().from_config({**config, **layers})


def check_layer(name, value, example):
    """Returns `value`. Raises ValueError unless `value` is a layer. The message shows `example`, a valid value."""
    if not isinstance(value, keras.layers.Layer):
        raise ValueError(f"{name} must be a layer, such as {example}. Received: {value!r}")
    return value


def _serialize(layer):
    serialized = keras.saving.serialize_keras_object(layer)
    # If this entry remained, Keras would build the inner layer before the outer layer. The paths of the inner layer's
    # weights would then not contain the path of the outer layer.
    serialized.pop("build_config", None)
    return serialized
