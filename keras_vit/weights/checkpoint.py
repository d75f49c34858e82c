"""`Checkpoint`, the description of a file of published weights in this package's terms, and `Hints` about a file."""

import dataclasses
import pathlib
import typing
from collections.abc import Callable

import numpy as np

from keras_vit.architectures import BiTResNetConfig, ResNetConfig
from keras_vit.architectures.text import TextConfig
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_grid_size, check_positive_integer, did_you_mean, shown
from keras_vit.outputs import Output
from keras_vit.weights.catalogue.families import FAMILIES


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Description of a file of weights and its model, derived from the file's headers. `read` can be called only once.

    Args:
        config: Architecture.
        grid_size: (rows, columns) of the position table, or `None` without a table.
        classes: Number of classes of the head, or `None` without a head.
        image_size: (height, width) of the model's images in pixels.
        channels: Number of channels of the model's images.
        preprocessing: Arguments of `keras_vit.Preprocessing` (mean, std, resize, crop, interpolation), or `None` if
            they are unknown.
        skipped: Names of arrays in the file that are not part of the model.
        read: Function that reads the weights and returns {canonical path: array}.
        label_space: Classes of the head, as in `keras_vit.Preprocessing`, or `None` if they are unknown.
        output: What the outputs of the head mean.
        unsupported_head: Input of the file's classifier, if no classifier of this package has this input.
        arguments: Arguments that the file defines for the function that builds the model.
        origin: Source and licence of the published weights, a dictionary like `origin` of `keras_vit.Preprocessing`.
            The file contains these weights, or weights that are derived from them.
        ignored: Settings beside the weights that have no effect, as in `LoadReport`.
        source: Name, path or address of the file. `open_checkpoint` sets it, and `format` unless it is set.
        format: Layout of the file: `"google"`, `"big_vision"` (BiT-ResNets), `"timm"`, `"torchvision"` (ResNets),
            `"huggingface"`, `"open_clip"`, `"keras_hub"` or `"keras"` (a model of this package).
    """

    config: ViTConfig | BiTResNetConfig | ResNetConfig
    grid_size: tuple[int, int] | None
    classes: int | None
    image_size: tuple[int, int]
    channels: int
    preprocessing: dict | None
    read: Callable[[], dict[str, np.ndarray]]
    skipped: tuple[str, ...] = ()
    label_space: str | list[str] | None = None
    output: Output = dataclasses.field(default_factory=lambda: Output("classes"))
    unsupported_head: str | None = None
    arguments: dict = dataclasses.field(default_factory=dict)
    origin: dict | None = None
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""
    format: str = ""


@dataclasses.dataclass(frozen=True)
class TextCheckpoint:
    """Description of the text encoder in a file of an image-text model. `read` can be called only once.

    Args:
        config: Architecture of the text encoder.
        read: Function that reads the weights and returns {canonical path: array}, with `similarity/log_scale` and, if
            there is one, `similarity/bias`.
        activation: `"softmax"` or `"sigmoid"`, which makes probabilities of the similarities.
        tokenizer: Kind of the tokenizer, as in `keras_vit.text.tokenizers.Tokenizer`.
        folder: Folder with the files of the tokenizer, or `None`. `open_text` sets it.
    """

    config: TextConfig
    read: Callable[[], dict[str, np.ndarray]]
    activation: str
    tokenizer: str
    folder: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Hints:
    """Settings of a weight file that come from the caller, the catalogue, the model and the JSON files beside the file.

    Args:
        source: Name, path or address of the file.
        family: Key of `FAMILIES` from the caller or the catalogue.
        num_heads: Number of attention heads from the caller.
        grid_size: (rows, columns) of the position table from the caller.
        image_size: (height, width) from the catalogue.
        max_depth: Largest depth in metres, for depth estimators.
        encoder: `Checkpoint` of the encoder (first its name, path or address), for files with a head only, or with
            differences from its weights.
        output: Kind of output, as in `keras_vit.Output`, for files with several heads.
        model_num_heads: Number of attention heads of the model into which the weights are loaded. It is used if no
            other source defines this number.
        model_image_size: (height, width) of that model's images. It is used if no other source defines this size.
        changes: {field of `ViTConfig`: value} from the catalogue, which replace the values in the file.
        settings: {name of a JSON file beside the weights: its contents}. A missing file is `{}`.
    """

    source: str
    family: str | None = None
    num_heads: int | None = None
    grid_size: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    max_depth: float | None = None
    encoder: typing.Any = None
    output: str | None = None
    model_num_heads: int | None = None
    model_image_size: tuple[int, int] | None = None
    changes: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.family not in (None, *FAMILIES):
            hint = did_you_mean(self.family, FAMILIES)
            raise ValueError(f"family={shown(self.family)} is not known.{hint} Accepted: {', '.join(FAMILIES)}")
        if self.num_heads is not None:
            check_positive_integer("num_heads", self.num_heads)
        if self.grid_size is not None:
            object.__setattr__(self, "grid_size", check_grid_size("grid_size", self.grid_size))
