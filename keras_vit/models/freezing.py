"""`freeze`: which layers train."""

import keras

from keras_vit.checks import did_you_mean
from keras_vit.preprocessing import vision_model


def freeze(model, up_to="encoder_block_5"):
    """Freezes a model up to a layer, and lets the rest of it train.

    The order is that in which the layers run, `model.layers`. Like any change of `trainable`, it acts on training that
    is compiled afterwards, so call it before `model.compile`. Dropout in frozen layers still acts in training. The
    flags are kept in `.keras` files.

    Args:
        model: A model of this package, also nested in another. Layers outside the model of this package keep their
            flags.
        up_to: Name of the last layer that is frozen, such as `"patch_embedding"`, `"encoder_block_5"` or `"pooling"`
            (all but the classifier). `None`: nothing is frozen.

    Returns:
        The names of the frozen layers that have weights, in order.

    Raises:
        ValueError: If `model` is not of this package or is nested in one whose `trainable` is `False`, or if it has no
            layer of this name.

    Example:

    >>> import keras_vit
    >>> keras_vit.freeze(keras_vit.ViT("Ti/16"), up_to="encoder_block_0")
    ['patch_embedding', 'class_token', 'position_embedding', 'encoder_block_0']
    """
    vision = vision_model(model)
    names = [layer.name for layer in vision.layers]
    if up_to is not None and up_to not in names:
        raise ValueError(f"There is no layer {up_to!r}.{did_you_mean(up_to, names)} Layers: {', '.join(names)}")
    _check_containers(model, vision)
    # With all its layers. On TensorFlow, Keras passes a flag on to them only where it changes.
    vision.trainable = False
    vision.trainable = True
    frozen = vision.layers[: 0 if up_to is None else names.index(up_to) + 1]
    for layer in frozen:
        layer.trainable = False
    return [layer.name for layer in frozen if layer.weights]


def _check_containers(model, vision):
    """Refuses a frozen model around `vision`: nothing inside would train, whatever its own flags."""
    while model is not vision:
        if not model.trainable:
            raise ValueError(
                f"{model.name!r}, in which {vision.name!r} is nested, has trainable=False, so nothing inside would "
                f"train. Set its trainable=True first."
            )
        model = next(layer for layer in model.layers if layer is vision or _holds(layer, vision))


def _holds(layer, vision):
    return isinstance(layer, keras.Model) and any(inner is vision or _holds(inner, vision) for inner in layer.layers)
