"""Boolean arguments accept only `True` and `False`, because "no" would count as true and 0.0 as false."""

import dataclasses
import functools
import inspect
import re

import numpy as np

import keras_vit
from keras_vit import architectures
from tests.models.tiny import tiny_model

NO_FLAGS = ("no", 1, None, np.True_)
CONFIGS = {
    config.__name__: config
    for config in (keras_vit.ViTConfig, *vars(architectures).values())
    if dataclasses.is_dataclass(config)
}
FACTORIES = {name: getattr(room, name) for room in (keras_vit.models, keras_vit.baselines) for name in room.__all__}
LAYERS = {name: getattr(keras_vit.layers, name) for name in keras_vit.layers.__all__}
# Required arguments of the functions and classes that have flags.
REQUIRED = {
    "stage_depths": (1,),
    **dict.fromkeys(("num_heads", "patch_size", "num_layers", "num_tokens", "width"), 3),
    **dict.fromkeys(("hidden_dim", "mlp_dim", "filters"), 12),
    **dict.fromkeys(("key_dim", "value_dim"), 8),
    "grid_size": (2, 3),
}


def _flags(function):
    return [
        name for name, parameter in inspect.signature(function).parameters.items() if type(parameter.default) is bool
    ]


def _cases(functions):
    return [(name, flag) for name, function in functions.items() for flag in _flags(function)]


def _required(function):
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return {name: REQUIRED[name] for name in needed}


def _accepted(function, flag):
    """The values that a function accepts for a flag, and those that it refuses with another message."""
    accepted = []
    for value in NO_FLAGS:
        try:
            function(**{flag: value})
        except ValueError as error:
            if re.search(rf"{flag} must be .*True.* Received: {re.escape(repr(value))}", str(error)):
                continue
        accepted.append(value)
    return accepted


def _assert_refused(function, *flags):
    assert not {flag: values for flag in flags if (values := _accepted(function, flag))}


def test_configs_layers_and_factories():
    built = CONFIGS | LAYERS | {"Preprocessing": keras_vit.Preprocessing}
    functions = {name: functools.partial(value, **_required(value)) for name, value in built.items() if _flags(value)}
    cases = [*_cases(built), *_cases(FACTORIES), ("AxialViT", "include_top")]
    assert len(cases) > 100
    functions |= FACTORIES
    assert not {case: values for case in cases if (values := _accepted(functions[case[0]], case[1]))}


def test_other_functions(tmp_path):
    model = tiny_model(include_preprocessing=True)
    partial = functools.partial
    _assert_refused(partial(keras_vit.rematerialize, model), "enabled")
    _assert_refused(partial(keras_vit.pretraining.MaskedAutoencoder, model), "normalize_targets")
    _assert_refused(partial(keras_vit.export_saved_model, model, tmp_path), "overwrite", "jit_compile", "card")
    _assert_refused(partial(keras_vit.export_model, model, tmp_path / "a.onnx", "onnx"), "overwrite", "card")
    _assert_refused(partial(keras_vit.save_weights, model, tmp_path / "a.npz", "google"), "card")
    _assert_refused(partial(keras_vit.from_pretrained, "missing.npz"), "include_top", "include_preprocessing")
    public = {name: value for name, value in vars(keras_vit).items() if inspect.isfunction(value)}
    others = {case for case in _cases(public) if case[0] not in FACTORIES}
    assert others == {
        *(("rematerialize", "enabled"), ("save_weights", "card")),
        *(("export_model", flag) for flag in ("overwrite", "card")),
        *(("export_saved_model", flag) for flag in ("overwrite", "jit_compile", "card")),
    }
