"""A format refuses a model that it cannot express. Every other model is the same after it is saved and loaded."""

import collections
import contextlib
import copy
import dataclasses
import functools

import numpy as np
import pytest

import keras_vit
from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.architectures.stem import ConvStemConfig, StemConfig
from keras_vit.weights.catalogue.families import preprocessing_of
from keras_vit.weights.formats import google, huggingface, keras_hub, timm
from keras_vit.weights.formats.expressible import check_published
from keras_vit.weights.formats.format import ModelDescription
from keras_vit.weights.opening import open_checkpoint
from keras_vit.weights.saving import _write_files
from tests.test_case import slow_except
from tests.weights.converter_case import CONFIG, make_shell

CHOICES = keras_vit.ViTConfig.choices()

SHAPE = (12, 12, 3)
HUB = CONFIG.replace(num_layers=1, patch_size=4, mlp_dim=24, mlp="gelu_exact", layer_norm_epsilon=1e-12)
# {format: (its module, a config that it can express)}
FORMATS = {
    "google": (google.FORMAT, HUB.replace(mlp="gelu_tanh", layer_norm_epsilon=1e-6)),
    "timm": (timm.FORMAT, HUB.replace(layer_norm_epsilon=1e-6)),
    "huggingface": (huggingface.FORMAT, HUB),
    "keras_hub": (keras_hub.FORMAT, HUB),
}
# Values for the fields that are not choices; `CHOICES` has the values of the others.
VALUES = {
    "patch_size": [3, (4, 3)],
    "num_register_tokens": [2],
    "num_position_prefix_rows": [0, 1, 3],
    "representation_dim": [7],
    "projection_dim": [7],
    "layer_scale": [0.1],
    "layer_norm_epsilon": [1e-6, 1e-5, 1e-12],
    "token_merging": [1],
    "pooling_num_heads": [1],
    "pooling_mlp_dim": [7],
    "rotary": [
        RotaryConfig(),
        RotaryConfig(base=10000.0, layout="interleaved", coordinates="grid", reference_grid=(2, 3)),
        RotaryConfig(base=7.0, layout="half", coordinates="grid", axis_order="xy", offset=1.0),
        RotaryConfig(kind="mixed", base=10.0, layout="interleaved", coordinates="grid", axis_order="xy"),
        RotaryConfig(kind="mixed"),
    ],
}
STEMS = [
    {"stem": StemConfig((), 64), "patch_size": 1},
    {"stem": StemConfig((1,), 32), "patch_size": 1},
    {"stem": StemConfig((), 64, group_norm_epsilon=1e-3), "patch_size": 1},
    {"stem": ConvStemConfig((8,)), "patch_size": 1},
]
WITH_EVERY_POOLING = ("class_token", "distillation_token", "num_register_tokens", "norm_placement", "stem")
WITH_EVERY_POOLING += ("position_embedding", "num_position_prefix_rows", "representation_dim")
WITH_EVERY_POOLING += ("pooling_num_heads", "pooling_mlp_dim", "pool_prefix_tokens")
# {(field, value): other changes without which this change is invalid or has no effect}
NEEDED = {
    ("num_position_prefix_rows", 3): {"num_register_tokens": 2, "class_token": True},
    ("pool_prefix_tokens", True): {"class_token": True},
    ("crop_to_patches", True): {"patch_size": 5},
}
# These fields do not change the output of a trained model, and no file contains them.
FREE = {
    field.name: "bicubic" if "choices" in field.metadata else 0.5
    for field in dataclasses.fields(keras_vit.ViTConfig)
    if not field.metadata["in_files"]
}
SIZES = {"hidden_dim", "num_layers", "num_heads", "mlp_dim"}  # All formats have them; see `run_converter_test`.


def test_every_field_is_covered():
    fields = {field.name for field in dataclasses.fields(keras_vit.ViTConfig)}
    covered = {*VALUES, *CHOICES, *FREE, *SIZES, "stem"}
    assert fields == covered, "add a new field to VALUES, or define it with in_files=False if no file contains it"


