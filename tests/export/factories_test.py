"""Models of all factories can be exported and served."""

import dataclasses
import functools
import json

import numpy as np
import pytest

import keras_vit
from keras_vit import baselines, models
from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import VARIANTS
from keras_vit.data.decoding import image_decoder
from keras_vit.export.parity import read_images
from tests.test_case import randomize


def _small(config):
    """A small config of the same kind. The patch size does not change how images are decoded."""
    stem = config.stem and dataclasses.replace(config.stem, stage_depths=(1,) * len(config.stem.stage_depths))
    patch_size = config.patch_size if stem else (8, 8)
    return config.replace(patch_size=patch_size, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=20, stem=stem)


VT = {"stage_depths": (1, 2), "width": 4, "filters": 12, "token_dim": 24, "num_heads": 3, "num_tokens": 6}


def _small_resnet(**changes):
    return keras_vit.ResNet("R50", stage_depths=(1, 2), width=16, input_shape=(33, 46, 3), classes=5, **changes)


def _small_network(relation):
    changes = {"stage_depths": (1, 1), "window_sizes": (3, 5), "width": 32, "relation": relation}
    return keras_vit.baselines.SelfAttentionNetwork("SAN10", input_shape=(20, 30, 3), classes=5, **changes)


# {start of the names of factories: arguments of a small model}
BASELINES = {
    "SEResNet": {"attention": "squeeze_excitation"},
    "CBAMResNet": {"attention": "cbam"},
    "AAResNet": {"mixing": "attention_augmented"},
    "StandAloneResNet": {"mixing": "stand_alone"},
    "LRNet": {"mixing": "local_relation"},
    "GloReResNet": {"global_unit": "global_reasoning", "num_global_units": (0, 1)},
    "A2ResNet": {"global_unit": "double_attention", "num_global_units": (0, 1)},
}
VISION_TRANSFORMERS = [name for name in models.FACTORIES if name not in (*models.RESNETS, *models.SEGMENTERS)]
# name: (function that makes a small model, names of the factories of its kind)
RESNETS = {
    "BiTResNet": (
        lambda: keras_vit.BiTResNet((1, 2), 32, input_shape=(33, 46, 3), classes=5),
        [name for name in models.RESNETS if name.startswith("BiTResNet")],
    ),
    "AxialResNet": (
        lambda: keras_vit.AxialResNet((1, 2), 12, 3, input_shape=(24, 32, 3), classes=5),
        ["AxialResNet", "AxialResNet50"],
    ),
    "ResNet": (
        lambda: keras_vit.ResNet("R50", stage_depths=(1, 2), width=4, input_shape=(33, 46, 3), classes=5),
        models.resnet.__all__,
    ),
    "VTResNet": (
        lambda: keras_vit.VTResNet("VT-R34", **VT, input_shape=(33, 46, 3), classes=5),
        models.visual_transformer.__all__,
    ),
    "SelfAttentionNetwork": (lambda: _small_network("patchwise"), ["SelfAttentionNetwork", "SAN19Patchwise"]),
    "pairwise SelfAttentionNetwork": (lambda: _small_network("pairwise"), ["SAN19Pairwise"]),
}
for start, changes in BASELINES.items():
    names = [name for name in baselines.__all__ if name.startswith(start)]
    RESNETS[start] = functools.partial(_small_resnet, **changes), names

NUM_KINDS = 5
"""Plain, stems with three stages, with four stages and of R+Ti/16, and axial."""

FAINT = ("ResNet", "VTResNet", "SelfAttentionNetwork", "pairwise SelfAttentionNetwork")


@functools.cache
def kinds():
    """{small config: names of the factories that make it}"""
    built = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.vit, "build_model", lambda config, shared, name: built.append(config))
        found = {}
        for name in VISION_TRANSFORMERS:
            getattr(keras_vit, name)()
            found.setdefault(_small(built[-1]), []).append(name)
    return found


@pytest.mark.slow
def test_every_factory_is_here():
    assert {name for names in kinds().values() for name in names} == set(VISION_TRANSFORMERS)
    assert {name for _, names in RESNETS.values() for name in names} == {*models.RESNETS, *baselines.__all__}
    assert len(kinds()) == NUM_KINDS


def _assert_served(model, path):
    """Asserts that the export passes its own comparison; parity_test.py tests that comparison."""
    is_vit = isinstance(keras_vit.describe(model).config, keras_vit.ViTConfig)
    signatures = ["serving_default", "explain" if is_vit else "embed"]
    folder = keras_vit.export_saved_model(model, path, signatures=signatures)
    decode = image_decoder(model)
    pixels = np.stack([decode(file) for file in read_images(None)])
    predictions = model.predict(keras_vit.preprocess_input(pixels, model), verbose=0)
    assert np.ptp(predictions, axis=0).max() > 1e-4  # The predictions differ between photographs.
    facts = json.loads((folder / "keras_vit.json").read_text())
    assert set(facts["parity"]["max_difference"]) == set(signatures)
    assert 0 < max(facts["parity"]["max_difference"].values()) <= 1e-4
    assert facts["parity"]["top_1_agreement"] == 1
    return facts


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_KINDS))
def test_every_factory(number, tmp_path, monkeypatch):
    config, (name, *_) = list(kinds().items())[number]
    monkeypatch.setattr(models.vit, "get_variant", lambda variant: _small(VARIANTS[variant]))
    stride = config.total_stride
    model = getattr(keras_vit, name)(input_shape=(2 * stride[0], 3 * stride[1], 3), classes=5)
    _assert_served(randomize(model, scale=0.2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESNETS)
def test_every_resnet(name, tmp_path):
    build, _ = RESNETS[name]
    # With small weights, the norms of some models suppress all signals; with large ones, other models saturate.
    model = randomize(build(), scale=0.4 if name in FAINT else 0.2)
    facts = _assert_served(model, tmp_path)
    assert read_architecture(facts["config"]) == keras_vit.describe(model).config


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stem_pooling_padding"), [((None, None), "zeros"), ((34, 46), "ignored")])
def test_a_resnet_as_a_file_of_another_runtime(size, stem_pooling_padding, tmp_path):
    model = keras_vit.BiTResNet((1, 1), 32, stem_pooling_padding, input_shape=(*size, 3), classes=5)
    randomize(model, scale=0.2)
    assert keras_vit.export_model(model, tmp_path / "tiny.onnx", "onnx").max_difference < 1e-5
