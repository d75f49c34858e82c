"""BiT-ResNets have the same outputs as timm's with the same random weights, and the same published sizes."""

import functools
import re

import pytest
import timm
import torch
from timm.layers import StdConv2d
from timm.models.resnetv2 import ResNetV2

import keras_vit
from tests.models.bit_resnet_test import PUBLISHED
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, compute

_LAYERS = {"norm1": "norm_1", "norm2": "norm_2", "norm3": "norm_3", "conv1": "conv_1", "conv2": "conv_2"}
_LAYERS |= {"conv3": "conv_3", "downsample.conv": "projection_conv"}
_PARTS = {"weight": "kernel", "bias": "bias"}
_OTHERS = {"stem.conv": "stem_conv", "norm": "final_norm", "head.fc": "predictions"}


def _canonical(name):
    layer, _, part = name.rpartition(".")
    unit = re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.(.*)", layer)
    path = f"stage_{unit[1]}_unit_{unit[2]}/{_LAYERS[unit[3]]}" if unit else _OTHERS[layer]
    is_norm = "norm" in path
    return f"{path}/{ {'weight': 'gamma', 'bias': 'beta'}[part] if is_norm else _PARTS[part] }"


def _weights(model):
    """{canonical path: array} of a timm model."""
    found = {}
    for name, tensor in model.state_dict().items():
        array, path = tensor.numpy(), _canonical(name)
        if array.ndim == 4:
            array = array[:, :, 0, 0].T if path.startswith("predictions") else array.transpose(2, 3, 1, 0)
        found[path] = array
    return found


@pytest.mark.parametrize("stage_depths", [(1, 2), pytest.param((2, 1, 1, 1), marks=pytest.mark.slow)])
def test_logits(stage_depths):
    peer = ResNetV2(  # With the arguments of timm's own BiT-ResNet functions.
        stage_depths, num_classes=7, stem_type="fixed", conv_layer=functools.partial(StdConv2d, eps=1e-8)
    )
    peer = randomize(peer)
    model = keras_vit.BiTResNet(stage_depths, classes=7, classifier_activation=None, input_shape=(45, 70, 3))
    weights = _weights(peer)
    for variable in model.weights:
        variable.assign(weights.pop(variable.path))
    assert not weights
    images = random_images(45, 70)
    assert_close(compute(model, [images]), run(peer, images).numpy())


@pytest.mark.parametrize(
    "function", [name for name in PUBLISHED if name not in ("BiTResNet50x2", "BiTResNet152x1", "BiTResNet200x3")]
)
def test_as_many_weights(function):
    with torch.device("meta"):
        theirs = timm.create_model(f"resnetv2_{function.removeprefix('BiTResNet')}_bit", num_classes=1000)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == PUBLISHED[function][2]