def changes():
    """Changes of one field. Fields that depend on the pooling are combined with every pooling."""
    values = VALUES | {name: choices for name, choices in CHOICES.items() if name not in FREE}
    single = [{field: value} for field, choices in values.items() for value in choices]
    for change in [{}, *single, *STEMS]:
        field, value = next(iter(change.items()), (None, None))
        change |= NEEDED.get((field, value), {})
        for pooling in CHOICES["pooling"] if field in (None, *WITH_EVERY_POOLING) else ["token"]:
            yield {"pooling": pooling, **change}


def possible_configs(base):
    """Pairs (config, its changes relative to `base`)."""
    for change in changes():
        with contextlib.suppress(ValueError):  # Some changes are invalid for the base.
            yield base.replace(**change), change


@functools.cache
def _random_weights(config, classes):
    """{path: array} of a model that is not computed."""
    model = make_shell(config, SHAPE, classes, include_top=classes is not None)
    rng = np.random.default_rng(1)
    return {weight.path: rng.normal(size=weight.shape).astype("float32") for weight in model.weights}


def _weights(config, classes):
    """Weights of a model with this config. They are shared by configs that have the same weights."""
    mlp = "gelu_exact" if "gelu" in config.mlp else config.mlp
    return _random_weights(config.replace(mlp=mlp, layer_norm_epsilon=1e-6), classes)


@pytest.mark.parametrize("format", slow_except(["huggingface"], list(FORMATS)))
def test_every_choice_is_refused_or_reads_back_equal(format, tmp_path):
    layout, base = FORMATS[format]
    outcomes = collections.Counter()
    for number, (config, change) in enumerate(possible_configs(base)):
        classes = None if config.pooling is None else 5
        description = ModelDescription(config, SHAPE[:2], SHAPE[2], classes, preprocessing_of("google", SHAPE[:2]))
        message = _refusal(layout, description)
        outcomes[bool(message)] += 1
        if message:
            assert "cannot express" in message, change
            continue
        expected = _weights(config, classes)
        checkpoint = _read_back(expected, description, format, tmp_path / str(number))
        if format == "timm" and 0 < config.position_prefix_rows < config.num_prefix_tokens:
            continue  # timm adds a row of the table to the class token. timm/layout_test.py compares the outputs.
        assert _in_files(checkpoint.config, format, classes) == _in_files(config, format, classes), change
        weights = checkpoint.read()
        assert weights.keys() == expected.keys(), change
        for name, array in expected.items():
            np.testing.assert_array_equal(weights[name], array, err_msg=f"{change}: {name}")
    assert min(outcomes[True], outcomes[False]) > 10, outcomes


def _read_back(weights, description, format, folder):
    """The `Checkpoint` of the files that a format writes in a new folder."""
    folder.mkdir()
    files = FORMATS[format][0].write(weights, description)
    _write_files(folder, files)
    path = folder / next(iter(files)) if FORMATS[format][0].file_suffix else folder
    return open_checkpoint(path, model_num_heads=description.config.num_heads, model_image_size=description.image_size)


SIZE = SHAPE[:2]
WHOLE, UNCHANGED, SMALL_CUT, CUT = (SIZE, None), (None, None), (12, SIZE), (14, SIZE)
SQUASHED_CUT, CUT_ONLY, VARIOUS = ((14, 14), SIZE), (None, SIZE), (12, None)
READ_BACK = {
    "google": dict.fromkeys(
        (WHOLE, UNCHANGED, SMALL_CUT, CUT, SQUASHED_CUT, CUT_ONLY, VARIOUS), WHOLE
    ),  # With a warning.
    "timm": {UNCHANGED: WHOLE} | {images: images for images in (WHOLE, SMALL_CUT, CUT, SQUASHED_CUT)},
    "huggingface": {images: images for images in (WHOLE, UNCHANGED, SMALL_CUT, CUT, SQUASHED_CUT, CUT_ONLY, VARIOUS)},
    "keras_hub": {images: images for images in (WHOLE, UNCHANGED, SMALL_CUT)},
}
"""{format: {(resize, crop): the same after reading}}. All other combinations are refused."""


