"""What `model-diagram` draws: models as rows, and the parts of a layer with their residual connections."""

import functools
import re
import unittest.mock

import keras
import numpy as np
from model_svg import TIMES, Row, show_shape

import keras_vit
from benchmarks import models
from keras_vit import layers
from keras_vit.layers.transformer import few_queries
from keras_vit.weights.catalogue import ENTRIES

_SKIPPED = (
    *(keras.layers.InputLayer, keras.layers.Reshape, keras.layers.Cropping1D),
    *(keras.layers.Dropout, keras.layers.Activation),
)
_INVISIBLE = (layers.Dropout, layers.DropPath, keras.layers.Dropout, keras.layers.Identity)
# Layers with one residual branch, from their first to their last part.
_UNITS = ("ResidualUnit", "BottleneckUnit", "PreActivationUnit", "AxialBottleneckUnit", "SelfAttentionUnit")


@functools.cache
def build(name):
    """Builds a model without values for its weights, from a name of published weights or of a function."""
    function = getattr(keras_vit if name in keras_vit.__all__ else keras_vit.baselines, name, None)
    if name not in ENTRIES and function is None:
        raise ValueError(f"{name!r} is neither a function of keras_vit nor a name in keras_vit.list_weights().")
    with models.shapes_only():
        return models.build_entry(ENTRIES[name]) if name in ENTRIES else function()


def model_rows(model, is_parallel=False):
    """The rows of a whole model.

    Successive layers whose names differ in a number only share a row. With `is_parallel`, so do all other layers whose
    names differ in a number only.
    """
    groups = []
    for cost in keras_vit.profile(model).layers:
        if not isinstance(layer := model.get_layer(cost.name), _SKIPPED):
            # The output of `RotaryPositionEmbedding` has no batch axis.
            is_rotary = isinstance(layer, layers.RotaryPositionEmbedding)
            shape = tuple(layer.output.shape) if is_rotary else cost.output_shape[1:]
            _add_to_group(groups, _group_name(cost.name), (layer, shape), is_parallel)
    rows, num_prefix = [], 0
    for name, members in sorted(groups, key=lambda group: _place(group, groups)):
        if is_parallel and name not in _PARTS:
            members.sort(key=lambda member: [int(number) for number in re.findall(r"\d+", member[0].name)])
        members, shapes = zip(*members, strict=True)
        if isinstance(members[0], (layers.ClassToken, layers.RegisterTokens)):
            num_prefix += getattr(members[0], "num_tokens", 1)
        # Layers side by side are listed from the finest map to the coarsest. Layers in a row end with the last one.
        is_row = not is_parallel or name in _PARTS or "stage" in name
        rows.append(_row(name, members, shapes[-1] if is_row else shapes[0], num_prefix))
    return rows


def _place(group, groups):
    """Sorting key of a group: rotary positions come immediately before the blocks that use them."""
    names = [name for name, _ in groups]
    if isinstance(group[1][0][0], layers.RotaryPositionEmbedding):
        return names.index("encoder_block") - 0.5
    return names.index(group[0])


def _add_to_group(groups, name, member, is_parallel):
    if groups and groups[-1][0] == name:
        groups[-1][1].append(member)
        return
    earlier = [group for group in groups if group[0] == name and is_parallel]
    for group in earlier:
        groups.remove(group)
    groups.append((name, [*(member for group in earlier for member in group[1]), member]))


def _group_name(name):
    if stage := re.match(r"(?:stem_)?stage_\d+", name):
        return stage[0]
    for part in _PARTS:
        if name.startswith(f"{part}_"):
            return part
    return "images" if name == "preprocessing" else re.sub(r"_\d+$", "", name)


_PARTS = {"stem": "Convolutional stem", "head": "Segmentation head", "final": "Norm and ReLU"}


def _row(name, members, shape, num_prefix):
    first, last = members[0].name, members[-1].name
    if name == "images":
        detail = "pixels, normalised"
    elif first == last:
        detail = first
    elif re.sub(r"\d+$", "", first) == re.sub(r"\d+$", "", last):
        detail = f"{first} … {re.search(r'[0-9]+$', last)[0]}"
    else:
        detail = f"{first} …"
    # A single layer of a group keeps its own name, so that it can be highlighted.
    name = first if len(members) == 1 and name != "images" else name
    is_side_input = isinstance(members[0], layers.RotaryPositionEmbedding)
    return Row(name, _title(name, members), detail, shape, num_prefix, is_side_input=is_side_input)


def inner_rows(layer):
    """(rows of the parts of a layer, in the order in which it calls them; residual branches as pairs of indices)"""
    rows, calls, branches = [], _calls(layer), []
    begin = 0
    for part, shape in calls:
        if isinstance(part, layers.DropPath) and type(layer) is layers.EncoderBlock:
            branches.append((begin, len(rows) - 1))
            begin = len(rows)
        elif not isinstance(part, _INVISIBLE) and not _is_without_effect(part):
            rows.append(Row(part.name, _title(part.name, [part]), "", shape[1:]))
    if type(layer).__name__ in _UNITS:
        branches = [(0, len(rows) - 1)]
    if isinstance(layer, layers.AttentionPooling):
        branches = [(1, len(rows) - 1)]  # Around the norm and the MLP.
    return rows, branches


