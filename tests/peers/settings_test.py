"""Settings of published files are obeyed, refused or named in a warning; settings of real files cause no warning."""

import dataclasses

import pytest
import timm
import transformers
from timm.models import PretrainedCfg
from transformers.processing_utils import ImagesKwargs

import keras_vit
from benchmarks import support_matrix_settings
from keras_vit.weights.formats.huggingface.config import PROCESSORS, check_kind, read_processor
from keras_vit.weights.formats.timm.pretrained_cfg import read_config
from tests.peers.huggingface_test import MODELS
from tests.test_case import TENSORFLOW

LABELS = {"label_names", "label_descriptions"}  # They do not change pixels.


def test_the_matrix_has_all_settings():
    assert ImagesKwargs.__annotations__.keys() <= support_matrix_settings.TRANSFORMERS.keys()
    assert {field.name for field in dataclasses.fields(PretrainedCfg)} - LABELS <= support_matrix_settings.TIMM.keys()


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="the matrix does not depend on the backend")
@pytest.mark.combination("any setting of images of transformers or timm", "obeyed, refused or named in a warning")
def test_no_setting_is_ignored():
    assert not support_matrix_settings.ignored(support_matrix_settings.matrix())


@pytest.mark.parametrize("project", [support_matrix_settings.Transformers, support_matrix_settings.Timm])
def test_saved_models_have_no_unknown_settings(project, tmp_path):
    saved = project(tmp_path / "model")
    assert not keras_vit.load_weights(saved.model, saved.folder).ignored


def test_defaults_of_image_processors():
    checked = 0
    for kind, defaults in PROCESSORS.items():
        if kind == "Siglip2":  # NaFlex has a number of patches in place of a size.
            continue
        if processor := getattr(transformers, f"{kind}ImageProcessor", None):
            found = {name: getattr(processor, name, None) for name in defaults}
            sizes = [{"height": side, "width": side} for side in (224, 256)] + [{"shortest_edge": 224}]
            found["default_to_square"] = found["size"] in sizes[:2]
            found["size"] = max(found["size"].values())
            if "crop_size" in defaults:
                found["crop_size"] = found["crop_size"]["height"]
            found["do_center_crop"] = bool(found["do_center_crop"])
            assert found == defaults, kind
            assert read_processor(processor().to_dict(), (224, 224))["ignored"] == {}
            checked += 1
    assert checked >= 7


@pytest.mark.combination("config.json of each supported kind of model of transformers", "no warning")
def test_configs_of_transformers_have_no_unknown_settings():
    unknown = {}
    for _, config_class, *_ in MODELS.values():
        config = getattr(transformers, config_class)().to_dict()
        settings = {**config, **config.get("vision_config", {})}
        unknown |= check_kind({}, config, settings)
    assert not unknown


@pytest.mark.combination("config.json of timm's published weights", "no warning")
def test_configs_of_timm_have_no_unknown_settings():
    unknown = {}
    for name in timm.list_pretrained(["vit_*", "deit*", "eva*", "flexivit*", "resnet*", "beit3*"]):
        settings = timm.get_pretrained_cfg(name).to_dict()
        config = {"architecture": name, "num_classes": settings["num_classes"], "pretrained_cfg": settings}
        unknown |= read_config(config, settings["num_classes"] or None, (224, 224))["ignored"]
    assert not unknown
