"""A head without layers of its own except a batch norm. Shapes: B batch, h w patches, H W image, T tokens, D hidden."""

import typing

import keras
from keras import ops

from keras_vit.checks import check_flag
from keras_vit.heads.dense_head import DenseHead, patch_map, with_class_token
from keras_vit.layers.convolutional.parts import batch_norm


@keras.saving.register_keras_serializable(package="keras_vit")
class LinearHead(DenseHead):
    """Joins the patch tokens of one block or several. A linear layer then predicts the output of each patch.

    DINOv2 (arXiv 2304.07193, section 7.4) measures features with this head: for segmentation, a batch norm and a linear
    layer on the last block ("linear") or on four blocks ("+ms"); for depth, a linear layer on patch tokens that are
    joined with the class token ("lin. 1", "lin. 4"). The linear layer is the layer `predictions` of the model.

    Args:
        taps: Indices of the blocks, counted from 0. `None`: the last block.
        use_norm: Whether the encoder's final LayerNorm is applied to each tap.
        use_class_token: Whether each patch token is joined with the class token.
        use_batch_norm: Whether there is a batch norm. Its epsilon is 1e-5.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder. Only their size is used.
        taps: List of tokens (B, T, D).
        images: (B, H, W, C), not used.
        training: Whether the batch norm computes its statistics from the batch.

    Returns:
        (B, h, w, number of taps x D), or twice the number of channels with the class token.

    Example:

    >>> import keras, keras_vit
    >>> patches, tokens = keras.ops.ones((2, 3, 4, 8)), keras.ops.ones((2, 13, 8))
    >>> tuple(keras_vit.heads.LinearHead(taps=(1, 3))(patches, [tokens, tokens], patches).shape)
    (2, 3, 4, 16)
    """

    def __init__(
        self,
        taps: typing.Sequence[int] | None = None,
        use_norm: bool = True,
        use_class_token: bool = False,
        use_batch_norm: bool = True,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(taps, use_norm, **kwargs)
        self.use_class_token = check_flag("use_class_token", use_class_token)
        self.use_batch_norm = check_flag("use_batch_norm", use_batch_norm)

    def build(self, patches_shape, taps_shape=None, images_shape=None):
        if self.use_batch_norm:
            shape = self.compute_output_shape(patches_shape, taps_shape)
            self.batch_norm = self.build_part(batch_norm, "batch_norm", shape)

    def call(self, patches, taps, images, training=None):
        read = with_class_token if self.use_class_token else patch_map
        maps = ops.concatenate([read(tokens, patches) for tokens in taps], axis=-1)
        return self.batch_norm(maps, training=training) if self.use_batch_norm else maps

    def compute_output_shape(self, patches_shape, taps_shape=None, images_shape=None):
        return (*patches_shape[:3], len(taps_shape) * patches_shape[-1] * (1 + self.use_class_token))

    def macs(self, patches_shape):
        """Multiply-accumulates for one image: none."""
        return 0
