"""Reasoning over a graph of regions. Shapes: B batch, H W C map, P = HW pixels, N nodes with S states each."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.convolutional.parts import batch_norm, build_dense
from keras_vit.layers.ops.maps import as_pixels


@keras.saving.register_keras_serializable(package="keras_vit")
class GlobalReasoning(BaseLayer):
    """The GloRe unit: gathers a map into the nodes of a graph, and adds a graph convolution's result to the map.

    `V = B phi(X) / P`, `Z = W_g relu(V + A_g V)` and `X + BN(W B^T Z)` ("Graph-Based Global Reasoning Networks", arXiv
    1811.12814, equations 1 to 3). `phi` and `B` are linear projections of each pixel. Each row of `B` belongs to a
    node. The matrices `A_g` (between nodes) and `W_g` (between states) are learned. As in the authors' code
    (facebookresearch/GloRe), `phi`, `B` and `A_g` have biases. The division by P is an option in the authors' code, for
    maps of varying size. The gamma of the batch norm starts at zero, so the output of the unit is `X` before training.

    Args:
        num_nodes: Number N of nodes.
        num_states: Number S of states of a node.

    Call arguments:
        maps: (B, H, W, C), channels last. H and W may be unknown when the model is built.
        training: Whether the batch norm uses the batch's statistics and updates its moving averages.

    Returns:
        Same shape as `maps`.

    Raises:
        ValueError: If an argument is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.GlobalReasoning(num_nodes=3, num_states=4)
    >>> tuple(layer(keras.ops.ones((2, 5, 8, 6))).shape)
    (2, 5, 8, 6)
    """

    def __init__(self, num_nodes: int, num_states: int, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.num_nodes = check_positive_integer("num_nodes", num_nodes)
        self.num_states = check_positive_integer("num_states", num_states)
        self.norm = batch_norm(gamma_initializer="zeros", **self.part_arguments("norm"))

    def build(self, input_shape):
        channels = input_shape[-1]
        self.state = build_dense(self, "state", channels, self.num_states, use_bias=True)
        self.assignment = build_dense(self, "assignment", channels, self.num_nodes, use_bias=True)
        self.graph = build_dense(self, "graph", self.num_nodes, self.num_nodes, use_bias=True)
        self.update = build_dense(self, "update", self.num_states, self.num_states)
        self.extension = build_dense(self, "extension", self.num_states, channels)
        self.norm.build(input_shape)

    def call(self, maps, training=None):
        pixels = as_pixels(maps)
        assignment = self.assignment(pixels)  # (B, P, N)
        states = self.state(pixels) / ops.cast(ops.shape(pixels)[1], pixels.dtype)
        nodes = ops.matmul(ops.swapaxes(assignment, 1, 2), states)  # (B, N, S)
        nodes = nodes + ops.swapaxes(self.graph(ops.swapaxes(nodes, 1, 2)), 1, 2)
        nodes = self.update(ops.relu(nodes))
        branch = ops.reshape(self.extension(ops.matmul(assignment, nodes)), ops.shape(maps))
        return maps + self.norm(branch, training=training)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        channels, nodes, states = input_shape[-1], self.num_nodes, self.num_states
        pixel_macs = channels * (2 * states + nodes) + 2 * nodes * states
        return math.prod(input_shape[1:-1]) * pixel_macs + nodes * states * (nodes + states)
