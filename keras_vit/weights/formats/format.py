"""`Format`, one layout of weight files, and `ModelDescription`, a model that is written to such files."""

import collections.abc
import dataclasses
import typing

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.text import TextConfig
from keras_vit.architectures.vision_transformer import ViTConfig


@dataclasses.dataclass(frozen=True)
class CardFormat:
    """Describes files and the program that loads them, for model cards.

    Args:
        title: Name of the program.
        library: The program's `library_name` on the Hugging Face Hub.
        code: Template of the code with which the program loads the files. It is run in the folder of the card.
        own_code: Template of the code with which keras_vit loads the files, or `None` if keras_vit cannot load them.
        preprocessing: Text that says which steps of the preprocessing are part of the exported model.
        computes_in_int8: Whether files in int8 compute in 8 bits, and do not only store their weights in them.
    """

    title: str
    library: str
    code: str
    own_code: str | None = None
    preprocessing: str = ""
    computes_in_int8: bool = True


OWN_FOLDER = """
import keras_vit

model = keras_vit.from_pretrained(".")
"""
"""`CardFormat.own_code` of formats that are folders of files"""


@dataclasses.dataclass(frozen=True)
class Format:
    """A layout of weight files: names and shapes of arrays, and settings beside them.

    Args:
        title: Models with this layout, for messages.
        recognises: Function `(file)` that returns whether a mapping of arrays has the names of this layout.
        describe: Function `(file, hints)` that returns the `Checkpoint` of a mapping of arrays. It raises a ValueError
            if a needed setting is neither in the file nor in the `Hints`.
        settings_files: Names of JSON files beside the weights, whose contents are in `hints.settings`: `config.json`,
            which may declare the licence, and others.
        write: Function `(weights, description)` that converts {canonical path: array} and a `ModelDescription` to
            {file name: contents}. The contents are {name: array} for a weight file, and a dictionary for a JSON file.
            The licence is added to `config.json` or, without this file, to the weight file.
            It raises a ValueError that lists the reasons if the format cannot express the model. `None`: files of this
            layout are not written.
        card: Function that returns the `CardFormat` for a `ViTConfig`, or `None` if files are not written.
        file_suffix: Ending of the only file that is written, such as `".npz"`. `None`: a folder of files is written.
        outputs: Kinds of outputs of the head that the written files can express.
    """

    title: str
    recognises: collections.abc.Callable
    describe: collections.abc.Callable
    settings_files: tuple[str, ...] = ("config.json",)
    write: typing.Any = None
    card: typing.Any = None
    file_suffix: str | None = None
    outputs: tuple[str, ...] = ("classes", "labels")


@dataclasses.dataclass(frozen=True)
class TextDescription:
    """Describes the text encoder of an image-text model whose weights are written.

    Args:
        config: Architecture of the text encoder.
        weights: {canonical path: array} of the text encoder and of the similarity.
        activation: As in `keras_vit.ImageTextModel`.
        tokenizer: Name and contents of the tokenizer's file, or `None`.
    """

    config: TextConfig
    weights: dict[str, typing.Any]
    activation: str
    tokenizer: tuple[str, bytes] | None


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """Describes a model whose weights are written.

    Args:
        config: Architecture of the model.
        image_size: (height, width) of the images in pixels.
        channels: Number of channels of the images.
        classes: Number of classes of the head, or `None` without a head.
        preprocessing: mean, std, resize, crop and interpolation, as in `keras_vit.Preprocessing`.
        class_names: List of class names, or `None` if they are unknown.
        licence: Licence of the weights, or `None` if it is unknown.
        output: What the outputs of the head mean, a kind of `keras_vit.Output`, or `None` without a head.
        text: `TextDescription` of the text encoder of an image-text model, or `None`.
    """

    config: ViTConfig
    image_size: tuple[int, int]
    channels: int
    classes: int | None
    preprocessing: dict
    class_names: list[str] | None = None
    licence: str | None = None
    output: str | None = None
    text: TextDescription | None = None

    @property
    def has_sigmoid(self):
        """Whether the scores are those of a sigmoid, because an image can have several labels."""
        return self.output == "labels"

    @property
    def is_normalized_to_one(self):
        """Whether pixels from 0 to 255 are normalised to [-1, 1]."""
        return all(value == 0.5 for name in ("mean", "std") for value in self.by_channel(name))

    @property
    def has_known_stem(self):
        """Whether the model has no ResNet stem, or one with the epsilons of Google's code or of timm."""
        stem = self.config.stem
        known = ((1e-6, 1e-5), (1e-5, 1e-8))
        return (
            not isinstance(stem, StemConfig) or (stem.group_norm_epsilon, stem.weight_standardization_epsilon) in known
        )

    @property
    def resize_and_crop(self):
        """(resize, crop) of `preprocessing`, with tuples instead of lists."""
        sides = self.preprocessing["resize"], self.preprocessing["crop"]
        return tuple(tuple(each) if isinstance(each, list) else each for each in sides)

    @property
    def images(self):
        """Describes the size of the images and how they are resized, for error messages."""
        height, width = self.image_size
        resize, crop = self.resize_and_crop
        return f"images of {height} x {width} pixels with resize={resize}, crop={crop}"

    def by_channel(self, name):
        """Mean or std as a list with one number for each channel."""
        value = self.preprocessing[name]
        return list(value) if isinstance(value, (list, tuple)) else [value] * self.channels
