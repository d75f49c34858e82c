"""Settings in timm's config.json. tests/peers/settings_test.py compares them with timm."""

import re

import pytest

from keras_vit.weights.formats.format import ModelDescription
from keras_vit.weights.formats.timm.pretrained_cfg import read_config, read_pretrained_cfg, write_pretrained_cfg
from tests.models.tiny import CONFIG

SETTINGS = {"mean": (0.5, 0.4, 0.3), "std": (0.3, 0.2, 0.1)}
SIZE = (32, 32)


def config(**settings):
    return {"architecture": "vit", "pretrained_cfg": {**SETTINGS, **settings}}


@pytest.mark.parametrize(
    ("settings", "pixels"),
    [
        pytest.param(
            *({"interpolation": "bilinear"}, {"interpolation": "bilinear"}),
            marks=pytest.mark.combination("timm: interpolation=bilinear", "the pixels of timm"),
        ),
        ({"interpolation": None, "crop_mode": None}, {"interpolation": "bicubic", "crop": SIZE}),
        ({"crop_pct": None}, {"resize": 36, "crop": SIZE}),  # timm's default is 0.875.
        ({"test_crop_pct": 0.5, "crop_pct": 0.8}, {"resize": 40}),
    ],
)
def test_pixels(settings, pixels):
    result = read_config(config(**settings), None, SIZE)
    assert {name: result["preprocessing"][name] for name in pixels} == pixels
    assert result["ignored"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            *(
                {"interpolation": word},
                f"interpolation='{word}'. This package supports only .*'bilinear' or .*'bicubic'",
            ),
            marks=pytest.mark.combination("timm: interpolation lanczos, nearest, hamming or random", "refused"),
        )
        for word in ("lanczos", "nearest", "hamming", "random")
    ]
    + [
        pytest.param(
            *({"crop_mode": word}, f"crop_mode='{word}'. This package supports only crop_mode='center' or 'squash'"),
            marks=pytest.mark.combination("timm: crop_mode border or an unknown word", "refused"),
        )
        for word in ("border", "circle")
    ]
    + [
        pytest.param(
            *({"crop_pct": 1.1}, r"crop_pct=1\.1.*from 0\.1 to 1: it does not pad images"),
            marks=pytest.mark.combination("timm: crop_pct above 1", "refused"),
        ),
        ({"crop_pct": "0.9"}, r"crop_pct='0\.9'.*from 0\.1 to 1"),
        ({"crop_pct": 0.05}, r"crop_pct=0\.05.*from 0\.1 to 1"),
        ({"label_offset": 1}, "label_offset=1. This package supports only label_offset=0"),
        pytest.param(
            *({"num_classes": 5}, "belongs to another model: it contains num_classes=5, but the arrays have 3"),
            marks=pytest.mark.combination(
                "timm: another num_classes in config.json than classes in the file", "refused"
            ),
        ),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        read_config(config(**settings), 3, SIZE)


@pytest.mark.combination("timm: crop_mode center for images that are not square", "a warning names it")
def test_images_that_are_not_square():
    result = read_config(config(crop_mode="center", crop_pct=0.8), None, (40, 32))
    assert (result["preprocessing"]["resize"], result["preprocessing"]["crop"]) == ((50, 40), (40, 32))
    assert result["ignored"].keys() == {"crop_mode"}
    problem = "'center' in pretrained_cfg of config.json is not supported for images of 40 x 32 pixels: they are"
    assert result["ignored"]["crop_mode"].startswith(problem)
    assert read_config(config(crop_mode="squash"), None, (40, 32))["ignored"] == {}
    assert read_config({"architecture": "vit"}, None, (40, 32))["ignored"] == {}


@pytest.mark.parametrize(
    ("ratio", "resize", "crop"),
    [
        (1.0, (384, 352), None),
        pytest.param(
            *(0.875, (438, 402), (384, 352)),
            marks=pytest.mark.combination("timm: crop_mode=squash with crop_pct=0.875", "the pixels of timm"),
        ),
    ],
)
def test_squashed_images(ratio, resize, crop):
    pixels = read_config(config(crop_mode="squash", crop_pct=ratio), None, (384, 352))["preprocessing"]
    assert (pixels["resize"], pixels["crop"]) == (resize, crop)


def facts_with(resize, crop, image_size):
    preprocessing = {"mean": 0.5, "std": 0.5, "resize": resize, "crop": crop, "interpolation": "bicubic"}
    return ModelDescription(config=CONFIG, image_size=image_size, channels=3, classes=None, preprocessing=preprocessing)


@pytest.mark.parametrize(
    ("resize", "crop", "size"),
    [(37, SIZE, SIZE), (32, SIZE, SIZE), ((36, 41), (32, 36), (32, 36)), ((40, 32), None, (40, 32))],
)
def test_resize_and_crop_are_written(resize, crop, size):
    read = read_pretrained_cfg(write_pretrained_cfg(facts_with(resize, crop, size)), size)
    assert (read["resize"], read["crop"]) == (resize, crop)


@pytest.mark.parametrize(
    ("resize", "crop", "size"),
    [
        *((44, (40, 32), (40, 32)), ((37, 50), SIZE, SIZE), (30, SIZE, SIZE), (37, (30, 30), SIZE), (37, None, SIZE)),
        *((None, SIZE, SIZE), (32, None, SIZE), (SIZE, (30, 30), SIZE)),
    ],
)
@pytest.mark.combination("a resize or crop that timm does not have, saved in timm's format", "refused")
def test_what_timm_does_not_prepare_is_not_written(resize, crop, size):
    with pytest.raises(ValueError, match=rf"timm cannot express images of .* with resize={re.escape(str(resize))}"):
        write_pretrained_cfg(facts_with(resize, crop, size))


@pytest.mark.combination("timm: an unknown setting", "a warning names it")
def test_unknown_settings_are_named():
    result = read_config({**config(gamma=2, blur=None, tilt=False), "frames": 3}, 3, SIZE)
    assert result["ignored"] == {
        "gamma": "2 in pretrained_cfg of config.json is unknown and has no effect",
        "tilt": "False in pretrained_cfg of config.json is unknown and has no effect",
        "frames": "3 in config.json is unknown and has no effect",
    }
    # In timm's first files, pretrained_cfg is the whole file.
    first = read_config({"architecture": "vit", "gamma": 2, "num_features": 12, **SETTINGS}, 3, SIZE)
    assert first["preprocessing"]["mean"] == SETTINGS["mean"]
    assert first["ignored"].keys() == {"gamma"}


NAMES = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "classes", "label_space"),
    [
        pytest.param(
            *({"label_names": NAMES}, 3, NAMES),
            marks=pytest.mark.combination("timm: label_names", "the model's labels"),
        ),
        ({"label_names": dict(zip("012", NAMES, strict=True))}, 3, NAMES),
        ({"label_names": NAMES, "label_descriptions": {"a": "ant", "c": "cat"}}, 3, ["ant", "b", "cat"]),
        ({"label_names": NAMES}, 2, None),
        ({"label_names": {"0": "a", "2": "c"}}, 3, None),
        ({"tag": "augreg_in21k_ft_in1k"}, 1000, "imagenet1k"),
        pytest.param(
            *({"tag": "augreg_in1k"}, 3, None),
            marks=pytest.mark.combination("timm: a tag that ends in in1k, with three classes", "no labels of ImageNet"),
        ),
        ({"tag": "in1k", "label_names": NAMES}, 3, NAMES),
    ],
)
def test_labels(settings, classes, label_space):
    assert read_config(config(**settings), classes, SIZE)["label_space"] == label_space
    above = {**config(tag=settings.get("tag")), **{key: x for key, x in settings.items() if key.startswith("label")}}
    result = read_config(above, classes, SIZE)
    assert result["label_space"] == label_space
    assert ("label_names" in result["ignored"]) == ("label_names" in settings and label_space is None)


def test_pretrained_cfg_that_is_not_an_object():
    assert (
        read_config({"architecture": "vit", "pretrained_cfg": None, "num_classes": 3}, 3, SIZE)["preprocessing"] is None
    )
    with pytest.raises(ValueError, match=r"pretrained_cfg of config\.json must be an object. Received: 'vit'"):
        read_config({"architecture": "vit", "pretrained_cfg": "vit"}, 3, SIZE)


def test_labels_that_cannot_be_used():
    result = read_config(config(label_names=["a", "b\0", "c"]), 3, SIZE)
    assert result["label_space"] is None
    assert "because the name of class 1 contains a line break or a NUL" in result["ignored"]["label_names"]
