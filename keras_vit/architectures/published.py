"""The tables of published sizes."""

from keras_vit.architectures.resnets import ResNetConfig, SelfAttentionNetworkConfig
from keras_vit.architectures.visual_transformers import PanopticFPNConfig, VTFPNConfig, VTResNetConfig
from keras_vit.checks import did_you_mean

RESNETS = {
    "R18": ResNetConfig((2, 2, 2, 2), expansion=1),
    "R34": ResNetConfig((3, 4, 6, 3), expansion=1),
    "R50": ResNetConfig((3, 4, 6, 3)),
    "R101": ResNetConfig((3, 4, 23, 3)),
}
"""ResNets of arXiv 1512.03385, Table 1."""

# Module 1 of VT-ResNet-34 has no transformer. With a transformer in module 1, the model would have more operations than
# in Table 8 (docs/paper_map.md).
VT_RESNETS = {
    "VT-R18": VTResNetConfig((2, 2, 2), expansion=1, num_modules=2, filters=512),
    "VT-R34": VTResNetConfig((3, 4, 6), expansion=1, filters=512, relation_modules=(0, 2)),
    "VT-R50": VTResNetConfig((3, 4, 6)),
    "VT-R101": VTResNetConfig((3, 4, 23)),
}
"""VT-ResNets of arXiv 2006.03677, Table 8."""

SELF_ATTENTION_NETWORKS = {
    "SAN10": SelfAttentionNetworkConfig((2, 1, 2, 4, 1)),
    "SAN15": SelfAttentionNetworkConfig((3, 2, 3, 5, 2)),
    "SAN19": SelfAttentionNetworkConfig((3, 3, 4, 6, 3)),
}
"""SANs of arXiv 2004.13621, Table 1."""


def _on_resnets(kind):
    """Returns {name of a ResNet: config of the segmentation model with this backbone}"""
    return {name: kind(config.stage_depths, expansion=config.expansion) for name, config in RESNETS.items()}


PANOPTIC_FPNS = _on_resnets(PanopticFPNConfig)
"""Panoptic FPNs (arXiv 1901.02446), the baseline of arXiv 2006.03677, Tables 9 and 10."""
VT_FPNS = _on_resnets(VTFPNConfig)
"""VT-FPNs of arXiv 2006.03677, Tables 9 and 10."""


def changed_config(sizes, size, changes):
    """Returns the config of a published size, or a given config, with some fields changed.

    Args:
        sizes: {name: config}
        size: A key of `sizes`, or a config of the same class.
        changes: {field: value}

    Raises:
        TypeError: If a field does not exist. The message suggests similar ones.
        ValueError: If the size does not exist, or if a value is invalid.
    """
    kind = type(next(iter(sizes.values())))
    if type(size) is not kind and not (isinstance(size, str) and size in sizes):
        raise ValueError(
            f"{size!r} is not a published {kind.title}.{did_you_mean(str(size), sizes)} Available: {', '.join(sizes)}. "
            f"A keras_vit.architectures.{kind.__name__} is also accepted."
        )
    return (sizes[size] if isinstance(size, str) else size).replace(**changes)
