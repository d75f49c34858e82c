"""VT-FPN and Panoptic FPN equal NumPy and printed counts, and have all features of the package's models."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.architectures import RESNETS, PanopticFPNConfig, ResNetConfig, VTFPNConfig
from tests.models.counting import counts_by_layer, deep_counts, shapes_only
from tests.models.segmenters import BACKBONE, SIZES, tiny_segmenter
from tests.reference import visual_transformer
from tests.reference import vt_fpn as reference
from tests.test_case import (
    assert_close,
    canonical_weights,
    compute,
    counted_once,
    gradients,
    random_inputs,
    random_model,
)

# 38 / 4, 8, 16 give 10, 5, 3. Doubling a size does not give the next larger size.
SHAPE = (38, 45, 3)
FACTORIES = list(SIZES)
NECKS = {"VTFPN": functools.partial(reference.token_neck, k=3, group_width=4), "PanopticFPN": reference.pyramid_neck}
CONFIGS = {"VTFPN": VTFPNConfig, "PanopticFPN": PanopticFPNConfig}


def tiny(factory, input_shape=SHAPE, classifier_activation=None, **arguments):
    return tiny_segmenter(factory, input_shape, classifier_activation=classifier_activation, **arguments)


@pytest.fixture(params=FACTORIES, scope="module")
def factory(request):
    return request.param


@pytest.fixture(scope="module")
def model(factory):
    """A model with random weights, for tests that do not change it."""
    return random_model(tiny(factory))


COCO, LIP = ((800, 1216, 3), 54), ((473, 473, 3), 20)
# (backbone, data set): {model: (our GMACs of (neck, total), those printed in Tables 9 and 10 of arXiv 2006.03677)}. The
# paper truncates digits.
PUBLISHED = {
    ("R50", COCO): {"PanopticFPN": ((55.099, 159.135), (55.1, 159)), "VTFPN": ((8.574, 112.609), (8.5, 113))},
    ("R101", COCO): {"PanopticFPN": ((55.099, 231.106), (55.1, 231)), "VTFPN": ((8.574, 184.581), (8.5, 185))},
    ("R50", LIP): {"PanopticFPN": ((12.893, 37.335), (12.8, 37.1)), "VTFPN": ((2.097, 26.538), (2.0, 26.4))},
    ("R101", LIP): {"PanopticFPN": ((12.893, 54.381), (12.8, 54.4)), "VTFPN": ((2.097, 43.584), (2.0, 43.6))},
}


@pytest.mark.slow
@counted_once
@pytest.mark.parametrize("data", [COCO, LIP], ids=["COCO", "LIP"])
def test_published_counts(factory, data):
    """A backbone with two units in each stage gives the counts of both depths."""
    shape, classes = data
    arguments = {"stage_depths": (2, 2, 2, 2), "input_shape": shape, "classes": classes}
    model, cost = shapes_only(lambda: getattr(keras_vit, factory)("R50", **arguments))
    assert model.output_shape == (None, *shape[:2], classes)
    kernels = [weight for weight in model.weights if weight.name == "kernel"]
    by_layer = counts_by_layer(model, cost, kernels)
    neck = [counts for name, counts in by_layer.items() if name.startswith(("lateral_", "pyramid_", "token"))]
    neck_kernels, neck_macs = sum(neck)
    assert neck_kernels == {"PanopticFPN": 3_342_336, "VTFPN": 6_774_784}[factory]
    for backbone in ("R50", "R101"):
        _, macs = deep_counts(by_layer, RESNETS[backbone].stage_depths)
        ours, (printed_neck, printed) = PUBLISHED[backbone, data][factory]
        assert (neck_macs / 1e9, macs / 1e9) == pytest.approx(ours, abs=5e-4)
        assert neck_macs / 1e9 == pytest.approx(printed_neck, abs=0.1)
        assert macs / 1e9 == pytest.approx(printed, rel=7e-3)
    if (factory, data) == ("PanopticFPN", COCO):  # Term by term: projections of the stages, 3 x 3 convolutions.
        pixels = [200 * 304, 100 * 152, 50 * 76, 25 * 38]
        laterals = sum(n * c * 256 for n, c in zip(pixels, (256, 512, 1024, 2048), strict=True))
        assert neck_macs == laterals + sum(pixels) * 9 * 256**2


def test_equals_the_reference(factory, model):
    images, weights = random_inputs(SHAPE), canonical_weights(model)
    maps = [visual_transformer.resnet(images[0].astype("float64"), weights, (1,) * depth) for depth in (1, 2, 3)]
    assert [array.shape[1:3] for array in maps] == [(10, 12), (5, 6), (3, 3)]
    expected = reference.logits(maps, images[0], weights, NECKS[factory], G=2)
    outputs = compute(model, images)
    assert outputs.shape == (2, *SHAPE[:2], 5)
    assert np.ptp(expected) > 1
    assert_close(outputs, expected)


def test_backbones():
    shape = (32, 32, 3)
    builds = [
        lambda: keras_vit.VTFPN(input_shape=shape, stage_depths=(1,)),
        lambda: keras_vit.VTFPN("R34", input_shape=shape, strides_first=False, stage_depths=(1,)),
        lambda: keras_vit.PanopticFPN(ResNetConfig((1, 1), 8, drop_path_rate=0.1), input_shape=shape, head_dim=16),
        lambda: keras_vit.VTFPN(VTFPNConfig((1,), num_tokens=4), input_shape=shape, classes=2),
    ]
    models = [shapes_only(build)[0] for build in builds]
    assert [keras_vit.describe(model).config for model in models] == [
        VTFPNConfig((1,)),
        VTFPNConfig((1,), expansion=1, strides_first=False),
        PanopticFPNConfig((1, 1), 8, drop_path_rate=0.1, strides_first=False, head_dim=16),
        VTFPNConfig((1,), num_tokens=4),
    ]
    assert [model.name for model in models] == ["vt_fpn", "vt_fpn", "panoptic_fpn", "vt_fpn"]
    assert models[-1].output_shape == (None, 32, 32, 2)
    assert keras_vit.architectures.VT_FPNS["R50"] == VTFPNConfig((3, 4, 6, 3))
    assert all(VTFPNConfig(**dataclasses.asdict(config)).strides_first is False for config in RESNETS.values())


@pytest.mark.slow
def test_gradients(factory, model):
    found = gradients(model, random_inputs(SHAPE))
    assert all(np.isfinite(gradient).all() for gradient in found.values())  # All gradients exist.
    largest = {path: np.abs(gradient).max() for path, gradient in found.items()}
    # Values added equally to everything that a softmax runs over: logits of all pixels, or all attended tokens.
    cancelled = {path for path in largest if path.endswith(("/filter/norm/beta", "_transformer/query/norm/beta"))}
    cancelled |= {path for path in largest if path.startswith("token_projector_") and path.endswith("/key/norm/beta")}
    assert len(cancelled) == (7 if factory == "VTFPN" else 0)
    # Measured: cancelled gradients are at most 6e-11, others at least 6e-7. Gradients are small after many norms.
    assert not [path for path in cancelled if largest[path] > 1e-9]
    assert not [path for path in largest.keys() - cancelled if largest[path] < 1e-7]


def test_dropout(factory):
    model, _ = shapes_only(functools.partial(tiny, factory, dropout_rate=0.25))
    [dropout] = [layer for layer in model.layers if isinstance(layer, keras_vit.layers.Dropout | keras.layers.Dropout)]
    assert dropout.rate == 0.25


def test_description(factory, model):
    assert keras_vit.describe(model).config == CONFIGS[factory](**BACKBONE, expansion=1, **SIZES[factory])


def test_refuses_impossible_arguments():
    for arguments, error, message in (
        ({"num_heads": 5}, ValueError, "5 heads, and its keys"),
        ({"classes": 0}, ValueError, "classes must be a positive integer. Received: 0"),
        ({"weights": "imagenet"}, ValueError, r"'VT-FPN@imagenet' is not the name of published weights"),
        ({"num_token": 2}, TypeError, "'num_token' is not a field of VTFPNConfig. Did you mean 'num_tokens'"),
    ):
        with pytest.raises(error, match=message):
            tiny("VTFPN", **arguments)
    with pytest.raises(TypeError, match="'num_tokens' is not a field of PanopticFPNConfig"):
        tiny("PanopticFPN", num_tokens=8)
    with pytest.raises(ValueError, match=r"'R51' is not a published VT-FPN.*Did you mean 'R50'.*R18, R34, R50, R101"):
        keras_vit.VTFPN("R51")
