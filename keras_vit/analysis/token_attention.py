"""What visual tokens are made of. B batch, M modules, K heads, L tokens, h w map, N = h w."""

import numpy as np
from keras import ops

from keras_vit import graph
from keras_vit.analysis.batching import batches
from keras_vit.layers import PoolingTokenizer, TokenGraphConvolution, TokenTransformer
from keras_vit.layers.visual_tokens.token_grid import shrink
from keras_vit.layers.visual_tokens.tokenizer import Tokenizer


def token_maps(model, images):
    """Which pixels of its map each visual token gathers: the weights A of every tokenizer.

    Visual Transformers (arXiv 2006.03677), equations 1 and 2 and figure 6; of a tokenizer with several heads the mean.

    Args:
        model: A functional model with visual tokens, such as `keras_vit.VTResNet18`, or one in which it is nested.
        images: (B, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`.

    Returns:
        {name of the tokenizer: (B, L, h, w)}, float32 NumPy arrays that sum to 1 over each map. Where tokens are split,
        those that are gathered anew.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If it has no tokenizer that gathers pixels, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> {name: maps.shape for name, maps in keras_vit.token_maps(model, np.zeros((1, 64, 96, 3))).items()}
    {'tokenizer_0': (1, 6, 4, 6), 'tokenizer_1': (1, 3, 4, 6)}
    """

    def look(layer, arguments, _):
        return graph.to_array(_weights(layer, arguments)) if isinstance(layer, Tokenizer) else None

    return _check_any(graph.collect(model, images, look), model)


def token_lineage(model, images):
    """Which pixels each visual token has come to stand for, through all modules up to its own.

    A token is made of the pixels that it gathers and, in the transformer, of other tokens, `Â_l = sum_l' W_ll' A_l'`
    with the transformer's attention W, the mean over its heads (Visual Transformers, arXiv 2006.03677, section 6). A
    token that is carried over brings along what it stands for.

    Args:
        model: A VT-ResNet, or one in which it is nested.
        images: As of `keras_vit.token_maps`.

    Returns:
        (B, M, L, h, w), a float32 NumPy array that sums to 1 over each map: after each of the M modules that gather
        tokens.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If it has no tokenizer that gathers pixels, its tokens come from several maps or are related by a
            graph convolution, whose weights are no shares, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> keras_vit.token_lineage(model, np.zeros((1, 64, 96, 3))).shape
    (1, 2, 6, 4, 6)
    """
    modules = []

    def look(layer, arguments, _):
        if isinstance(layer, Tokenizer):
            gathered = _weights(layer, arguments)
            kept = modules[-1][:, modules[-1].shape[1] // 2 :] if getattr(layer, "split_tokens", False) else None
            modules.append(gathered if kept is None else ops.concatenate([kept, gathered], axis=1))
        elif isinstance(layer, PoolingTokenizer):
            modules.append(_pooled(layer, *arguments))
        elif isinstance(layer, TokenGraphConvolution) and layer.use_graph:
            raise ValueError(
                f"{layer.name!r} of {model.name!r} relates tokens by a graph convolution, whose weights are no shares "
                f"and may be negative. Look at what each tokenizer gathers with keras_vit.token_maps."
            )
        elif isinstance(layer, TokenTransformer) and modules:
            attention = ops.mean(layer.attention_weights(*arguments), axis=1)
            if attention.shape[-1] != modules[-1].shape[1]:
                raise ValueError(
                    f"The tokens of {model.name!r} come from several maps. Look at each with keras_vit.token_maps."
                )
            modules[-1] = ops.einsum("blm,bmhw->blhw", ops.cast(attention, "float32"), modules[-1])

    graph.collect(model, images, look)
    return np.stack([graph.to_array(maps) for maps in _check_any(modules, model)], axis=1)


def token_entropy(model, images, batch_size=16):
    """How widely each visual token looks, in nats: from 0, one pixel alone, to `ln N`, the whole map.

    `E = -sum_p a_p ln a_p` over the N pixels of a map (Visual Transformers, arXiv 2006.03677, section 6); the mean over
    all images. A convolution, which treats all alike, would have `ln N`.

    Args:
        model: As of `keras_vit.token_maps`.
        images: (B, H, W, C), as `model` takes them, or an iterable of such batches, for example a `tf.data.Dataset`.
        batch_size: How many images of an array pass at once.

    Returns:
        {name of the tokenizer: (L,)}, float32 NumPy arrays.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If it has no tokenizer that gathers pixels, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> entropy = keras_vit.token_entropy(model, np.zeros((1, 64, 96, 3)))["tokenizer_0"]
    >>> bool(np.allclose(entropy, np.log(24)))  # Zeros are alike everywhere.
    True
    """
    sums, count = {}, 0
    for batch in batches(images, batch_size):
        for name, maps in token_maps(model, batch).items():
            entropies = -(maps * np.log(np.where(maps > 0, maps, 1))).sum((2, 3), dtype="float64")
            sums[name] = sums.get(name, 0) + entropies.sum(0)
        count += len(maps)
    return {name: (total / count).astype("float32") for name, total in sums.items()}


def foreground_share(maps, masks):
    """How much of what tokens gather is foreground: 1 if all of it is.

    Visual Transformers (arXiv 2006.03677), section 6: a token that knows where the object is has a larger share than
    the object's part of the image, which is that of a map that is alike everywhere.

    Args:
        maps: (B, ..., h, w), as from `keras_vit.token_maps` or `keras_vit.token_lineage`.
        masks: (B, H, W), 1 or `True` where the foreground is; H and W are multiples of h and w.

    Returns:
        (B, ...), a float32 NumPy array.

    Raises:
        ValueError: If the shapes do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> mask = np.zeros((1, 4, 6))
    >>> mask[:, :, :3] = 1
    >>> print(keras_vit.foreground_share(np.full((1, 2, 3), 1 / 6), mask))
    [0.5]
    """
    maps, masks = np.asarray(maps, "float64"), np.asarray(masks, "float64")
    (height, width), size = maps.shape[-2:], masks.shape[1:]
    if masks.ndim != 3 or len(masks) != len(maps) or size[0] % height or size[1] % width:
        raise ValueError(
            f"masks must be (B, H, W) of as many images as maps has, where H and W are multiples of its height and "
            f"width. Received: masks of shape {masks.shape}, maps of shape {maps.shape}"
        )
    shrunk = masks.reshape(len(masks), height, size[0] // height, width, size[1] // width).mean((2, 4))
    return np.einsum("b...hw,bhw->b...", maps, shrunk).astype("float32")


def _weights(tokenizer, arguments):
    """(B, L, h, w) of a tokenizer that is called with `arguments`, in float32."""
    weights = ops.cast(ops.mean(tokenizer.attention_weights(*arguments), axis=1), "float32")
    size = ops.shape(arguments[0])[1:3]
    return ops.reshape(ops.swapaxes(weights, 1, 2), (-1, weights.shape[-1], *size))


def _pooled(tokenizer, maps):
    """(B, L, h, w): how much of each pixel a place of the shrunk map is, the same for all images."""
    batch, height, width = ops.shape(maps)[:3]
    pixels = ops.reshape(ops.eye(height * width), (1, height, width, height * width))
    shares = ops.reshape(shrink(pixels, tokenizer.grid_size), (1, -1, height, width))
    return ops.repeat(shares, batch, axis=0)


def _check_any(found, model):
    if not found:
        raise ValueError(
            f"Visual tokens are looked at in tokenizers that gather pixels, and {model.name!r} runs none that can be "
            f"seen. Pass the model of keras_vit that is inside it."
        )
    return found
