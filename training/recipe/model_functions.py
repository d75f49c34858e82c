"""The model functions of `keras_vit` that a recipe can name, and their arguments."""

import dataclasses
import inspect

import keras_vit
from keras_vit import architectures, baselines, models
from keras_vit.checks import did_you_mean
from keras_vit.heads import HEADS
from keras_vit.models.building import SharedArguments


def get_function(name):
    """Returns the function `name` of `keras_vit` or `keras_vit.baselines`."""
    return getattr(baselines if name in baselines.__all__ else keras_vit, name)


def build_head(name, arguments):
    """Builds a head of `keras_vit.heads`. Raises a ValueError if an argument is unknown or invalid."""
    known = list(HEADS[name]().arguments)
    for argument in arguments.keys() - known:
        raise ValueError(
            f"model.head_arguments.{argument} is not an argument of the head {name}.{did_you_mean(argument, known)} "
            f"Accepted: {', '.join(known)}"
        )
    return HEADS[name](**arguments)


def check_function(name, arguments):
    """Checks the name and the arguments of a model function.

    Args:
        name: Name of the function, such as `"BiTResNet50x1"`.
        arguments: {name: value}. The values are not checked.

    Raises:
        ValueError: If the function or an argument does not exist. The message suggests similar names.
    """
    functions = (*models.RESNETS, *models.SEGMENTERS, *baselines.__all__)
    if name not in functions:
        raise ValueError(
            f"model.function must be one of {', '.join(functions)}. For a Vision Transformer, set model.config."
            f"{did_you_mean(name, functions)} Received: {name!r}"
        )
    known = set(inspect.signature(get_function(name)).parameters)
    if "config_changes" in known:  # The function accepts all fields of its config as arguments.
        config_fields = dataclasses.fields(getattr(architectures, f"{name}Config"))
        known = known - {"config_changes"} | {field.name for field in config_fields}
    known -= {"name", *inspect.signature(SharedArguments).parameters}  # Other fields of the recipe set these arguments.
    if name in models.SEGMENTERS:
        known |= {"weights"}  # A segmenter accepts `weights`: ResNet weights for its backbone.
    for argument in arguments.keys() - known:
        raise ValueError(
            f"model.arguments.{argument} is not an argument of {name}.{did_you_mean(argument, known)} Accepted: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
