"""The head of OWL-ViT. Shapes: B batch, h w patches, N = h w, T tokens, D hidden, E embedding."""

import functools
import math
import typing

import keras
from keras import ops

from keras_vit.architectures.base import optional
from keras_vit.checks import check_flag, check_positive_integer
from keras_vit.heads.dense_head import DenseHead, hidden_values, patch_map
from keras_vit.layers.ops.maps import as_pixels
from keras_vit.layers.transformer.layer_normalization import LayerNormalization

_PRIOR = 0.01
"""Initial probability of a label (RetinaNet, arXiv 1708.02002, section 3.3)"""


@keras.saving.register_keras_serializable(package="keras_vit")
class BoxHead(DenseHead):
    """Predicts a box and an embedding for each patch.

    "Simple Open-Vocabulary Object Detection with Vision Transformers" (OWL-ViT, arXiv 2205.06230, section 3.1). The
    patch tokens are multiplied by the class token and normalised. An MLP with two hidden layers predicts a box, in
    relation to the place of the patch (the layer `PatchBoxes`). A linear layer predicts an embedding, and two others
    the shift and the scale of its scores. The scores of labels are the cosines of this embedding and the embeddings of
    labels (the layer `LabelSimilarity`), which are learned, or come from a text encoder.

    Args:
        embedding_dim: Width E of the embeddings. `None`: the width of the encoder.
        use_class_token: Whether the patch tokens are multiplied by the class token.
        use_objectness: Whether a further MLP predicts how likely it is that there is any object (OWLv2, arXiv
            2306.09683). Its gradient does not reach the encoder.
        taps: Indices of the blocks, counted from 0. `None`: the last block.
        use_norm: Whether the encoder's final LayerNorm is applied to the tap.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder. Only their size is used.
        taps: List with the tokens of a block, (B, T, D).
        images: (B, H, W, C), not used.
        training: Whether gradients are computed.

    Returns:
        A tuple.

        * Embeddings of the patches, (B, N, E).
        * Shift and scale of the scores, (B, N, 2).
        * The last hidden layer of the MLP for boxes, (B, N, D).
        * With `use_objectness`, the logits of objectness, (B, N, 1).

    Raises:
        ValueError: If an argument is invalid, or if the encoder has no class token.

    Example:

    >>> import keras, keras_vit
    >>> patches, tokens = keras.ops.ones((2, 3, 4, 8)), keras.ops.ones((2, 13, 8))
    >>> embeddings, *_ = keras_vit.heads.BoxHead(embedding_dim=5)(patches, [tokens], None)
    >>> tuple(embeddings.shape)
    (2, 12, 5)
    """

    def __init__(
        self,
        embedding_dim: int | None = None,
        use_class_token: bool = True,
        use_objectness: bool = False,
        taps: typing.Sequence[int] | None = None,
        use_norm: bool = True,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(taps, use_norm, **kwargs)
        self.embedding_dim = optional(check_positive_integer)("embedding_dim", embedding_dim)
        self.use_class_token = check_flag("use_class_token", use_class_token)
        self.use_objectness = check_flag("use_objectness", use_objectness)

    def build(self, patches_shape, taps_shape=None, images_shape=None):
        width, normal = patches_shape[-1], keras.initializers.RandomNormal(stddev=1e-6)
        shape = (None, None, width)
        dense = functools.partial(self.build_part, keras.layers.Dense, input_shape=shape)
        prior = keras.initializers.Constant(math.log(_PRIOR / (1 - _PRIOR)))
        self.norm = self.build_part(LayerNormalization, "norm", shape, 1e-5)
        self.box_mlp = [dense(name=f"box_mlp_{i}", units=width) for i in range(2)]
        self.embedding = dense(name="embedding", units=self.embedding_dim or width, kernel_initializer=normal)
        self.shift = dense(name="shift", units=1, kernel_initializer="zeros", bias_initializer=prior)
        self.scale = dense(name="scale", units=1, kernel_initializer="zeros")
        self.objectness_mlp = []
        if self.use_objectness:
            self.objectness_mlp = [dense(name=f"objectness_mlp_{i}", units=width) for i in range(2)]
            self.objectness = dense(name="objectness_mlp_2", units=1)

    def call(self, patches, taps, images=None, training=None):
        [tokens] = taps
        x = as_pixels(patch_map(tokens, patches))
        x = self.norm(x * tokens[:, :1] if self.use_class_token else x)
        scores = ops.concatenate([self.shift(x), self.scale(x)], axis=-1)
        outputs = self.embedding(x), scores, hidden_values(self.box_mlp, x, "gelu_exact", training)
        if not self.use_objectness:
            return outputs
        values = hidden_values(self.objectness_mlp, ops.stop_gradient(x), "gelu_exact", training)
        return *outputs, self.objectness(values)

    def compute_output_shape(self, patches_shape, taps_shape=None, images_shape=None):
        batch, height, width, hidden_dim = patches_shape
        num_patches = None if None in (height, width) else height * width
        widths = [self.embedding_dim or hidden_dim, 2, hidden_dim, *[1] * self.use_objectness]
        return tuple((batch, num_patches, width) for width in widths)

    def macs(self, patches_shape):
        """Multiply-accumulates for one image of a batch of shape (B, h, w, D)."""
        layers = [*self.box_mlp, self.embedding, self.shift, self.scale, *self.objectness_mlp]
        layers += [self.objectness] if self.use_objectness else []
        return math.prod(patches_shape[1:3]) * sum(math.prod(layer.kernel.shape) for layer in layers)
