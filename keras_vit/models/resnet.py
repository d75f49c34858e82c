"""ResNets (arXiv 1512.03385), the backbones and baselines of Visual Transformers."""

import collections.abc
import functools
import os
import typing

import keras

from keras_vit.architectures import RESNETS, ResNetConfig, changed_config
from keras_vit.models.building import SharedArguments, build_on_trunk, resnet_with_weights
from keras_vit.models.factories import keras_application
from keras_vit.trunks.resnet import resnet


def ResNet(
    size: str | ResNetConfig = "R50",
    include_top: bool = True,
    weights: str | os.PathLike | None = None,
    input_tensor: keras.KerasTensor | None = None,
    input_shape: tuple[int | None, int | None, int] | None = None,
    pooling: str | None = "avg",
    classes: int = 1000,
    classifier_activation: str | collections.abc.Callable | None = "softmax",
    include_preprocessing: bool = False,
    name: str | None = None,
    **config_changes: typing.Any,
) -> keras.Model:
    """Builds a ResNet as a functional `keras.Model`.

    ResNets are from "Deep Residual Learning for Image Recognition" (arXiv 1512.03385). The model is torchvision's
    variant: if a bottleneck unit halves the map, its 3 x 3 convolution has a stride of 2. The padding is symmetric.
    Batch norms have PyTorch's epsilon and momentum. The layers are named `preprocessing`, `stem_conv`, `stem_norm`,
    `stem_activation`, `stem_pooling`, `stage_0_unit_0` and so on, `pooling`, `predictions`.

    Args:
        size: `"R18"`, `"R34"`, `"R50"`, `"R101"`, or a `keras_vit.architectures.ResNetConfig`.
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape. Any other path or address: published weights of the same size in the
            layout of torchvision or timm, such as `"hf://timm/resnet50.tv_in1k"`, or a `.pth` file of torchvision.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D). h
            and w are the image's height and width divided by the stride (32 with four stages) and rounded up.
        include_top, input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.
        **config_changes: Any field of `keras_vit.architectures.ResNetConfig`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is invalid or not available, or if weights do not fit. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ResNet("R18", classes=10, input_shape=(32, 48, 3), width=8)
    >>> model.output_shape
    (None, 10)
    """
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, include_preprocessing
    )
    config = changed_config(RESNETS, size, config_changes)
    return resnet_with_weights(functools.partial(build_on_trunk, trunk, name=name), config, shared)


def trunk(images, config):
    """Computes the map (B, h, w, D) from normalised pixels (B, H, W, C)."""
    return resnet(images, config)[-1]


def _published(depth):
    return keras_application(
        lambda **options: ResNet(f"R{depth}", **options),
        f"ResNet{depth}",
        f"Builds a ResNet-{depth} (arXiv 1512.03385, Table 1).",
        f'keras_vit.ResNet("R{depth}", ...)',
        ResNetConfig,
        model_name=f"resnet_{depth}",
    )


ResNet18 = _published(18)
ResNet34 = _published(34)
ResNet50 = _published(50)
ResNet101 = _published(101)

__all__ = ["ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101"]