@pytest.mark.parametrize(
    "images",
    [WHOLE, UNCHANGED, SMALL_CUT, CUT, SQUASHED_CUT, CUT_ONLY, VARIOUS],
    ids=lambda images: "-".join(map(str, images)),
)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.combination(
    "`resize` and `crop` of a model, saved in the format of another project", "kept, refused or named"
)
def test_images_are_refused_or_read_back_equal(format, images, tmp_path):
    layout, config = FORMATS[format]
    pixels = {**preprocessing_of("google", SIZE), **dict(zip(("resize", "crop"), images, strict=True))}
    description = ModelDescription(config, SIZE, SHAPE[2], 5, pixels)
    if images in READ_BACK[format]:
        read = _read_back(_weights(config, 5), description, format, tmp_path / "saved").preprocessing
        assert (read["resize"], read["crop"]) == READ_BACK[format][images]
    else:
        assert "cannot express images " in _refusal(layout, description)


def test_google_names_images_that_its_files_do_not_contain(caplog):
    """Files of big_vision are read with a resize to 256 pixels and a crop to 224, files of SigLIP with a resize."""
    config = FORMATS["google"][1].replace(pooling="map")
    for classes, family, other in ((5, "big_vision", "siglip"), (None, "siglip", "big_vision")):
        silent, named = (
            ModelDescription(config, (224, 224), 3, classes, preprocessing_of(name, 224)) for name in (family, other)
        )
        assert (_refusal(google.FORMAT, silent), caplog.messages) == (None, [])
        assert _refusal(google.FORMAT, named) is None
        resize, crop = named.resize_and_crop
        assert f"The model has resize={resize}, crop={crop}, interpolation='bilinear'." in caplog.text
        caplog.clear()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.combination("a sigmoid of the classifier, saved in the format of another project", "kept or refused")
def test_a_sigmoid_is_refused_or_read_back(format, tmp_path):
    layout, config = FORMATS[format]
    for classes in (5, 1):
        description = ModelDescription(
            config, SIZE, SHAPE[2], classes, preprocessing_of("google", SIZE), output="labels"
        )
        if format == "google" and classes > 1:  # Of one class, a sigmoid is assumed.
            assert "cannot express a sigmoid of several classes" in _refusal(layout, description)
        else:
            read = _read_back(_weights(config, classes), description, format, tmp_path / str(classes))
            assert read.output.kind == "labels"


def _refusal(layout, description):
    """The reason why a model cannot be written, or `None`."""
    try:
        layout.write({}, description)
    except ValueError as error:
        return str(error)
    except KeyError:  # The config is accepted. Only the weights are missing.
        pass
    return None


def _in_files(config, format, classes):
    """A config in which all fields that a file does not contain have their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(config) if field.name in FREE}
    resolved = {"class_token": config.has_class_token, "num_position_prefix_rows": config.position_prefix_rows}
    if classes is None:  # There is no pooling.
        resolved |= {"pooling": None, "representation_dim": None}
    if format == "google":  # Google's files do not contain the image size.
        resolved["crop_to_patches"] = False
    if config.stem is not None:  # Google's and timm's epsilons differ by rounding only.
        resolved["stem"] = StemConfig(config.stem.stage_depths, config.stem.width)
    return config.replace(**defaults, **resolved)


@pytest.mark.parametrize("format", FORMATS)
def test_values_that_come_later_are_refused(format):
    """A value that is new in `CHOICES` is refused until a format lists it."""
    layout, base = FORMATS[format]
    for field, value in (("pooling", "nowhere"), ("mlp", "relu"), ("position_embedding", "rotary"), ("qk_norm", "rms")):
        config = copy.copy(base)
        object.__setattr__(config, field, value)  # Bypasses the check against `CHOICES`.
        description = ModelDescription(config, SHAPE[:2], SHAPE[2], 5, preprocessing_of("google", SHAPE[:2]))
        assert f"{field}={value!r}" in _refusal(layout, description)
        with pytest.raises(ValueError, match=f"No format of published weights can express {field}='{value}'"):
            check_published(config)
