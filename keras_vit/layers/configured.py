"""Base class of layers with arguments."""

import keras


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
        return {**super().get_config(), **{name: getattr(self, name) for name in self.ARGUMENTS}}
