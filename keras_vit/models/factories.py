"""The arguments that all factories share, and decorators that make factories from functions."""

import collections.abc
import dataclasses
import functools
import inspect
import os
import re
import typing

import keras

from keras_vit.architectures.config_arguments import ViTConfigArgumentsWithoutNumHeads
from keras_vit.architectures.spellings import argument_hint
from keras_vit.checks import did_you_mean, shown
from keras_vit.models.building import resnet_with_weights


def shared_arguments(
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = "avg",
    classes: int = 1000,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
) -> None:
    """The arguments of `keras.applications`. A factory's own arguments come before them.

    Args:
        include_top: Whether to end with the classifier. `False`: the model returns what `pooling` selects.
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape.
        input_tensor: Keras tensor to use as the model's input.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)` or the image size of the published weights.
            Channels are last, whatever Keras's global setting is. `None` for height and width makes a model for images
            of any size.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D). h
            and w are the image's height and width divided by the stride (32 with four stages) and rounded up.
        classes: Number of classes.
        classifier_activation: Activation of the classifier: `"softmax"`, `None` for logits, or any activation of Keras.
        include_preprocessing: `True`: the model expects pixels in [0, 255] and normalises them. `False`: the model
            expects the outputs of `keras_vit.preprocess_input`.
        name: The model's name.
    """


Described: typing.TypeAlias = tuple
"""Type of the values that functions decorated by `factory` return: tuples of arguments of `resnet_with_weights`."""


class ModelArguments(ViTConfigArgumentsWithoutNumHeads, total=False):
    """The arguments that `keras_vit.from_pretrained` passes on to a factory."""

    include_top: bool
    input_tensor: keras.KerasTensor | None
    input_shape: tuple[int | None, int | None, int] | None
    classes: int
    classifier_activation: str | collections.abc.Callable | None
    include_preprocessing: bool
    name: str | None
    # Fields of the configs of ResNets and BiT-ResNets.
    stage_depths: tuple[int, ...]
    width: int
    root_padding: str
    expansion: int
    strides_first: bool
    mixing: str
    attention: str | None
    global_unit: str | None
    num_global_units: tuple[int, ...]


_SHARED = inspect.signature(shared_arguments).parameters
_PLACEHOLDER = "\n        {shared_arguments}"


def describe_shared_arguments(function):
    """Replaces `{shared_arguments}` in a docstring with the shared arguments that the docstring does not describe."""
    parameters, own = inspect.signature(function).parameters, function.__doc__ or ""
    shared = re.findall(r"\n        (\w+)(: .*(?:\n            .*)*)", shared_arguments.__doc__ or "")
    missing = [
        f"\n        {name}{text}"
        for name, text in shared
        if name in parameters and not re.search(rf"\n        {name}: ", own)
    ]
    function.__doc__ = own.replace(_PLACEHOLDER, "".join(missing))
    return function


def factory(omit: tuple[str, ...] = (), **defaults: typing.Any) -> collections.abc.Callable:
    """Decorates a function that describes a model, and turns it into a factory of such models.

    The decorated function returns the positional arguments of `resnet_with_weights` as a tuple: the function that
    builds the model, its config, and optionally `inherited`. The factory has the arguments of the decorated function,
    then the shared arguments, then `**config_changes`.

    Args:
        omit: Names of shared arguments that the factory does not have.
        **defaults: Defaults that replace the usual defaults of shared arguments.
    """

    def decorate(describe: collections.abc.Callable[..., Described]) -> collections.abc.Callable[..., keras.Model]:
        *own, last = inspect.signature(describe).parameters.values()
        changes = [last] if last.kind is last.VAR_KEYWORD else []
        own += [] if changes else [last]
        shared = [p.replace(default=defaults.get(p.name, p.default)) for p in _SHARED.values() if p.name not in omit]
        signature = inspect.Signature([*own, *shared, *changes], return_annotation=keras.Model)

        @functools.wraps(describe)
        def build(*arguments, **options):
            values = _bind(signature, describe.__name__, arguments, options)
            described = describe(*(values.pop(p.name) for p in own), **values.pop("config_changes", {}))
            return resnet_with_weights(*described, weights=values.pop("weights"), arguments=values)

        build.__signature__ = signature  # type: ignore[attr-defined]
        return describe_shared_arguments(build)

    return decorate


def _bind(signature, name, arguments, options):
    try:
        bound = signature.bind(*arguments, **options)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    bound.apply_defaults()
    return bound.arguments


def keras_application(
    build_model: collections.abc.Callable,
    function_name: str,
    about: str,
    same_as: str,
    config_class: type,
    pooling: str | None = "avg",
    model_name: str | None = None,
    module: str | None = None,
) -> collections.abc.Callable[..., keras.Model]:
    """Makes a function that builds a model of a published size and has the arguments of `keras.applications`.

    Args:
        build_model: Function that builds the model. It gets the arguments of `keras.applications` by name.
        function_name: Name of the new function.
        about: First lines of the new function's docstring.
        same_as: Equivalent call of a general function, with `...` for the arguments.
        config_class: Class of the config of the general function.
        pooling: Default of `pooling`.
        model_name: Default name of the models.
        module: Name of the module of the new function. By default that of `build_model`.
    """
    parameters = [p.replace(default=pooling) if p.name == "pooling" else p for p in _SHARED.values()]
    signature = inspect.Signature(parameters, return_annotation=keras.Model)
    fields = [field.name for field in dataclasses.fields(config_class)]

    def build(*arguments, **options):
        _check_names(options, function_name, same_as, fields)
        values = _bind(signature, function_name, arguments, options)
        return build_model(**values | {"name": values["name"] or model_name})

    build.__name__ = build.__qualname__ = function_name
    # Pickle and documentation tools look for the function in this module.
    build.__module__ = module or build_model.__module__
    build.__signature__ = signature  # type: ignore[attr-defined]
    package = "keras_vit.baselines" if ".baselines." in build.__module__ else "keras_vit"
    build.__doc__ = f"""{about}

    The same as `{same_as}`. See that function for the arguments and all other options.

    Returns:
        A `keras.Model`.

    Example:

    >>> import keras_vit
    >>> model = {package}.{function_name}(classes=10)  # doctest: +SKIP
    >>> model.output_shape  # doctest: +SKIP
    (None, 10)
    """
    return build


def _check_names(options, function_name, same_as, fields):
    for name in options.keys() - _SHARED.keys():
        hint = argument_hint(name, [*_SHARED, *fields]) or did_you_mean(name, _SHARED)
        if name in fields:
            hint = f" Did you mean {same_as.replace('...', f'{name}=...')}?"
        raise TypeError(f"{shown(name)} is not an argument of {function_name}.{hint} Accepted: {', '.join(_SHARED)}")
