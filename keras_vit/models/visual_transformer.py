"""VT-ResNets: "Visual Transformers: Token-based Image Representation and Processing" (arXiv 2006.03677)."""

import collections.abc
import functools
import os
import typing

import keras

from keras_vit import layers
from keras_vit.architectures import VT_RESNETS, VTResNetConfig, changed_config
from keras_vit.layers.ops.maps import squarest_grid
from keras_vit.models.building import SharedArguments, build_on_trunk, resnet_with_weights
from keras_vit.models.factories import keras_application
from keras_vit.trunks.resnet import resnet

_PUBLISHED = {"use_batch_norm": True, "scale_logits": True}
_TOKEN_GROUPS = 4  # Groups in the projections to keys, queries and values of tokens.


def VTResNet(
    size: str | VTResNetConfig = "VT-R18",
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
    """Builds a VT-ResNet as a functional `keras.Model`.

    A VT-ResNet is a ResNet whose last stage is replaced by modules of visual tokens ("Visual Transformers: Token-based
    Image Representation and Processing for Computer Vision", arXiv 2006.03677). The first module pools the map into 16
    tokens with learned filters. Later modules compute their filters from the previous tokens. In each module, a
    transformer relates the tokens, and a projector adds them to the map. The tokens of the last module are averaged and
    classified. The paper does not give the sizes of all layers. With the sizes that this package uses instead, the
    number of multiply-accumulates differs from the paper's by at most 0.1 % for VT-ResNet-18 and VT-ResNet-34. It is
    3.6 % higher for VT-ResNet-50 and 1.6 % higher for VT-ResNet-101 (docs/paper_map.md). The layers are named as in
    `keras_vit.ResNet`, then `tokenizer_0`, `token_relation_0`, `token_projector_0` and so on, `pooling`, `predictions`.

    Args:
        size: `"VT-R18"`, `"VT-R34"`, `"VT-R50"`, `"VT-R101"`, or a `keras_vit.architectures.VTResNetConfig`.
        weights: `None`: newly initialised weights. The path of a `.weights.h5` file: weights that `model.save_weights`
            wrote for a model of the same shape. Published weights of the ResNet of the same size (see
            `keras_vit.ResNet`): the stem and all stages except the last one are loaded. The token modules and the
            classifier are newly initialised.
        pooling: `"avg"`: the mean over the tokens, (B, D). `None`, with `include_top=False`: the tokens (B, L, D).
        include_top, input_tensor, input_shape, classes, classifier_activation, include_preprocessing, name: As in
            `keras_vit.ViT`.
        **config_changes: Any field of `keras_vit.architectures.VTResNetConfig`, such as the settings of the paper's
            ablations.

    Returns:
        A `keras.Model`. Input (B, height, width, channels); output (B, classes), float32.

    Raises:
        TypeError: If a name in `config_changes` is not a field of the config.
        ValueError: If a value is invalid or not available, or if weights do not fit. The message lists accepted values.

    Example:

    >>> import keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", classes=10, input_shape=(32, 48, 3), **changes)
    >>> model.output_shape
    (None, 10)
    """
    shared = SharedArguments(
        include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation, include_preprocessing
    )
    config = changed_config(VT_RESNETS, size, config_changes)
    return resnet_with_weights(functools.partial(build_on_trunk, _tokens, name=name), config, shared)


def _tokens(images, config):
    """Computes the tokens of the last module, (B, L, D), from normalised pixels (B, H, W, C)."""
    maps, tokens = resnet(images, config)[-1], None
    for number in range(config.num_modules):
        if number > 0 and config.has_projector:
            maps = layers.TokenProjector(
                config.filters, config.num_heads, config.group_width, **_PUBLISHED, name=f"token_projector_{number - 1}"
            )(maps, tokens)
        if tokens is None or config.has_projector:
            tokens = _tokenize(maps, tokens, config, f"tokenizer_{number}")
        if number in config.related_modules:
            tokens = _relation(config, f"token_relation_{number}")(tokens)
    return tokens


def _tokenize(maps, tokens, config, name):
    sizes = {"token_dim": config.token_dim, "use_batch_norm": True, "name": name}
    if tokens is not None and config.is_recurrent:
        return layers.RecurrentTokenizer(
            num_heads=config.num_heads,
            group_width=config.group_width,
            scale_logits=True,
            split_tokens=config.split_tokens,
            **sizes,
        )(maps, tokens)
    if config.tokenizer == "pooling":
        return layers.PoolingTokenizer(squarest_grid(config.num_tokens), **sizes)(maps)
    if config.tokenizer == "clustering":
        return layers.ClusteringTokenizer(config.num_tokens, group_width=config.group_width, **sizes)(maps)
    return layers.FilterTokenizer(config.num_tokens, group_width=config.group_width, scale_logits=True, **sizes)(maps)


def _relation(config, name):
    if config.relation == "transformer":
        return layers.TokenTransformer(config.num_heads, _TOKEN_GROUPS, **_PUBLISHED, name=name)
    return layers.TokenGraphConvolution(config.relation == "graph_convolution", use_batch_norm=True, name=name)


def _published(depth):
    return keras_application(
        lambda **options: VTResNet(f"VT-R{depth}", **options),
        f"VTResNet{depth}",
        f"Builds a VT-ResNet-{depth} (arXiv 2006.03677, Table 8).",
        f'keras_vit.VTResNet("VT-R{depth}", ...)',
        VTResNetConfig,
        model_name=f"vt_resnet_{depth}",
    )


VTResNet18 = _published(18)
VTResNet34 = _published(34)
VTResNet50 = _published(50)
VTResNet101 = _published(101)

__all__ = ["VTResNet", "VTResNet18", "VTResNet34", "VTResNet50", "VTResNet101"]
