"""What is done to all encoder blocks of a model: rematerialisation and the initialisation of their attentions."""

import keras
import numpy as np

from keras_vit.checks import check_count, check_flag
from keras_vit.graph import all_layers
from keras_vit.layers import EncoderBlock
from keras_vit.preprocessing import vision_model


def rematerialize(model: keras.Model, enabled: bool = True) -> None:
    """Makes training compute each encoder block twice, which needs less memory but more time than computing it once.

    In training, only the input tokens of every block stay in memory. The activations inside the block are computed
    again for the gradients ("Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). Losses and gradients
    stay the same up to rounding, and dropout and drop path draw the same random numbers. Inference does not change.

    The setting is not saved, so it is off in a model loaded from a file. Like `trainable`, it must be set before
    `model.compile`. On JAX, the setting has an effect only on GPUs and TPUs, because XLA removes the second computation
    on CPUs.

    Args:
        model: A model of this package, which may be nested in another model.
        enabled: `False` switches rematerialization off.

    Raises:
        ValueError: If `model` is not of this package or has no encoder block, or if `enabled` is not a boolean.

    Example:

    >>> import keras_vit
    >>> model = keras_vit.ViT("Ti/16", num_layers=2, drop_path_rate=0.1)
    >>> keras_vit.rematerialize(model)
    """
    check_flag("enabled", enabled)
    for block in _encoder_blocks(model, "encoder blocks can be rematerialised"):
        block.use_rematerialization = enabled


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
    for block in _encoder_blocks(model, "the attentions of encoder blocks can be initialised"):
        attention = block.attention
        width, num_heads, key_dim = attention.query.kernel.shape
        heads = [_factors(0.7, 0.7, width, key_dim, generator) for _ in range(num_heads)]
        attention.query.kernel.assign(np.stack([query for query, _ in heads], axis=1))
        attention.key.kernel.assign(np.stack([key.T for _, key in heads], axis=1))
        value, output = _factors(0.4, -0.4, width, width, generator)
        attention.value.kernel.assign(value.reshape(width, num_heads, key_dim))
        attention.output_projection.kernel.assign(output.reshape(num_heads, key_dim, width))


def _encoder_blocks(model, possible):
    """Returns all encoder blocks of a model. If there are none, the error says what is `possible`."""
    blocks = [layer for layer in all_layers(vision_model(model)) if isinstance(layer, EncoderBlock)]
    if not blocks:
        raise ValueError(f"Only {possible}, but {model.name!r} has none.")
    return blocks


def _factors(scale, diagonal, width, rank, generator):
    """Two matrices, (width, rank) and (rank, width), whose product approximates scale Z + diagonal I."""
    noise = generator.normal(scale=width**-0.5, size=(width, width))
    left, values, right = np.linalg.svd(scale * noise + diagonal * np.eye(width))
    roots = np.sqrt(values[:rank])
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
