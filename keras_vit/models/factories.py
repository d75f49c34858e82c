"""The functions of published sizes, and the arguments of `from_pretrained`."""

import collections.abc
import dataclasses
import inspect

import keras

from keras_vit.architectures.spellings import unknown_argument
from keras_vit.architectures.vision_transformer import ViTConfigArgumentsWithoutNumHeads
from keras_vit.models.building import SharedArguments


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
    stem_pooling_padding: str
    expansion: int
    strides_first: bool
    mixing: str
    attention: str | None
    global_unit: str | None
    num_global_units: tuple[int, ...]


_NAME = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=str | None)
_SHARED = {**inspect.signature(SharedArguments).parameters, "name": _NAME}


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
        for name in options.keys() - _SHARED.keys():
            hint = f" Did you mean {same_as.replace('...', f'{name}=...')}?" if name in fields else ""
            raise unknown_argument(name, f"an argument of {function_name}", _SHARED, fields, hint)
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{function_name}() {error}") from None
        bound.apply_defaults()
        values = bound.arguments
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
