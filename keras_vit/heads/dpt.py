"""The head of DPT. Shapes: B batch, h w patches, H W image, T tokens, D hidden, F features."""

import functools
import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_choice, check_positive_integer
from keras_vit.heads.dense_head import DenseHead, patch_map, with_class_token
from keras_vit.layers.convolutional.feature_fusion import FeatureFusion, small_kernel
from keras_vit.layers.ops.activations import ACTIVATIONS
from keras_vit.layers.ops.resizing import resize_bilinear


@keras.saving.register_keras_serializable(package="keras_vit")
class DPTHead(DenseHead):
    """Combines the tokens of four blocks to a map of higher resolution (DPT, arXiv 2103.13413, section 3).

    The patch tokens of the blocks are projected and resized to 4, 2, 1 and 1/2 times the size of the grid (reassemble),
    and 3 x 3 convolutions make F channels. From the coarsest map to the finest, `FeatureFusion` layers add and enlarge
    the maps. A last 3 x 3 convolution follows.

    There are two kinds of published heads. Depth Anything (arXiv 2401.10891) ignores the class token, its fusions have
    biases, and each fusion enlarges its result to the size of the next map. DINOv2 (arXiv 2304.07193) and TIPSv2 join
    each patch token with the class token (`readout`), their fusions have no biases, and each fusion doubles the size.

    Args:
        taps: Indices of the four blocks, counted from 0. `None`: four evenly spaced blocks.
        use_norm: Whether the encoder's final LayerNorm is applied to each tap.
        features: Number F of channels.
        widths: Four numbers of channels before the 3 x 3 convolutions. `None`: D / 8, D / 4, D / 2 and D.
        readout: `None`: the class token is ignored. `"gelu_exact"` or `"gelu_tanh"`: patch tokens are joined with the
            class token and projected to D channels, with this activation.
        output: The last convolution. `"relu"` or `"linear"`: F channels and this activation. `"image"` or `"double"`:
            F / 2 channels and no activation, and the result is resized with aligned corners to the size of the image,
            or to the double size. With `"double"`, a convolution with F channels and a ReLU comes before.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder. Only their size is used.
        taps: List of four tensors of tokens, (B, T, D).
        images: (B, H, W, C). Only their size is used.

    Returns:
        (B, 8 h, 8 w, F), or as `output` describes. With a readout, h and w are rounded up to even numbers.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import keras, keras_vit
    >>> patches, tokens = keras.ops.ones((2, 2, 4, 8)), keras.ops.ones((2, 9, 8))
    >>> tuple(keras_vit.heads.DPTHead(features=6)(patches, [tokens] * 4, patches).shape)
    (2, 16, 32, 6)
    """

    NUM_TAPS = 4

    def __init__(
        self,
        taps: typing.Sequence[int] | None = None,
        use_norm: bool = True,
        features: int = 256,
        widths: typing.Sequence[int] | None = None,
        readout: str | None = None,
        output: str = "relu",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(taps, use_norm, **kwargs)
        self.features = check_positive_integer("features", features)
        self.widths = None if widths is None else [check_positive_integer("widths", width) for width in widths]
        self.readout = readout if readout is None else check_choice("readout", readout, ("gelu_exact", "gelu_tanh"))
        self.use_class_token = self.readout is not None
        self.output_kind = check_choice("output", output, ("relu", "linear", "image", "double"))
        for name, values in (("taps", self.taps), ("widths", self.widths)):
            if values is not None and len(values) != self.NUM_TAPS:
                raise ValueError(f"{name} must have four numbers. Received: {name}={values}")

    ATTRIBUTES: typing.ClassVar = {"output": "output_kind"}

    def build(self, patches_shape, taps_shape=None, images_shape=None):
        width = patches_shape[-1]
        widths = self.widths or [width // 8, width // 4, width // 2, width]
        dense = functools.partial(self.build_part, keras.layers.Dense, kernel_initializer=small_kernel())
        self.readouts = []
        if self.readout is not None:
            self.readouts = [dense(f"readout_{i}", (None, 2 * width), width) for i in range(4)]
        shapes = [(None, None, None, channels) for channels in widths]
        self.projections = [dense(f"projection_{i}", (None, width), widths[i]) for i in range(4)]
        self.resizes = [
            self._conv(keras.layers.Conv2DTranspose, "resize_0", shapes[0], widths[0], 4, strides=4),
            self._conv(keras.layers.Conv2DTranspose, "resize_1", shapes[1], widths[1], 2, strides=2),
            self._conv(keras.layers.Conv2D, "resize_3", shapes[3], widths[3], 3, strides=2),
        ]
        conv = functools.partial(self._conv, keras.layers.Conv2D, kernel_size=3, padding="same")
        self.convs = [conv(f"conv_{i}", shapes[i], self.features, use_bias=False) for i in range(4)]
        shape = (None, None, None, self.features)
        arguments = self.features, self.readout is None
        self.fusions = [
            self.build_part(FeatureFusion, f"fusion_{i}", shape, *arguments, is_first=i == 0) for i in range(4)
        ]
        if self.output_kind in ("image", "double"):
            before = [conv("project", shape, self.features)] if self.output_kind == "double" else []
            self.output_convs = [*before, conv("output_conv", shape, self.features // 2)]
        else:
            self.output_convs = [conv("project", shape, self.features)]

    def _conv(self, create, name, input_shape, filters, kernel_size, **options):
        options = {"padding": "valid", "kernel_initializer": small_kernel(), **options, "data_format": "channels_last"}
        return self.build_part(create, name, input_shape, filters, kernel_size, **options)

    def call(self, patches, taps, images):
        maps = [conv(each) for conv, each in zip(self.convs, self.reassemble(patches, taps), strict=True)]
        maps = maps[::-1]  # From the coarsest to the finest.
        state = self.fusions[0](maps[0], size=self._size(maps, 1))
        for i in range(1, 4):
            state = self.fusions[i](state, maps[i], size=self._size(maps, i + 1))
        for conv in self.output_convs[:-1]:
            state = ops.relu(conv(state))
        state = self.output_convs[-1](state)
        if self.output_kind in ("relu", "linear"):
            return ops.relu(state) if self.output_kind == "relu" else state
        is_double = self.output_kind == "double"
        size = [2 * side for side in ops.shape(state)[1:3]] if is_double else ops.shape(images)[1:3]
        return resize_bilinear(state, size, align_corners=True)

    def _size(self, maps, i):
        """The size to which a fusion enlarges its result, where map i is the next one. `None`: twice the size."""
        return None if self.readout is not None or i == len(maps) else ops.shape(maps[i])[1:3]

    def compute_output_shape(self, patches_shape, taps_shape=None, images_shape=None):
        batch, *sides, _ = patches_shape
        if self.readout is not None:
            sides = [side and side + side % 2 for side in sides]
        scale = 16 if self.output_kind == "double" else 8
        sides = images_shape[1:3] if self.output_kind == "image" else [side and scale * side for side in sides]
        return (batch, *sides, self.features // (1 if self.output_kind in ("relu", "linear") else 2))

    def macs(self, patches_shape):
        """Multiply-accumulates for one image of a batch of shape (B, h, w, D)."""
        num_patches = math.prod(patches_shape[1:3])
        total = sum(math.prod(dense.kernel.shape) for dense in (*self.readouts, *self.projections))
        total += sum(math.prod(resize.kernel.shape) for resize in self.resizes[:2])
        total += math.prod(self.resizes[2].kernel.shape) / 4
        scales = (16, 4, 1, 1 / 4)
        total += sum(scale * math.prod(conv.kernel.shape) for scale, conv in zip(scales, self.convs, strict=True))
        total *= num_patches
        shapes = [(None, num_patches * scale, 1, self.features) for scale in reversed(scales)]
        total += sum(fusion.macs(shape) for fusion, shape in zip(self.fusions, shapes, strict=True))
        return int(total + 64 * num_patches * sum(math.prod(conv.kernel.shape) for conv in self.output_convs))

    def reassemble(self, patches, taps):
        """Maps of 4, 2, 1 and 1/2 times the size of the grid, from the tokens of four blocks."""
        maps = []
        for i, tokens in enumerate(taps):
            if self.readout is None:
                tokens = patch_map(tokens, patches)
            else:
                tokens = ACTIVATIONS[self.readout](self.readouts[i](with_class_token(tokens, patches)))
            maps.append(self.projections[i](tokens))
        # PyTorch pads both sides, so that the kernel is centred on every second patch.
        last = ops.pad(maps[3], ((0, 0), (1, 1), (1, 1), (0, 0)))
        return [self.resizes[0](maps[0]), self.resizes[1](maps[1]), maps[2], self.resizes[2](last)]
