"""`features`: what the layers of a model put out. B batch, T tokens, N = h w patches, R registers, D hidden."""

import math

import keras
from keras import ops

from keras_vit import graph
from keras_vit.analysis.architecture import check_unmerged, is_vision_transformer, model_config
from keras_vit.analysis.attention import BLOCKS
from keras_vit.checks import did_you_mean
from keras_vit.layers import PatchEmbedding


def features(model, images, layers):
    """The outputs of named layers, as feature maps wherever they are tokens.

    Tokens (B, T, D) are given as the map of the patches, (B, h, w, D), without the tokens before it. Those have names
    of their own, the layer's followed by that of the layer which puts them there: `"encoder_block_5/class_token"` and
    `"encoder_block_5/distillation_token"` are (B, D), `"encoder_block_5/register_tokens"` is (B, R, D).

    All is computed at inference, in one pass over all the images; for many, call it batch by batch.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (B, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`.
        layers: Names of layers, also of those around a nested model; `[layer.name for layer in model.layers]` lists
            them.

    Returns:
        {name: float32 NumPy array}. What is no tokens, such as the maps of a stem or the pooled vector, has the shape
        that the layer gives it.

    Raises:
        TypeError: If `model` is not functional, or `layers` is one string.
        ValueError: If `model` is not of this package, a name is unknown or belongs to several layers or to one that
            runs more than once, what is asked for are tokens that were merged, or the images do not fit.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(64, 96, 3), num_layers=2)
    >>> found = keras_vit.features(model, np.zeros((1, 64, 96, 3)), ["encoder_block_0", "encoder_norm/class_token"])
    >>> {name: array.shape for name, array in found.items()}
    {'encoder_block_0': (1, 4, 6, 192), 'encoder_norm/class_token': (1, 192)}
    """
    config = model_config(model)
    prefix = _prefix_tokens(config)
    _check_names(layers, graph.layer_names(model), prefix)
    if any(name.startswith(_TOKENS_OF_BLOCKS) for name in layers):
        check_unmerged(getattr(config, "token_merging", 0))
    wanted = {"patch_embedding", *(name.partition("/")[0] for name in layers)}
    outputs = graph.collect(
        model, images, lambda layer, _, output: graph.to_array(output) if layer.name in wanted else None
    )
    patches = outputs.get("patch_embedding")
    if patches is None:  # A model without tokens.
        return {name: outputs[name] for name in layers}
    return {name: _feature(name, outputs[name.partition("/")[0]], patches.shape[1:3], prefix) for name in layers}


_TOKENS_OF_BLOCKS = ("encoder_block_", "encoder_norm")


def _prefix_tokens(config):
    """{name of the layer: how many tokens it puts before the patches}, in the order in which the tokens stand."""
    if not is_vision_transformer(config):
        return {}
    counts = {
        "class_token": int(config.has_class_token),
        "distillation_token": int(config.distillation_token),
        "register_tokens": config.num_register_tokens,
    }
    return {name: count for name, count in counts.items() if count}


def _check_names(layers, known, prefix):
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names. Received: {layers!r}")
    for name in layers:
        layer, _, token = name.partition("/")
        if layer not in known:
            raise ValueError(f"There is no layer {layer!r}.{did_you_mean(layer, known)} Layers: {', '.join(known)}")
        if known.count(layer) > 1:
            raise ValueError(f"{known.count(layer)} layers have the name {layer!r}. Pass the model inside, or rename.")
        if token and token not in prefix:
            raise ValueError(
                f"{name!r}: this model has no {token!r}. Tokens before those of the patches: "
                f"{', '.join(prefix) or 'none'}"
            )


def _feature(name, output, grid, prefix):
    layer, _, token = name.partition("/")
    front = _tokens_in_front(output, math.prod(grid), prefix)
    if not token:
        return output if front is None else output[:, len(front) :].reshape(len(output), *grid, output.shape[-1])
    if token not in (front or ()):
        raise ValueError(f"{name!r}: no {token!r} comes out of {layer!r}, but an array of shape {output.shape}.")
    first, count = front.index(token), front.count(token)
    return output[:, first : first + count] if token == "register_tokens" else output[:, first]


def _tokens_in_front(output, num_patches, prefix):
    """Which layer each token before those of the patches comes from; `None`: the output is no tokens.

    Layers in the middle of the prefix put out its last tokens only.
    """
    num_front = output.shape[1] - num_patches if output.ndim == 3 else None
    complete = [name for name, count in prefix.items() for _ in range(count)]
    ends = [complete[first:] for first in range(len(complete) + 1)]
    return next((end for end in ends if len(end) == num_front), None)


def patch_tokens(model, images):
    """What the encoder makes of each patch, as a tensor (B, h, w, D) of the backend, also where it is traced.

    Normalised, unless the model puts its LayerNorm behind the pooling. Arguments and errors as `features`.
    """

    config = model_config(model)
    check_unmerged(getattr(config, "token_merging", 0))

    def look(layer, _, output):
        if isinstance(layer, PatchEmbedding):
            return tuple(ops.shape(output)[1:3])
        return output if isinstance(layer, BLOCKS) or layer.name == "encoder_norm" else None

    found = graph.collect(model, images, look)
    if len(found) < 2:
        raise ValueError(f"{model.name!r} runs no encoder block that can be seen. Pass the model inside it.")
    tokens = list(found.values())[-1][:, config.num_prefix_tokens :]
    return ops.reshape(tokens, (-1, *found["patch_embedding"], config.hidden_dim))


def representation(model, images):
    """What the classifier reads, as a tensor (B, D) of the backend, also where it is traced.

    That is the input of the last layer with weights, if it is a Dense layer behind the model's representation; of a
    model with a classifier for the class token and another for the distillation token (DeiT, arXiv 2012.12877) the
    mean of what they read. A model without classifier puts it out. Arguments and errors as `features`, and a
    ValueError where it is no vector.
    """
    read, outputs = {}, [None]

    def look(layer, arguments, output):
        outputs[0] = output
        if not layer.weights or isinstance(layer, keras.Model):
            return
        if isinstance(layer, keras.layers.Dense) and layer.name != "pre_logits":
            read[layer.name] = arguments[0]
        else:
            read.clear()  # No classifier has been run yet.

    graph.collect(model, images, look)
    names = list(read)
    if names[-1:] == ["distillation_predictions"]:
        return (read["predictions"] + read["distillation_predictions"]) / 2
    vectors = read[names[-1]] if names else outputs[0]
    if len(vectors.shape) != 2:
        raise ValueError(
            f"{model.name!r} gives no vector for an image, but an array of shape {tuple(vectors.shape)}. Build it with "
            f"a pooling."
        )
    return vectors
