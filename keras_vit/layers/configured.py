"""Base class of layers with arguments."""

import dataclasses

import keras

from keras_vit.architectures.rotary import RotaryConfig


class ConfiguredLayer(keras.layers.Layer):
    """A layer that stores its arguments in attributes and in its config.

    Class attributes:
        ARGUMENTS: Names of the arguments. The attributes have the same names.
    """

    ARGUMENTS: tuple[str, ...] = ()

    def part_arguments(self, name):
        """Returns the arguments for a layer that this layer creates: its name, dtype policy and `trainable`."""
        return {"name": name, "dtype": self.dtype_policy, "trainable": self.trainable}

    def get_config(self):
        return {**super().get_config(), **{name: _plain(getattr(self, name)) for name in self.ARGUMENTS}}


def _plain(argument):
    """Converts a `RotaryConfig` to a dictionary of its fields."""
    return dataclasses.asdict(argument) if isinstance(argument, RotaryConfig) else argument
