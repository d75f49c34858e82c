"""Analysis of visual tokens. Shapes: B batch, M modules, K heads, L tokens, h w map, N = h w."""

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vit import graph
from keras_vit.analysis.inputs import Images, batches
from keras_vit.layers import PoolingTokenizer, TokenGraphConvolution, TokenTransformer
from keras_vit.layers.ops.maps import shrink
from keras_vit.layers.visual_tokens.tokenizer import Tokenizer


def token_maps(model: keras.Model, images: ArrayLike) -> dict[str, np.ndarray]:
    """Returns how much each visual token gathers from each pixel of the feature map: the weights A of every tokenizer.

    See Visual Transformers (arXiv 2006.03677), equations 1 and 2 and figure 6. The weights are averaged over the heads.

    Args:
        model: A functional model with visual tokens, such as `keras_vit.VTResNet18`, or a model in which one is nested.
        images: (B, H, W, C), as `model` accepts them: pixels in [0, 255] if the model has `include_preprocessing`.

    Returns:
        {name of the tokenizer: (B, L, h, w)}, float32 NumPy arrays. Each map sums to 1. With `split_tokens`, only
        the newly gathered tokens have maps.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` has no tokenizer that gathers pixels, or if the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> {name: maps.shape for name, maps in keras_vit.token_maps(model, np.zeros((1, 64, 96, 3))).items()}
    {'tokenizer_0': (1, 6, 4, 6), 'tokenizer_1': (1, 3, 4, 6)}
    """

    def collect_weights(layer, arguments, _):
        return graph.to_array(_weights(layer, arguments)) if isinstance(layer, Tokenizer) else None

    return _check_any(graph.collect(model, images, collect_weights), model)


