"""ResNets with attention, baselines of Visual Transformers (arXiv 2006.03677, Table 8)."""

from keras_vit.architectures import ResNetConfig
from keras_vit.models.factories import keras_application
from keras_vit.models.resnet import ResNet


def _baseline(function_name, model_name, text, size, **changes):
    described = "".join(f", {name}={value!r}" for name, value in changes.items()).replace("'", '"')
    return keras_application(
        lambda **options: ResNet(size, **changes, **options),
        function_name,
        f"Builds {text}.",
        f'keras_vit.ResNet("{size}"{described}, ...)',
        ResNetConfig,
        model_name=model_name,
    )


def _baselines(name, text, depths, **changes):
    """Returns a function for each depth, such as SEResNet18 if `name` is "SE". The depth replaces `{}` in `text`."""
    return [
        _baseline(f"{name}ResNet{depth}", f"{name.lower()}_resnet_{depth}", text.format(depth), f"R{depth}", **changes)
        for depth in depths
    ]


def _local_relation(depth, stage_depths):
    return _baseline(
        f"LRNet{depth}",
        f"lr_net_{depth}",
        f"an LR-Net-{depth} (arXiv 1904.11491) with the stem of a ResNet",
        "R50",
        stage_depths=stage_depths,
        mixing="local_relation",
    )


def _global_reasoning(depth, stage_depths, num_units, where):
    return _baseline(
        f"GloReResNet{depth}",
        f"glore_resnet_{depth}",
        f"a ResNet-{depth} with global reasoning units, {where} (GloRe, arXiv 1811.12814)",
        "R50",
        stage_depths=stage_depths,
        global_unit="global_reasoning",
        num_global_units=num_units,
    )


_SE = "a ResNet-{} with squeeze and excitation (arXiv 1709.01507)"
_CBAM = "a ResNet-{} with convolutional block attention modules (arXiv 1807.06521)"
SEResNet18, SEResNet34 = _baselines("SE", _SE, (18, 34), attention="squeeze_excitation")
CBAMResNet18, CBAMResNet34 = _baselines("CBAM", _CBAM, (18, 34), attention="cbam")
# With the strides in the first convolutions, the models have the operations of Table 8.
SEResNet50, SEResNet101 = _baselines("SE", _SE, (50, 101), attention="squeeze_excitation", strides_first=True)
CBAMResNet50, CBAMResNet101 = _baselines("CBAM", _CBAM, (50, 101), attention="cbam", strides_first=True)
_AA = "an attention-augmented ResNet-{} (arXiv 1904.09925), for images of one size"
AAResNet34, AAResNet50, AAResNet101 = _baselines("AA", _AA, (34, 50, 101), mixing="attention_augmented")
LRNet18 = _local_relation(18, (2, 2, 2, 2))
LRNet50 = _local_relation(50, (3, 4, 6, 3))
LRNet101 = _local_relation(101, (3, 4, 23, 3))
GloReResNet50 = _global_reasoning(50, (3, 4, 6, 3), (0, 0, 3, 0), "three in its third stage")
# The second stage has units too, because the model would otherwise have fewer operations and parameters than the paper
# states.
GloReResNet200 = _global_reasoning(200, (3, 24, 36, 3), (0, 2, 3, 0), "two in its second stage and three in its third")
A2ResNet50 = _baseline(
    "A2ResNet50",
    "a2_resnet_50",
    "a ResNet-50 with five double attention blocks in its second and third stage (A2-Nets, arXiv 1810.11579)",
    "R50",
    global_unit="double_attention",
    num_global_units=(0, 2, 3, 0),
)
StandAloneResNet50 = _baseline(
    "StandAloneResNet50",
    "stand_alone_resnet_50",
    "a ResNet-50 with self-attention in windows in place of 3 x 3 convolutions after the stem (arXiv 1906.05909)",
    "R50",
    mixing="stand_alone",
)

__all__ = [
    "A2ResNet50",
    "AAResNet34",
    "AAResNet50",
    "AAResNet101",
    "CBAMResNet18",
    "CBAMResNet34",
    "CBAMResNet50",
    "CBAMResNet101",
    "GloReResNet50",
    "GloReResNet200",
    "LRNet18",
    "LRNet50",
    "LRNet101",
    "SEResNet18",
    "SEResNet34",
    "SEResNet50",
    "SEResNet101",
    "StandAloneResNet50",
]
