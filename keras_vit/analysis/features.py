"""Outputs of the layers of a model, and nearest neighbours by them.

Shapes: B batch, T tokens, h w grid of patches, R registers, D hidden, N images, M images of a gallery, k neighbours.
"""

import collections.abc
import math
import typing

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vit import graph
from keras_vit.analysis.attention import BLOCKS, check_has_blocks
from keras_vit.analysis.inputs import Images, batches, check_unmerged, model_config
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.checks import check_positive_integer, did_you_mean, shown
from keras_vit.layers import PatchEmbedding


def features(model: keras.Model, images: ArrayLike, layers: collections.abc.Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the outputs of named layers. Patch tokens are returned as feature maps.

    If a layer returns tokens (B, T, D), its patch tokens are returned as a map (B, h, w, D). To get the tokens before
    the patches, append their name to the name of the layer: `"encoder_block_5/class_token"` and
    `"encoder_block_5/distillation_token"` are (B, D), `"encoder_block_5/register_tokens"` is (B, R, D).

    The model runs in inference mode on all images in one batch. For many images, call the function batch by batch.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`.
        layers: Names of layers, inside or outside a nested model. `[layer.name for layer in model.layers]` lists them.

    Returns:
        {name: float32 NumPy array}. Outputs other than tokens, such as the maps of a stem or the pooled vector, keep
        their shape.

    Raises:
        TypeError: If `model` is not functional, or `layers` is one string.
        ValueError: If `model` is not of this package; if a name is unknown, or belongs to several layers or to a layer
            that runs more than once; if a layer has several outputs; if the requested tokens were merged; or if the
            images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> outputs = keras_vit.features(model, np.zeros((1, 64, 96, 3)), ["encoder_block_0", "encoder_norm/class_token"])
    >>> {name: array.shape for name, array in outputs.items()}
    {'encoder_block_0': (1, 4, 6, 192), 'encoder_norm/class_token': (1, 192)}
    """
    config = model_config(model)
    prefix = _prefix_tokens(config)
    _check_names(layers, graph.layer_names(model), prefix)
    if any(name.startswith(("encoder_block_", "encoder_norm")) for name in layers):
        check_unmerged(getattr(config, "token_merging", 0))
    wanted = {"patch_embedding", *(name.partition("/")[0] for name in layers)}
    outputs = graph.collect(model, images, lambda layer, _, output: _array(layer, output, wanted))
    patches = outputs.get("patch_embedding")
    if patches is None:  # The model has no tokens.
        return {name: outputs[name] for name in layers}
    return {name: _feature(name, outputs[name.partition("/")[0]], patches.shape[1:3], prefix) for name in layers}


def _array(layer, output, wanted):
    if layer.name not in wanted:
        return None
    if keras.tree.is_nested(output):
        raise ValueError(
            f"{layer.name!r} returns {len(output)} outputs, but features returns one of each layer. Name the layers "
            f"that read them, such as 'masks' and 'predictions' of a model with an EoMT head."
        )
    return graph.to_array(output)


def _prefix_tokens(config):
    """For each token before the patch tokens, in their order, the name of the layer that adds it."""
    if not isinstance(config, ViTConfig):
        return []
    first = ["class_token"] * config.has_class_token + ["distillation_token"] * config.distillation_token
    return first + ["register_tokens"] * config.num_register_tokens


def _check_names(layers, known, prefix):
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names. Received: {layers!r}")
    for name in layers:
        layer, _, token = name.partition("/")
        if layer not in known:
            raise ValueError(
                f"There is no layer {shown(layer)}.{did_you_mean(layer, known)} Layers: {', '.join(known)}"
            )
        if known.count(layer) > 1:
            raise ValueError(
                f"{known.count(layer)} layers have the name {layer!r}. Pass the nested model, or rename the layers."
            )
        if token and token not in prefix:
            names = ", ".join(dict.fromkeys(prefix)) or "none"
            raise ValueError(f"{name!r}: this model has no {token!r}. Tokens before the patch tokens: {names}")


def _feature(name, output, grid, prefix):
    layer, _, token = name.partition("/")
    # Rotary positions are the same for all images, so their first axis is not the batch.
    is_shared = layer == "rotary_positions"
    names: typing.Any = None if is_shared else _prefix_token_names(output, math.prod(grid), prefix)
    if not token:
        return output if names is None else output[:, len(names) :].reshape(len(output), *grid, output.shape[-1])
    if token not in (names or ()):
        raise ValueError(f"{name!r}: the output of {layer!r} has no {token!r}. Its shape is {output.shape}.")
    first, count = names.index(token), names.count(token)
    return output[:, first : first + count] if token == "register_tokens" else output[:, first]


def _prefix_token_names(output, num_patches, prefix):
    """Names of the tokens before the patch tokens, or `None` if the output does not consist of tokens."""
    # Each of these tokens is put in front of the tokens that already exist. The output of an early layer may therefore
    # lack the tokens at the beginning of the sequence.
    num_missing = len(prefix) - (output.shape[1] - num_patches) if output.ndim == 3 else -1
    return prefix[num_missing:] if 0 <= num_missing <= len(prefix) else None


def patch_tokens(model, images):
    """Returns the encoder's output for each patch, a tensor (B, h, w, D) of the backend. The function can be traced.

    The output is normalised, unless the model's final LayerNorm follows the pooling or is left out. The arguments and
    errors are those of `features`.
    """
    config = model_config(model)
    check_unmerged(getattr(config, "token_merging", 0))

    def collect_tokens(layer, _, output):
        if isinstance(layer, PatchEmbedding):
            return tuple(ops.shape(output)[1:3])
        return output if isinstance(layer, BLOCKS) or layer.name == "encoder_norm" else None

    outputs = graph.collect(model, images, collect_tokens)
    grid = outputs.pop("patch_embedding", ())
    tokens = check_has_blocks(list(outputs.values()), model)[-1][:, config.num_prefix_tokens :]
    return ops.reshape(tokens, (-1, *grid, config.hidden_dim))


def representation(model, images):
    """Returns the input of the classifier, a tensor (B, D) of the backend. The function can be traced.

    The classifier is the last layer with weights, if it is a Dense layer other than `pre_logits`. If a model has
    separate classifiers for the class token and the distillation token (DeiT, arXiv 2012.12877), the mean of their
    inputs is returned. If a model has no classifier, its output is returned. The arguments and errors are those of
    `features`. A ValueError is also raised if the result is not one vector for each image.
    """
    inputs, outputs = {}, []

    def collect_inputs(layer, arguments, output):
        outputs[:] = [output]
        if not layer.weights or isinstance(layer, keras.Model):
            return
        if isinstance(layer, keras.layers.Dense) and layer.name != "pre_logits":
            inputs[layer.name] = arguments[0]
        else:
            inputs.clear()  # This layer has weights, so the Dense layers before it are not the classifier.

    graph.collect(model, images, collect_inputs)
    names = list(inputs)
    if names[-1:] == ["distillation_predictions"]:
        return (inputs["predictions"] + inputs["distillation_predictions"]) / 2
    vectors = inputs[names[-1]] if names else outputs[0]
    if len(vectors.shape) != 2:
        raise ValueError(
            f"{model.name!r} must return one vector per image. Received: an array of shape {tuple(vectors.shape)}. "
            f"Build the model with a pooling."
        )
    return vectors


def nearest_neighbours(
    model: keras.Model, images: Images, gallery: Images, k: int = 5, batch_size: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the images of a gallery that are most similar to given images according to a model.

    The inputs of the classifier (the class token or the pooled vector, after the tanh layer if there is one) are
    compared by cosine similarity. The gallery may be larger than the memory, because only the best candidates are kept.
    If an image is in the gallery, it is its own neighbour, with a similarity of 1.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (N, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`; or an
            iterable of such batches, for example a `tf.data.Dataset`.
        gallery: The M images of the gallery, in the same form as `images`.
        k: Number of neighbours, at most M.
        batch_size: Number of images in a batch, if `images` or `gallery` is an array.

    Returns:
        Two NumPy arrays: the neighbours' indices in the gallery, int64 (N, k), and their similarities from -1 to 1,
        float32 (N, k). The most similar neighbour is first. Neighbours with equal similarity are in the order of
        the gallery.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, if images do not fit, or if `gallery` has fewer than k images.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(32, 32, 3), num_layers=1)
    >>> gallery = np.random.default_rng(0).normal(size=(5, 32, 32, 3))
    >>> indices, similarities = keras_vit.nearest_neighbours(model, gallery[3:], gallery, k=2)
    >>> print(indices[:, 0])
    [3 4]
    """
    check_positive_integer("k", k)
    queries = np.concatenate([_directions(model, batch) for batch in batches(images, batch_size)])
    indices, similarities = np.empty((len(queries), 0), "int64"), np.empty((len(queries), 0), "float32")
    first = 0
    for batch in batches(gallery, batch_size):
        candidates = np.clip(queries @ _directions(model, batch).T, -1, 1).astype("float32")
        new_indices = np.broadcast_to(np.arange(first, first + candidates.shape[1]), candidates.shape)
        indices = np.concatenate([indices, new_indices], axis=1)
        similarities = np.concatenate([similarities, candidates], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        indices, similarities = (np.take_along_axis(array, order, axis=1) for array in (indices, similarities))
        first += candidates.shape[1]
    if first < k:
        raise ValueError(f"gallery contains {first} images, but k={k} neighbours are requested.")
    return indices, similarities


def _directions(model, images):
    """Embeddings that are scaled to length one, (B, D). Zero vectors do not change."""
    embeddings = graph.to_array(representation(model, images)).astype("float64")
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1)