def token_lineage(model: keras.Model, images: ArrayLike) -> np.ndarray:
    """Returns how much each pixel contributes to each visual token, through all modules up to the token's module.

    A tokenizer gathers tokens from pixels with weights A. The transformer then mixes the tokens, so their weights
    become `Â_l = sum_l' W_ll' A_l'`. W is the transformer's attention, averaged over the heads (Visual Transformers,
    arXiv 2006.03677, section 6). A token that is taken over from the previous module keeps its weights.

    Args:
        model: A VT-ResNet, or a model in which one is nested.
        images: Same as in `keras_vit.token_maps`.

    Returns:
        (B, M, L, h, w), a float32 NumPy array: the weights after each of the M modules that gather tokens. Each map
        sums to 1.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If the model has no tokenizer that gathers pixels; if it gathers tokens from several maps; if it
            relates tokens by a graph convolution, which may have negative weights; or if the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> keras_vit.token_lineage(model, np.zeros((1, 64, 96, 3))).shape
    (1, 2, 6, 4, 6)
    """
    modules = []

    def update_modules(layer, arguments, _):
        if isinstance(layer, Tokenizer):
            gathered = _weights(layer, arguments)
            if getattr(layer, "split_tokens", False):  # The tokenizer keeps the second half of the previous tokens.
                gathered = ops.concatenate([modules[-1][:, modules[-1].shape[1] // 2 :], gathered], axis=1)
            modules.append(gathered)
        elif isinstance(layer, PoolingTokenizer):
            modules.append(_pooled(layer, *arguments))
        elif isinstance(layer, TokenGraphConvolution) and layer.use_graph:
            raise ValueError(
                f"{layer.name!r} of {model.name!r} relates tokens by a graph convolution. Its weights may be negative, "
                f"so they are not shares. Use keras_vit.token_maps to see what each tokenizer gathers."
            )
        elif isinstance(layer, TokenTransformer) and modules:
            attention = ops.mean(layer.attention_weights(*arguments), axis=1)
            if attention.shape[-1] != modules[-1].shape[1]:
                raise ValueError(
                    f"The tokens of {model.name!r} come from several maps. Use keras_vit.token_maps for each of them."
                )
            modules[-1] = ops.einsum("blm,bmhw->blhw", ops.cast(attention, "float32"), modules[-1])

    graph.collect(model, images, update_modules)
    return np.stack([graph.to_array(maps) for maps in _check_any(modules, model)], axis=1)


def token_entropy(model: keras.Model, images: Images, batch_size: int = 16) -> dict[str, np.ndarray]:
    """The entropy of each visual token's weights in nats, from 0 (one pixel gets all weight) to `ln N` (equal weights).

    The entropy is `E = -sum_p a_p ln a_p` over the N pixels of a map, averaged over all images (Visual Transformers,
    arXiv 2006.03677, section 6). A convolution, which treats all pixels equally, would have the entropy `ln N`.

    Args:
        model: Same as in `keras_vit.token_maps`.
        images: (B, H, W, C), as `model` accepts them, or an iterable of such batches, for example a `tf.data.Dataset`.
        batch_size: Number of images in a batch, if `images` is an array.

    Returns:
        {name of the tokenizer: (L,)}, float32 NumPy arrays.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If the model has no tokenizer that gathers pixels, or if the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> changes = {"width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    >>> model = keras_vit.VTResNet("VT-R18", input_shape=(64, 96, 3), **changes)
    >>> entropy = keras_vit.token_entropy(model, np.zeros((1, 64, 96, 3)))["tokenizer_0"]
    >>> bool(np.allclose(entropy, np.log(24)))  # All pixels are equal.
    True
    """
    sums, count = {}, 0
    for batch in batches(images, batch_size):
        for name, maps in token_maps(model, batch).items():
            entropies = -(maps * np.log(np.where(maps > 0, maps, 1))).sum((2, 3), dtype="float64")
            sums[name] = sums.get(name, 0) + entropies.sum(0)
        count += len(maps)
    return {name: (total / count).astype("float32") for name, total in sums.items()}


def foreground_share(maps: ArrayLike, masks: ArrayLike) -> np.ndarray:
    """The share of each token's weights that lies on the foreground, in [0, 1].

    For a uniform map, this share equals the share of the image that the object covers. A token that attends to the
    object has a larger share (Visual Transformers, arXiv 2006.03677, section 6).

    Args:
        maps: (B, ..., h, w), as from `keras_vit.token_maps` or `keras_vit.token_lineage`.
        masks: (B, H, W), 1 or `True` for the foreground. H and W are multiples of h and w.

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
            f"masks must be (B, H, W) for the B images of maps, and H and W must be multiples of the height and width "
            f"of maps. Received: masks of shape {masks.shape}, maps of shape {maps.shape}"
        )
    shrunk = masks.reshape(len(masks), height, size[0] // height, width, size[1] // width).mean((2, 4))
    return np.einsum("b...hw,bhw->b...", maps, shrunk).astype("float32")


def _weights(tokenizer, arguments):
    """Returns the weights, float32 (B, L, h, w), of a tokenizer that is called with `arguments`."""
    weights = ops.cast(ops.mean(tokenizer.attention_weights(*arguments), axis=1), "float32")
    size = ops.shape(arguments[0])[1:3]
    return ops.reshape(ops.swapaxes(weights, 1, 2), (-1, weights.shape[-1], *size))


def _pooled(tokenizer, maps):
    """How much each pixel contributes to each position of the shrunk map, (B, L, h, w).

    The values are the same for all images.
    """
    batch, height, width = ops.shape(maps)[:3]
    pixels = ops.reshape(ops.eye(height * width), (1, height, width, height * width))
    shares = ops.reshape(shrink(pixels, tokenizer.grid_size), (1, -1, height, width))
    return ops.repeat(shares, batch, axis=0)


def _check_any(maps, model):
    if not maps:
        raise ValueError(
            f"This function found no tokenizer in {model.name!r} that gathers tokens from pixels. If a model of "
            f"keras_vit is nested in it, pass the nested model."
        )
    return maps