def _is_without_effect(layer):
    return isinstance(layer, keras.layers.AveragePooling2D) and layer.pool_size == (1, 1)


def _calls(layer):
    """[(part, shape of its output)] of the layers that a layer calls, when it is called with zeros."""
    copy = type(layer).from_config(layer.get_config())
    shapes = [[size or 1 for size in tensor.shape] for tensor in keras.tree.flatten(layer.input)]
    zeros = [np.zeros(shape, "float32") for shape in shapes]
    calls, running = [], []
    call = keras.Layer.__call__

    def record(part, *arguments, **options):
        running.append(part)
        outputs = call(part, *arguments, **options)
        running.pop()
        if len(running) == 1:
            calls.append((part, tuple(keras.tree.flatten(outputs)[0].shape)))
        return outputs

    # For few queries, the attention would be computed without calling its layer.
    with (
        unittest.mock.patch.object(keras.Layer, "__call__", record),
        unittest.mock.patch.object(few_queries, "can_skip_keys", return_value=False),
    ):
        copy(*zeros)
    return calls


def _title(name, members):
    # The head of a Vision Transformer is one layer. Convolutions after it share its row.
    layer, number = members[0 if members[0].name == name else -1], len(members)
    if name == "images":
        return "Image"
    if name in _PARTS and layer.name != name:
        return _PARTS[name]
    if stage := re.match(r"(?:stem_)?stage_(\d+)", name):
        num_units = sum("unit" in member.name for member in members)
        return f"Stage {int(stage[1]) + 1}: {num_units} unit{'s' if num_units > 1 else ''}"
    title = _TITLES_BY_NAME.get(name) or _TITLES.get(type(layer).__name__)
    text = title(layer) if callable(title) else title or _words(type(layer).__name__)
    is_row = number > 1 and name == "encoder_block"
    return f"{number} {TIMES} {text[0].lower() + text[1:]}" if is_row else text


def _words(name):
    """`TokenTransformer` as "Token transformer"."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("2D")).lower().replace("self ", "self-")
    return words[0].upper() + words[1:]


def _convolution(layer):
    height, width, *_ = layer.kernel.shape
    return f"{height} {TIMES} {width} convolution"


_TITLES_BY_NAME = {
    "distillation_token": "Distillation token",
    "distillation_pooling": "Pooling: distillation token",
    "distillation_predictions": "Second classifier",
    "predictions": lambda layer: "Classifier" if layer.kernel.shape[-1] > 1 else "Linear layer",
    "pre_logits": "Dense layer, tanh",
    "mean_logits": "Mean of the logits",
    "tokens": "Tokens of all maps",
    "height_attention": "Attention along the height",
    "width_attention": "Attention along the width",
    "token_embedding": "Token embeddings",
    "row": "Encoder block along rows",
    "column": "Encoder block along columns",
}
_TITLES = {
    "PatchEmbedding": lambda layer: f"Patch embedding, {show_shape(layer.kernel.shape[:2])}",
    "RegisterTokens": lambda layer: f"{layer.num_tokens} register token{'s' if layer.num_tokens > 1 else ''}",
    "LearnedPositionEmbedding": "Position embedding",
    "SincosPositionEmbedding": "Sine-cosine positions",
    "RotaryPositionEmbedding": "Rotary positions",
    "LayerNormalization": "LayerNorm",
    "GroupNormalization": "GroupNorm",
    "BatchNormalization": "BatchNorm",
    "LayerScale": "LayerScale",
    "TokenPooling": "Pooling: class token",
    "AverageTokenPooling": "Pooling: mean of patches",
    "AttentionPooling": "Attention pooling",
    "GlobalAveragePooling2D": "Average pooling",
    "GlobalAveragePooling1D": "Mean of the tokens",
    "MultiHeadSelfAttention": lambda layer: f"Attention, {layer.num_heads} heads{', rotary' if layer.rotary else ''}",
    "MlpBlock": lambda layer: f"MLP, hidden layer {layer.mlp_dim}",
    "AxialEncoderBlock": "Axial encoder block",
    "Conv2D": _convolution,
    "PaddedConv2D": _convolution,
    "StdConv2D": _convolution,
    "AttentionAugmentedConv2D": "Convolution and attention",
    "ConvolutionalBlockAttention": "Channel, spatial attention",
    "SqueezeExcitation": "Squeeze and excitation",
    "Add": "Sum",
    "UpsampleLike": "Upsampling",
    "ResizeLike": "Upsampling",
    "DepthActivation": "Depth",
    "DPTHead": "DPT head",
    "EoMTHead": lambda layer: f"EoMT head, {len(layer.blocks)} blocks, {layer.num_queries} queries",
}
