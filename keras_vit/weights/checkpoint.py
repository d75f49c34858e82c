"""What a file of published weights says, in this package's terms."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_vit.architectures import BiTResNetConfig, PanopticFPNConfig, ResNetConfig, VTFPNConfig, VTResNetConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.weights.catalogue import FAMILIES

TAKEN_BY = {
    ViTConfig: ViTConfig,
    BiTResNetConfig: BiTResNetConfig,
    ResNetConfig: ResNetConfig,
    # Their trunk and backbone.
    VTResNetConfig: ResNetConfig,
    PanopticFPNConfig: ResNetConfig,
    VTFPNConfig: ResNetConfig,
}
"""kind of model: kind of the published weights that it takes"""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A file of weights and the model that it describes. Nothing but headers has been read yet; `read` works once.

    Args:
        source: What was asked for.
        format: Whose layout it is: `"google"`, `"big_vision"` (BiT-ResNets), `"timm"`, `"torchvision"` (ResNets),
            `"huggingface"`, `"keras_hub"` or `"keras"` (a model of this package).
        config: The architecture, of one of the kinds that `TAKEN_BY` names.
        grid_size: (rows, columns) of the position table, or `None` where there is no such table.
        classes: Classes of its head, or `None` if it has none.
        image_size: (height, width) in pixels that it was made for.
        channels: Of its images.
        pixels: Arguments of `keras_vit.Preprocessing`: mean, std, resize, crop, interpolation, label_space. `None`: the
            file does not say.
        skipped: Names of arrays in the file that are no part of the model.
        read: Function that reads the weights: {canonical path: array}.
        has_activation: Whether the head's outputs are scores of classes, for which softmax is the natural end.
        arguments: Of the function that builds the model, those that the file names.
    """

    source: str
    format: str
    config: ViTConfig | BiTResNetConfig | ResNetConfig
    grid_size: tuple[int, int] | None
    classes: int | None
    image_size: tuple[int, int]
    channels: int
    pixels: dict | None
    read: Callable[[], dict[str, np.ndarray]]
    skipped: tuple[str, ...] = ()
    has_activation: bool = True
    arguments: dict = dataclasses.field(default_factory=dict)


def numerics(family):
    """Fields of `ViTConfig` that a family of weights decides."""
    facts = FAMILIES[family]
    return {
        "mlp": facts.gelu,
        "layer_norm_epsilon": facts.layer_norm_epsilon,
        "position_interpolation": facts.position_interpolation,
    }
