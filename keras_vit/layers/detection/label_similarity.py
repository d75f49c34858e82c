"""Scores of labels by their similarity. Shapes: B batch, N boxes, E embedding, C labels."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.layers.base import BaseLayer

_EPSILON = 1e-6


@keras.saving.register_keras_serializable(package="keras_vit")
class LabelSimilarity(BaseLayer):
    """Logits of labels, in proportion to the cosines of embeddings of boxes and embeddings of labels.

    `(e/|e| · q/|q| + shift) (ELU(scale) + 1)`, with the embedding e, shift and scale of a box, and the embedding q of a
    label (OWL-ViT, arXiv 2205.06230; Scenic's `ClassPredictor`). 1e-6 is added to both lengths. The embeddings of the
    labels are the weights of this layer, learned or computed by a text encoder.

    Args:
        labels: Number C of labels.

    Call arguments:
        embeddings: (B, N, E)
        scores: (B, N, 2), shift and scale.

    Returns:
        Logits, float32 (B, N, C).

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.LabelSimilarity(labels=3)
    >>> tuple(layer(keras.ops.ones((2, 6, 8)), keras.ops.ones((2, 6, 2))).shape)
    (2, 6, 3)
    """

    def __init__(self, labels: int, **kwargs: typing.Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.labels = check_positive_integer("labels", labels)

    def build(self, embeddings_shape, scores_shape=None):
        width = embeddings_shape[-1]
        normal = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.kernel = self.add_weight((width, self.labels), normal, name="kernel")

    def call(self, embeddings, scores):
        embeddings, scores = (ops.cast(each, "float32") for each in (embeddings, scores))
        kernel = ops.convert_to_tensor(self.kernel)
        cosines = ops.matmul(_divided_by_length(embeddings, -1), _divided_by_length(kernel, 0))
        return (cosines + scores[..., :1]) * (ops.elu(scores[..., 1:]) + 1)

    def compute_output_shape(self, embeddings_shape, scores_shape=None):
        return (*embeddings_shape[:-1], self.labels)

    def compute_output_spec(self, embeddings, scores):
        return keras.KerasTensor(self.compute_output_shape(embeddings.shape), dtype="float32")

    def macs(self, embeddings_shape):
        """Multiply-accumulates for one image of a batch of shape (B, N, E)."""
        return embeddings_shape[1] * embeddings_shape[2] * self.labels


def _divided_by_length(vectors, axis):
    length = ops.sqrt(ops.sum(ops.square(vectors), axis=axis, keepdims=True))
    return vectors / (length + _EPSILON)
