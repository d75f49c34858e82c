"""Functions of published sizes build the models of their tables and pass their arguments on. ViTs: variants_test.py."""

import inspect
import re
import sys

import pytest

import keras_vit
from tests.models import bit_resnet_test

# function: (factory, its positional arguments)
FUNCTIONS = {
    **{f"ResNet{depth}": ("ResNet", (f"R{depth}",)) for depth in (18, 34, 50, 101)},
    **{f"VTResNet{depth}": ("VTResNet", (f"VT-R{depth}",)) for depth in (18, 34, 50, 101)},
    **{
        name: ("BiTResNet", (stage_depths, 64 * factor))
        for name, (stage_depths, factor, *_) in bit_resnet_test.PUBLISHED.items()
    },
    "AxialResNet50": ("AxialResNet", ((3, 4, 6, 3), 32, 8)),
}
NAMES = {"ResNet": "resnet_", "VTResNet": "vt_resnet_", "BiTResNet": "bit_resnet_", "AxialResNet": "axial_resnet_"}
SIZES = {"size", "config_changes", "stage_depths", "width", "num_heads", "stem_pooling_padding"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_passes_its_arguments_on(function, monkeypatch):
    factory, sizes = FUNCTIONS[function]
    build, parameters = getattr(keras_vit, function), inspect.signature(getattr(keras_vit, factory)).parameters
    own = {name: parameter for name, parameter in parameters.items() if name not in SIZES}
    module = sys.modules[getattr(keras_vit, factory).__module__]
    assert set(module.__all__) == {factory, *(name for name, value in FUNCTIONS.items() if value[0] == factory)}
    assert build.__name__ == build.__qualname__ == function
    assert list(inspect.signature(build).parameters.items()) == list(own.items())
    arguments = {name: object() for name in own}
    monkeypatch.setattr(module, factory, lambda *positional, **named: (positional, named))
    assert build(**arguments) == (sizes, arguments)
    assert build()[1]["name"] == function.replace(factory, NAMES[factory])


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        ("ViTB16", "drop_path_rate", 'keras_vit.ViT("B/16", drop_path_rate=...)'),
        ("ViTB16", "num_classes", "'classes'"),
        ("AxialViTB32", "mlp", "keras_vit.ViT(\"B/32\", axial=True, pooling='avg', mlp=...)"),
        ("ResNet50", "dropout_rate", 'keras_vit.ResNet("R50", dropout_rate=...)'),
        ("BiTResNet50x1", "stem_pooling_padding", "keras_vit.BiTResNet((3, 4, 6, 3), 64, stem_pooling_padding=...)"),
    ],
)
def test_an_argument_that_a_published_size_does_not_have(function, name, hint):
    message = f"{name!r} is not an argument of {function}. Did you mean {hint}? Accepted: include_top, weights,"
    with pytest.raises(TypeError, match=re.escape(message)):
        getattr(keras_vit, function)(**{name: 1})
