"""ResNets: what Visual Transformers begin with and are compared with (arXiv 1512.03385)."""

from keras_vit.architectures import RESNETS, ResNetConfig, changed_config
from keras_vit.models.building import build_convolutional, keras_application
from keras_vit.trunks.resnet import resnet


def ResNet(
    size="R50",
    include_top=True,
    weights=None,
    input_tensor=None,
    input_shape=None,
    pooling="avg",
    classes=1000,
    classifier_activation="softmax",
    include_preprocessing=False,
    name=None,
    **config_changes,
):
    """Builds a ResNet as a functional `keras.Model`.

    "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), as torchvision has it: the 3 x 3 convolution of a
    bottleneck has the strides, maps are padded alike on both sides, batch norms have PyTorch's epsilon and momentum.
    The layers are named `preprocessing`, `stem_conv`, `stem_norm`, `stem_activation`, `stem_pooling`, `stage_0_unit_0`
    and so on, `pooling`, `predictions`.

    Args:
        size: `"R18"`, `"R34"`, `"R50"`, `"R101"`, or a `keras_vit.architectures.ResNetConfig`.
        include_top: Whether to end with the classifier. `False`: the model returns what `pooling` says.
        weights: `None` for freshly initialised weights; a path or address of published weights in the layout of
            torchvision or timm and of the same size, such as `"hf://timm/resnet50.tv_in1k"` or the `.pth` file that
            torchvision downloads; or the path of a `.weights.h5` file that `model.save_weights` wrote for a model of
            the same shape.
        input_tensor: Keras tensor to use as the model's input.
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)` or the image size that published weights
            name; channels last whatever the global setting. `None` for height and width makes a model for images of any
            size.
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D), where h
            and w are height and width divided by the stride, 32 with four stages, and rounded up.
        classes: Number of classes.
        classifier_activation: Activation of the classifier: `"softmax"`, `None` for logits, or any of Keras's.
        include_preprocessing: `True`: the model takes pixels in [0, 255] and normalises them inside. `False`: it takes
            what `keras_vit.preprocess_input` returns.
        name: The model's name.
        **config_changes: Any field of `keras_vit.architectures.ResNetConfig`.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is impossible or not available, or the weights do not fit; the message says what is
            accepted.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ResNet("R18", classes=10, input_shape=(32, 48, 3), width=8)
    >>> model.output_shape
    (None, 10)
    """
    return build_convolutional(
        changed_config(RESNETS, size, config_changes),
        trunk,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        input_shape=input_shape,
        pooling=pooling,
        classes=classes,
        classifier_activation=classifier_activation,
        include_preprocessing=include_preprocessing,
        name=name,
    )


def trunk(images, config):
    """Normalised pixels (B, H, W, C) to a map (B, h, w, D)."""
    return resnet(images, config)[-1]


def _published(depth):
    """The function of a published size, with the arguments of `keras.applications`."""
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
