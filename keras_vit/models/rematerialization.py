"""`rematerialize`: training in less memory."""

from keras_vit.checks import check_flag
from keras_vit.graph import all_layers
from keras_vit.layers import EncoderBlock
from keras_vit.preprocessing import vision_model


def rematerialize(model, enabled=True):
    """Lets a model train in less memory, at the price of time: each encoder block is computed a second time.

    Of every block (of an axial one, of either pass), training keeps only the tokens that go in; when the gradients
    reach the block, its activations are computed again ("Training Deep Nets with Sublinear Memory Cost", arXiv
    1604.06174). Losses and gradients stay the same up to rounding, and so do the random numbers that dropout and drop
    path draw. Inference stays as it is.

    The switch is no part of the architecture: a model loaded from a file has it off. Like a change of `trainable`, it
    acts on training that is compiled afterwards, so call it before `model.compile`. On JAX, a GPU or TPU honours it;
    XLA for CPUs undoes it.

    Args:
        model: A model of this package, also nested in another.
        enabled: `False` switches it off.

    Raises:
        ValueError: If `model` is not of this package, or has no encoder block, or `enabled` is not a boolean.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=2, drop_path_rate=0.1)
    >>> keras_vit.rematerialize(model)
    """
    check_flag("enabled", enabled)
    blocks = [layer for layer in all_layers(vision_model(model)) if isinstance(layer, EncoderBlock)]
    if not blocks:
        raise ValueError(f"Encoder blocks can be rematerialised, and {model.name!r} has none.")
    for block in blocks:
        block.use_rematerialization = enabled
