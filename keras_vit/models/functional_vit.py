"""A functional model whose last block computes only the tokens that are used. Shapes: B batch, T tokens, D hidden."""

import functools

import keras

from keras_vit.graph import as_inputs, calls, run_operations
from keras_vit.layers import EncoderBlock, LayerNormalization, TokenPooling
from keras_vit.layers.transformer.few_queries import can_compute_first, first_tokens
from keras_vit.models.step_variables import created_outside_the_step


@keras.saving.register_keras_serializable(package="keras_vit")
class FunctionalViT(keras.Model):
    """A functional model whose last encoder block computes only the tokens that are used after it.

    If the head reads only the class token (ViT, arXiv 2010.11929, eq. 4), the last block computes its attention and MLP
    for that token alone. For a single query, the same attention can be computed directly from the tokens, without
    first computing their keys and values (`layers/transformer/few_queries.py` has the equations). With `qk_norm`,
    rotary positions or quantized kernels, keys and values are computed as usual. Outputs and gradients are the same up
    to rounding.

    The model is built, called and saved like any functional `keras.Model`. A new model made of its layers, such as
    `keras.Model(model.input, model.get_layer("encoder_norm").output)`, computes all tokens.

    On TensorFlow, the first step of `fit` and `evaluate` is traced once, not twice as in other Keras models.
    """

    def make_train_function(self, force=False):
        if self.optimizer is not None and not self.optimizer.built:  # In the step, this would take longer.
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def train_step(self, *arguments):
        with created_outside_the_step():
            return super().train_step(*arguments)

    def test_step(self, *arguments):
        with created_outside_the_step():
            return super().test_step(*arguments)

    def call(self, inputs, training=None, mask=None, **kwargs):
        block, num_outputs = self._last_block()
        if num_outputs is None or mask is not None or kwargs:
            return super().call(inputs, training=training, mask=mask, **kwargs)

        def call_of(operation):
            options = {"training": training} if training is not None and isinstance(operation, keras.Layer) else {}
            if operation is block:
                return functools.partial(first_tokens, block, num_outputs=num_outputs, **options)
            return functools.partial(operation, **options)

        return run_operations(self, as_inputs(self, inputs), call_of)

    def _last_block(self):
        """Returns the last block, and how many of its first tokens are used. Both are `None` if all tokens are used."""
        blocks = [layer for layer in self.layers if isinstance(layer, EncoderBlock)]
        block_calls = [node for node in calls(self) if blocks and node.operation is blocks[-1]]
        if len(block_calls) != 1:
            return None, None
        [block], [call] = blocks[-1:], block_calls
        tokens, *sizes = call.outputs
        number = None if any(map(self._is_read, sizes)) else self._num_read(tokens)
        if number is None or not can_compute_first(block, number, tokens.shape):
            return None, None
        return block, number

    def _readers(self, tensor):
        return [node for node in calls(self) if any(tensor is value for value in node.input_tensors)]

    def _is_read(self, tensor):
        return bool(self._readers(tensor)) or any(tensor is output for output in self.outputs)

    def _num_read(self, tokens):
        """Returns how many of the first tokens are used. `None` means all tokens or an unknown number."""
        if any(tokens is output for output in self.outputs):
            return None
        counts = [self._num_read_by(node) for node in self._readers(tokens)]
        return None if None in counts else max(counts, default=None)

    def _num_read_by(self, node):
        layer = node.operation
        if isinstance(layer, TokenPooling):
            return layer.index + 1 if layer.index >= 0 else None
        return self._num_read(node.outputs[0]) if isinstance(layer, LayerNormalization) else None


# Keras's .h5 files contain the name of a model's class without its package.
keras.saving.get_custom_objects()["FunctionalViT"] = FunctionalViT
