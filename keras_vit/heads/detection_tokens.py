"""The head of YOLOS. Shapes: B batch, h w patches, T tokens, D hidden, Q detection tokens."""

import functools
import typing

import keras
from keras import ops

from keras_vit.checks import check_positive_integer
from keras_vit.heads.dense_head import DenseHead, hidden_values


@keras.saving.register_keras_serializable(package="keras_vit")
class DetectionTokens(DenseHead):
    """Learned tokens that pass the whole encoder together with its tokens, each of which predicts one object.

    "You Only Look at One Sequence" (YOLOS, arXiv 2106.00666, section 3.1). The layer `detection_tokens` of the
    encoder puts Q learned tokens in front of the patches. YOLOS puts them behind the patches, which leads to the same
    outputs. They have rows in the position table only in models with published weights: a row is added to its token, so
    the token alone can learn the sum. An MLP predicts the class of each token, and another one its box. The last layers
    of these MLPs are the layers `predictions` and `head_boxes` of the model.

    Args:
        num_tokens: Number Q of detection tokens, the maximum number of objects in an image.
        taps: Indices of the blocks, counted from 0. `None`: the last block.
        use_norm: Whether the encoder's final LayerNorm is applied to the tap.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder. Only their size is used.
        taps: List with the tokens of a block, (B, T, D).
        images: (B, H, W, C), not used.
        training: Whether gradients are computed.

    Returns:
        A pair, the last hidden layers of the MLPs for classes and for boxes, both (B, Q, D).

    Raises:
        ValueError: If `num_tokens` is invalid, or the blocks of the encoder do not accept further tokens.

    Example:

    >>> import keras, keras_vit
    >>> patches, tokens = keras.ops.ones((2, 3, 4, 8)), keras.ops.ones((2, 1 + 5 + 12, 8))
    >>> classes, boxes = keras_vit.heads.DetectionTokens(num_tokens=5)(patches, [tokens], None)
    >>> tuple(classes.shape), tuple(boxes.shape)
    ((2, 5, 8), (2, 5, 8))
    """

    def __init__(
        self,
        num_tokens: int = 100,
        taps: typing.Sequence[int] | None = None,
        use_norm: bool = True,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(taps, use_norm, **kwargs)
        self.num_tokens = check_positive_integer("num_tokens", num_tokens)

    def for_encoder(self, config):
        if config.axial:
            raise ValueError("Axial blocks accept no tokens besides those of the patches. Use a BoxHead.")
        return super().for_encoder(config)

    def build(self, patches_shape, taps_shape=None, images_shape=None):
        width = patches_shape[-1]
        dense = functools.partial(self.build_part, keras.layers.Dense, input_shape=(None, None, width), units=width)
        self.class_mlp = [dense(name=f"class_mlp_{i}") for i in range(2)]
        self.box_mlp = [dense(name=f"box_mlp_{i}") for i in range(2)]

    def call(self, patches, taps, images=None, training=None):
        [tokens] = taps
        height, width = ops.shape(patches)[1:3]
        end = ops.shape(tokens)[1] - height * width
        detections = tokens[:, end - self.num_tokens : end]
        return tuple(hidden_values(mlp, detections, "relu", training) for mlp in (self.class_mlp, self.box_mlp))

    def compute_output_shape(self, patches_shape, taps_shape=None, images_shape=None):
        return ((patches_shape[0], self.num_tokens, patches_shape[-1]),) * 2

    def macs(self, patches_shape):
        """Multiply-accumulates for one image of a batch of shape (B, h, w, D)."""
        return 4 * self.num_tokens * patches_shape[-1] ** 2
