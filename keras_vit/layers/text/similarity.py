"""The similarity of images and texts. Shapes: B images, N texts, E embedding."""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class Similarity(BaseLayer):
    """Makes vectors whose scalar products are the logits of image-text pairs.

    The logit of the image x and the text y is `exp(s) x·y / (|x| |y|) + b`, with a learned scale s (CLIP, arXiv
    2103.00020) and, for a sigmoid loss, a learned bias b (SigLIP, arXiv 2303.15343). It is the scalar product of
    `[exp(s) x / |x|, b]` and `[y / |y|, 1]`.

    Args:
        use_bias: Whether there is a bias.
        initial_scale: Initial value of exp(s).
        initial_bias: Initial value of b.

    Call arguments:
        image: (B, E), not normalised.
        text: (N, E), not normalised.

    Returns:
        A pair, float32 (B, E + 1) and (N, E + 1).

    Example:

    >>> import keras, keras_vit
    >>> layer = keras_vit.layers.Similarity()
    >>> image, text = layer(keras.ops.ones((2, 4)), keras.ops.ones((3, 4)))
    >>> keras.ops.matmul(image, keras.ops.transpose(text)).shape
    TensorShape([2, 3])
    """

    def __init__(
        self,
        use_bias: bool = False,
        initial_scale: float = 1 / 0.07,
        initial_bias: float = -10.0,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.use_bias = check_flag("use_bias", use_bias)
        self.initial_scale, self.initial_bias = initial_scale, initial_bias

    def build(self, image_shape, text_shape):
        constant = keras.initializers.Constant
        self.log_scale = self.add_weight((), constant(math.log(self.initial_scale)), name="log_scale")
        if self.use_bias:
            self.bias = self.add_weight((), constant(self.initial_bias), name="bias")

    def call(self, image, text):
        image, text = (ops.normalize(ops.cast(each, "float32"), axis=-1) for each in (image, text))
        bias = ops.zeros_like(image[:, :1]) + (self.bias if self.use_bias else 0.0)
        scaled = ops.concatenate([ops.exp(self.log_scale) * image, bias], axis=-1)
        return scaled, ops.concatenate([text, ops.ones_like(text[:, :1])], axis=-1)

    def compute_output_shape(self, image_shape, text_shape):
        return tuple((*shape[:-1], shape[-1] + 1) for shape in (image_shape, text_shape))
