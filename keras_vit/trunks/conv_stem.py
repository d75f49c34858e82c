"""The convolutional stem of arXiv 2106.14881."""

import keras

from keras_vit import layers
from keras_vit.layers.convolutional.parts import batch_norm


def conv_stem(images, stem):
    """Computes the feature map that is divided into patches (arXiv 2106.14881, section 4).

    Args:
        images: Keras tensor (B, H, W, C) of normalised pixels.
        stem: `ConvStemConfig`

    Returns:
        Keras tensor (B, h, w, D). h and w are H and W divided by `stem.stride` and rounded up. D is the last width.
    """
    maps = images
    for i, (width, stride) in enumerate(stem.convolutions):
        maps = layers.PaddedConv2D(width, 3, stride, name=f"stem_conv_{i}")(maps)
        maps = batch_norm(name=f"stem_norm_{i}")(maps)
        maps = keras.layers.ReLU(name=f"stem_activation_{i}")(maps)
    return maps
