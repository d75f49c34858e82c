"""The functions of `keras_vit` that a recipe may name, and the arguments that it may give them."""

import dataclasses
import inspect

from keras_vit import baselines, models
from keras_vit.architectures import (
    PanopticFPNConfig,
    ResNetConfig,
    SelfAttentionNetworkConfig,
    VTFPNConfig,
    VTResNetConfig,
)
from keras_vit.checks import did_you_mean
from keras_vit.models.building import build_convolutional

# Of the functions that take any field of their config.
_CONFIGS = {
    "PanopticFPN": PanopticFPNConfig,
    "ResNet": ResNetConfig,
    "SelfAttentionNetwork": SelfAttentionNetworkConfig,
    "VTFPN": VTFPNConfig,
    "VTResNet": VTResNetConfig,
}


def get_function(name):
    """The function of a name in `keras_vit` or `keras_vit.baselines`."""
    return getattr(baselines if name in baselines.__all__ else models, name)


def check_function(name, arguments):
    """Refuses what is no function of another kind of model, and arguments that it does not have.

    Args:
        name: Of the function, such as `"BiTResNet50x1"`.
        arguments: {name: value} of those that say what its model is made of; the values are not looked at.

    Raises:
        ValueError: With the nearest names.
    """
    functions = (*models.RESNETS, *models.SEGMENTERS, *baselines.__all__)
    if name not in functions:
        raise ValueError(
            f"model.function must be one of {', '.join(functions)}; Vision Transformers have model.config."
            f"{did_you_mean(name, functions)} Received: {name!r}"
        )
    known = inspect.signature(get_function(name)).parameters.keys()
    if "config_changes" in known:
        known = known - {"config_changes"} | {field.name for field in dataclasses.fields(_CONFIGS[name])}
    known -= inspect.signature(build_convolutional).parameters.keys()  # Those are set by the recipe's other fields.
    if name in models.SEGMENTERS:
        known |= {"weights"}  # Of a ResNet, for the backbone.
    for argument in arguments.keys() - known:
        raise ValueError(
            f"model.arguments.{argument} is none of {name}.{did_you_mean(argument, known)} Those are: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
