"""The public interface is annotated. mypy (`make lint`) checks the function bodies."""

import dataclasses
import importlib.resources
import inspect
import typing

import keras_vit
from keras_vit.architectures import BiTResNetConfig, ResNetConfig
from keras_vit.architectures.vision_transformer import ViTConfigArguments
from keras_vit.models.building import SharedArguments
from keras_vit.models.factories import ModelArguments

ROOMS = (keras_vit, keras_vit.baselines, keras_vit.layers, keras_vit.pretraining)
PUBLIC = {f"{room.__name__}.{name}": getattr(room, name) for room in ROOMS for name in room.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)} | {
    # Other classes inherit `__init__` from Keras or from a class of this package.
    name: value.__init__
    for name, value in PUBLIC.items()
    if inspect.isclass(value) and "__init__" in value.__dict__
}


def test_arguments_and_results_are_annotated():
    missing = []
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        annotations = {p.name: p.annotation for p in signature.parameters.values() if p.name != "self"}
        annotations["return"] = signature.return_annotation
        missing += [f"{name}: {part}" for part, kind in annotations.items() if kind is inspect.Signature.empty]
    assert len(FUNCTIONS) > 150
    assert not missing


def test_the_package_is_marked_as_typed():
    assert (importlib.resources.files(keras_vit) / "py.typed").is_file()


def _fields(*configs):
    return {name: kind for config in configs for name, kind in typing.get_type_hints(config).items()}


def test_typed_changes_are_the_fields_of_the_config():
    names = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    fields = {name: kind for name, kind in _fields(keras_vit.ViTConfig).items() if name in names}
    assert typing.get_type_hints(ViTConfigArguments) == fields


def test_typed_arguments_of_from_pretrained_are_those_of_the_factories():
    vit = {name: kind for name, kind in _fields(ViTConfigArguments).items() if name != "num_heads"}
    resnets = {
        field.name: typing.get_type_hints(config)[field.name]
        for config in (BiTResNetConfig, ResNetConfig)
        for field in dataclasses.fields(config)
    }
    shared = {p.name: p.annotation for p in inspect.signature(SharedArguments).parameters.values()}
    expected = {**shared, **resnets, **vit, "name": str | None}
    del expected["weights"]
    assert typing.get_type_hints(ModelArguments) == expected
