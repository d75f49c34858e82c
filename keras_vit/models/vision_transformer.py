"""`VisionTransformer`, a functional model that leaves out what nobody reads. B batch, T tokens, D hidden."""

import contextlib
import functools

import keras

from keras_vit.layers import EncoderBlock, LayerNormalization, TokenPooling


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A functional model whose last encoder block computes no more tokens than are read behind it.

    Where the head reads the class token alone (ViT, arXiv 2010.11929, eq. 4), the last block is needed for that token
    only: the attention and the MLP of the others are not computed, and keys and values only with `qk_norm`. Outputs
    and gradients are the same, to rounding.

    Built, called and saved as any functional `keras.Model`. What its layers put out is as it was: a model made of them,
    `keras.Model(model.input, model.get_layer("encoder_norm").output)`, computes all tokens.
    """

    def call(self, inputs, training=None, mask=None, **kwargs):
        block, num_read = self._last_block
        with contextlib.nullcontext() if num_read is None else block.only_first(num_read):
            return super().call(inputs, training=training, mask=mask, **kwargs)

    @functools.cached_property
    def _last_block(self):
        """The last encoder block, and how many of its tokens, the first, are read behind it; `None`: all."""
        blocks = [layer for layer in self.layers if isinstance(layer, EncoderBlock)]
        if not blocks or blocks[-1].relative_positions:
            return None, None
        return blocks[-1], self._num_read(keras.tree.flatten(blocks[-1].output)[0])

    def _num_read(self, tokens):
        """How many, the first, of the tokens (B, T, D) of a Keras tensor are read; `None`: all."""
        if any(tokens is output for output in self.outputs):
            return None
        readers = [layer for layer in self.layers if any(tokens is x for x in keras.tree.flatten(layer.input))]
        counts = [self._num_read_by(layer) for layer in readers]
        return None if None in counts else max(counts)

    def _num_read_by(self, layer):
        if isinstance(layer, TokenPooling):
            return layer.index + 1
        return self._num_read(layer.output) if isinstance(layer, LayerNormalization) else None
