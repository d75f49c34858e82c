"""Rematerialization: to save memory, training computes activations again instead of storing them."""

import keras

from keras_vit.checks import check_flag
from keras_vit.graph import all_layers
from keras_vit.layers import EncoderBlock
from keras_vit.preprocessing import vision_model


def rematerialize(model: keras.Model, enabled: bool = True) -> None:
    """Makes training compute each encoder block twice, which needs less memory but more time than computing it once.

    In training, only the input tokens of every block stay in memory. The activations inside the block are computed
    again for the gradients ("Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). Losses and gradients
    stay the same up to rounding, and dropout and drop path draw the same random numbers. Inference does not change.

    The setting is not saved, so it is off in a model loaded from a file. Like `trainable`, it must be set before
    `model.compile`. On JAX, the setting has an effect only on GPUs and TPUs, because XLA removes the second computation
    on CPUs.

    Args:
        model: A model of this package, which may be nested in another model.
        enabled: `False` switches rematerialization off.

    Raises:
        ValueError: If `model` is not of this package or has no encoder block, or if `enabled` is not a boolean.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=2, drop_path_rate=0.1)
    >>> keras_vit.rematerialize(model)
    """
    check_flag("enabled", enabled)
    blocks = [layer for layer in all_layers(vision_model(model)) if isinstance(layer, EncoderBlock)]
    if not blocks:
        raise ValueError(f"Only encoder blocks can be rematerialised, but {model.name!r} has none.")
    for block in blocks:
        block.use_rematerialization = enabled
