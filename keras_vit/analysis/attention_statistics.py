"""How far and how widely heads attend. B batch, L blocks, K heads, T tokens, h w grid, N = h w patches (q asks)."""

import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.architecture import model_config
from keras_vit.analysis.attention import BLOCKS, block_weights, check_any
from keras_vit.analysis.batching import batches
from keras_vit.layers import PatchEmbedding


def mean_attention_distance(model, images, batch_size=16):
    """How far from itself each head looks, in pixels: the analogue of a convolution's receptive field.

    For a patch q it is `sum_s A_qs d_qs`, with the attention weights `A` and the Euclidean distances `d` between the
    centres of patches; the result is its mean over the patches of all images (ViT, arXiv 2010.11929, figures 7 and 11;
    the authors average 128 images). Tokens without a place, such as the class token, are left out, and each patch's
    remaining weights are divided by their sum: a head that mostly looks at the class token is judged by where else it
    looks. A patch that gives all its weight to such tokens is not counted.

    A distance is one in the image that the Vision Transformer sees; of a hybrid, a patch is as many of its pixels as
    the stem and the patches together step over. Only averages are kept, whatever the number of images.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`; or an
            iterable of such batches, for example a `tf.data.Dataset`.
        batch_size: How many images of an array pass at once. A block's weights, 1.9 MB an image for B/16 at 224
            pixels, are held one block at a time.

    Returns:
        (L, K), a float32 NumPy array; of an axial block a row for its attention along rows, then one for that along
        columns. NaN where no patch was counted.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> keras_vit.mean_attention_distance(model, np.zeros((1, 64, 96, 3))).shape
    (2, 3)
    """
    return _mean_over_patches(model, images, batch_size, _steps)


def attention_entropy(model, images, batch_size=16):
    """How widely each head spreads its attention, in nats: from 0, one token alone, to `ln T`, all T tokens alike.

    The mean, over all tokens of all images, of the entropy `-sum_s A_ts ln A_ts` of what token t attends to; tokens
    before the patches count as any other, on both sides.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: As of `keras_vit.mean_attention_distance`.
        batch_size: How many images of an array pass at once.

    Returns:
        (L, K), a float32 NumPy array; an axial block has two rows, as in `keras_vit.mean_attention_distance`.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> entropy = keras_vit.attention_entropy(model, np.zeros((1, 64, 96, 3)))
    >>> bool((entropy <= np.log(25) + 1e-5).all())
    True
    """

    def look(layer, arguments, _):
        return _sum_of_entropies(block_weights(layer, arguments)) if isinstance(layer, BLOCKS) else None

    return _mean(model, images, batch_size, look)


def local_attention_ratio(model, images, batch_size=16):
    """How much of its attention each head gives to the 3 x 3 patches around the one that asks: 1 if all of it.

    What Visual Transformers (arXiv 2006.03677, section 6) measure in ViT-B/16, of which a convolution could do as much.
    The mean over the patches of all images, each patch's weights to all patches divided by their sum; tokens without a
    place, such as the class token, are left out.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: As of `keras_vit.mean_attention_distance`.
        batch_size: How many images of an array pass at once.

    Returns:
        (L, K), a float32 NumPy array; an axial block has two rows, as in `keras_vit.mean_attention_distance`.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, has no encoder block or merges tokens, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> ratio = keras_vit.local_attention_ratio(model, np.zeros((1, 64, 96, 3)))
    >>> ratio.shape, bool((ratio <= 1).all())
    ((2, 3), True)
    """
    return _mean_over_patches(model, images, batch_size, _are_near)


def _are_near(grid, _):
    """(N, N): 1 for the 3 x 3 patches around each."""
    return (_steps(grid, (1, 1), np.inf) <= 1).astype("float32")


def _mean(model, images, batch_size, look):
    """(L, K) of a `look` that returns (2, passes, K): sums over what is counted, and how much was counted."""
    total = 0.0
    for batch in batches(images, batch_size):
        seen = graph.collect(model, batch, look)
        # In float64: many images are added up.
        total = total + np.concatenate(check_any(list(seen.values()), model), axis=1, dtype="float64")
    sums, counts = total
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0).astype("float32")


def _mean_over_patches(model, images, batch_size, values_of):
    """(L, K): the mean, weighted by attention, of what `values_of(grid, stride)` gives for two patches, (N, N)."""
    stride = model_config(model).total_stride
    values = None

    def look(layer, arguments, output):
        nonlocal values
        if isinstance(layer, PatchEmbedding):
            values = ops.convert_to_tensor(values_of(output.shape[1:3], stride), "float32")
        if isinstance(layer, BLOCKS):
            return _weighted_sums(block_weights(layer, arguments), values)
        return None

    return _mean(model, images, batch_size, look)


def _weighted_sums(weights, values):
    num_patches = values.shape[0]
    weights = weights[..., -num_patches:, -num_patches:]  # (B, passes, K, N, N)
    mass = ops.sum(weights, axis=-1)
    reach = ops.einsum("bpkqs,qs->bpkq", weights, values)
    counted = ops.cast(mass > 0, "float32")
    return _sums(counted * reach / ops.where(mass > 0, mass, 1.0), counted)


def _sum_of_entropies(weights):
    entropy = -ops.sum(weights * ops.log(ops.where(weights > 0, weights, 1.0)), axis=-1)  # (B, passes, K, T)
    return _sums(entropy, ops.ones_like(entropy))


def _sums(values, counted):
    """(B, passes, K, t) twice to (2, passes, K)."""
    return np.stack([graph.to_array(ops.sum(part, axis=(0, 3))) for part in (values, counted)])


def _steps(grid, stride, order=2):
    """(N, N): pixels between the centres of patches, in the norm of some order."""
    centres = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2) * stride
    return np.linalg.norm(centres[:, None] - centres, ord=order, axis=-1)
