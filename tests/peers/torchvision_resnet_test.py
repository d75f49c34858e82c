"""ResNets load from files of timm and torchvision with the same outputs, with random weights and statistics."""

import pytest
import timm
import torch
from timm.models.resnet import BasicBlock, Bottleneck, ResNet

import keras_vit
from keras_vit.weights.containers.safetensors import write_safetensors
from tests.models.resnet_test import PUBLISHED
from tests.peers.torch_models import random_images, randomize, run
from tests.test_case import assert_close, compute


def with_statistics(model, seed=0):
    """Sets random weights, means and variances; returns the model in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return randomize(model, seed)


def saved(model, folder, ending):
    """Saves a model's weights and returns the path."""
    path = folder / f"resnet{ending}"
    if ending == ".pth":
        torch.save(model.state_dict(), path)
    else:
        write_safetensors(path, {name: tensor.numpy() for name, tensor in model.state_dict().items()}, {})
    return path


def assert_equal(theirs, path, size):
    images = random_images(*size)
    expected = run(theirs, images).numpy()
    assert expected.std(0).max() > 1e-2  # The outputs differ between images.
    ours = keras_vit.from_pretrained(path, input_shape=(*size, 3), classifier_activation=None)
    assert_close(compute(ours, [images]), expected)


@pytest.mark.parametrize(
    ("depths", "size", "block", "ending"),
    [((1, 2, 1, 1), (45, 70), BasicBlock, ".safetensors"), ((2, 1, 1, 2), (64, 32), Bottleneck, ".pth")],
)
def test_logits(depths, size, block, ending, tmp_path):
    theirs = with_statistics(ResNet(block, depths, num_classes=7))
    assert_equal(theirs, saved(theirs, tmp_path, ending), size)


def test_torchvision(tmp_path):
    resnet = pytest.importorskip("torchvision").models.resnet
    theirs = with_statistics(resnet.ResNet(resnet.Bottleneck, (1, 1, 2, 1), num_classes=11))
    assert_equal(theirs, saved(theirs, tmp_path, ".pth"), (65, 96))


@pytest.mark.parametrize("name", ["wide_resnet50_2", "resnext50_32x4d", "resnet50d", "seresnet50", "resnet50_gn"])
def test_other_kinds_are_refused(name, tmp_path):
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=2)
    path = tmp_path / "other.pth"
    torch.save({key: torch.zeros(tensor.shape) for key, tensor in theirs.state_dict().items()}, path)
    with pytest.raises(ValueError, match="unsupported kind of ResNet"):
        keras_vit.from_pretrained(path)


@pytest.mark.parametrize("function", PUBLISHED)
def test_as_many_weights(function):
    with torch.device("meta"):
        theirs = timm.create_model(function.lower(), num_classes=1000)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == PUBLISHED[function][1]


def test_pixels_of_torchvisions_own_weights():
    """torchvision's files do not contain the size of the resize. It is known from the digits in their names."""
    models = pytest.importorskip("torchvision").models
    from keras_vit.weights.formats.torchvision import RESIZES

    found = {}
    for function in PUBLISHED:
        for weights in models.get_model_weights(function.lower()):
            digits = weights.url.removesuffix(".pth").rpartition("-")[2]
            found[digits] = weights.transforms().resize_size[0]
    assert found == RESIZES
