"""Random changes of the training images. A change depends only on the image and a seed.

Images are uint8 from the decoder to the model. `build_augmentation` combines the changes that a recipe requests.
"""

from training.data.augment.building import Augmentation, build_augmentation

__all__ = ["Augmentation", "build_augmentation"]
