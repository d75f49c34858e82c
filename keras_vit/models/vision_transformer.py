"""`VisionTransformer`, a functional model that leaves out what nobody reads. B batch, T tokens, D hidden."""

import contextlib
import functools

import keras

from keras_vit.layers import EncoderBlock, LayerNormalization, TokenPooling


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(keras.Model):
    """A functional model whose last encoder block computes no more tokens than are read behind it.

    Where the head reads the class token alone (ViT, arXiv 2010.11929, eq. 4), eq. 3 of the last block is needed for that
    token only, and of eq. 2 its row. The other tokens' queries, their projections and their MLP, five sixths of the
    block, are not computed. Outputs and gradients are the same, to rounding.

    Built and saved as any functional `keras.Model`. Its layers are as they are: a model made of their inputs and outputs,
    `keras.Model(model.input, model.get_layer("encoder_norm").output)`, computes all tokens.
    """

    def call(self, inputs, training=None, mask=None):
        block, num_read = self._read_of_last_block
        with contextlib.nullcontext() if num_read is None else block.only_first(num_read):
            return super().call(inputs, training=training, mask=mask)

    @functools.cached_property
    def _read_of_last_block(self):
        """The last encoder block, and how many of its tokens, the first, are read behind it; `None`: all."""
        blocks = [layer for layer in self.layers if isinstance(layer, EncoderBlock)]
        if not blocks or blocks[-1].relative_positions:
            return None, None
        return blocks[-1], self._num_read(keras.tree.flatten(blocks[-1].output)[0])

    def _num_read(self, tokens):
        """How many, the first, of the tokens (B, T, D) of a Keras tensor are read; `None`: all."""
        if any(tokens is output for output in self.outputs):
            return None
        counts = []
        for layer in self.layers:
            if any(tokens is value for value in keras.tree.flatten(layer.input)):
                if isinstance(layer, TokenPooling):
                    counts.append(layer.index + 1)
                elif isinstance(layer, LayerNormalization):
                    counts.append(self._num_read(layer.output))
                else:
                    counts.append(None)
        return None if None in counts else max(counts)
