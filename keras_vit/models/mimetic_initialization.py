"""Mimetic initialisation of attentions."""

import keras
import numpy as np

from keras_vit.checks import check_count
from keras_vit.graph import all_layers
from keras_vit.layers import EncoderBlock
from keras_vit.preprocessing import vision_model


def initialize_attention(model: keras.Model, seed: int) -> None:
    """Sets the attention kernels of all encoder blocks to mimetic initial values, which resemble trained ones.

    In the paper, Vision Transformers then learned faster from small data sets ("Mimetic Initialization of
    Self-Attention Layers", arXiv 2305.09828). With width D, K heads of width D / K, and matrices Z of independent
    normal numbers with the variance 1 / D:

    * The product of the query kernel and the transposed key kernel of each head is the best approximation of rank D / K
      of 0.7 Z + 0.7 I. Each token thus attends to similar tokens.
    * The product of the value kernel and the output kernel is 0.4 Z - 0.4 I.

    Both factors of a product are computed from its singular value decomposition U S Vᵀ, as U √S and √S Vᵀ. Biases and
    all other weights do not change.

    Args:
        model: A model of this package, which may be nested in another model. It should not be trained yet.
        seed: Seed of the random numbers, a non-negative integer. The values are the same on every backend.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If `model` is not of this package or has no encoder block, or if `seed` is not such an integer.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=2)
    >>> keras_vit.initialize_attention(model, seed=0)
    """
    generator = np.random.default_rng(check_count("seed", seed))
    blocks = [layer for layer in all_layers(vision_model(model)) if isinstance(layer, EncoderBlock)]
    if not blocks:
        raise ValueError(f"Only the attentions of encoder blocks can be initialised, but {model.name!r} has none.")
    for block in blocks:
        _initialize(block.attention, generator)


def _initialize(attention, generator):
    width, num_heads, key_dim = attention.query.kernel.shape
    heads = [_factors(0.7, 0.7, width, key_dim, generator) for _ in range(num_heads)]
    attention.query.kernel.assign(np.stack([query for query, _ in heads], axis=1))
    attention.key.kernel.assign(np.stack([key.T for _, key in heads], axis=1))
    value, output = _factors(0.4, -0.4, width, width, generator)
    attention.value.kernel.assign(value.reshape(width, num_heads, key_dim))
    attention.output_projection.kernel.assign(output.reshape(num_heads, key_dim, width))


def _factors(scale, diagonal, width, rank, generator):
    """Two matrices, (width, rank) and (rank, width), whose product approximates scale Z + diagonal I."""
    noise = generator.normal(scale=width**-0.5, size=(width, width))
    left, values, right = np.linalg.svd(scale * noise + diagonal * np.eye(width))
    roots = np.sqrt(values[:rank])
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
