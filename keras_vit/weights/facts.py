"""`Facts`: architecture, images and classes of a model whose weights are saved."""

import dataclasses

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig


@dataclasses.dataclass(frozen=True)
class Facts:
    """Describes a model for the functions that write weight files in the formats of other projects.

    Args:
        config: Architecture of the model.
        image_size: (height, width) of the images in pixels.
        channels: Number of channels of the images.
        classes: Number of classes of the head, or `None` without a head.
        pixels: mean, std, resize, crop and interpolation, as in `keras_vit.Preprocessing`.
        class_names: List of class names, or `None` if they are unknown.
        licence: Licence of the weights, or `None` if it is unknown.
        has_sigmoid: Whether the model ends with a sigmoid, because an image can have several labels.
    """

    config: ViTConfig
    image_size: tuple[int, int]
    channels: int
    classes: int | None
    pixels: dict
    class_names: list[str] | None = None
    licence: str | None = None
    has_sigmoid: bool = False

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
        """(resize, crop) of `pixels`, with tuples instead of lists."""
        sides = self.pixels["resize"], self.pixels["crop"]
        return tuple(tuple(each) if isinstance(each, list) else each for each in sides)

    @property
    def images(self):
        """Describes the size of the images and how they are resized, for error messages."""
        height, width = self.image_size
        resize, crop = self.resize_and_crop
        return f"images of {height} x {width} pixels with resize={resize}, crop={crop}"

    def by_channel(self, name):
        """Mean or std as a list with one number for each channel."""
        value = self.pixels[name]
        return list(value) if isinstance(value, (list, tuple)) else [value] * self.channels
