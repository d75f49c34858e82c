"""Random changes of the training images: each a function of the image and a seed, and of nothing else.

Images are uint8 from the decoder to the model. `build_augmentation` puts together what a recipe asks for.
"""

from training.data.augment.building import Augmentation, build_augmentation

__all__ = ["Augmentation", "build_augmentation"]
