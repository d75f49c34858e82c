"""What a file that is written says besides the weights."""

import dataclasses

from keras_vit.architectures.vision_transformer import ViTConfig


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a file that is written says besides the weights.

    Args:
        config: The architecture.
        image_size: (height, width) in pixels.
        channels: Of the images.
        classes: Of the head, or `None` without one.
        pixels: mean, std, resize, crop and interpolation, as in `keras_vit.Preprocessing`.
        class_names: List of them, or `None` where they are not known.
    """

    config: ViTConfig
    image_size: tuple[int, int]
    channels: int
    classes: int | None
    pixels: dict
    class_names: list[str] | None = None

    @property
    def is_normalized_to_one(self):
        """Whether pixels from 0 to 255 become -1 to 1."""
        return all(value == 0.5 for name in ("mean", "std") for value in self.by_channel(name))

    @property
    def has_known_stem(self):
        """Whether the stem, if there is one, has the epsilons of Google's code or of timm, which differ by rounding."""
        stem = self.config.stem
        known = ((1e-6, 1e-5), (1e-5, 1e-8))
        return stem is None or (stem.group_norm_epsilon, stem.weight_standardization_epsilon) in known

    def by_channel(self, name):
        """Mean or std as a list of one number for each channel."""
        value = self.pixels[name]
        return list(value) if isinstance(value, (list, tuple)) else [value] * self.channels
