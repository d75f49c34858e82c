"""The base class of heads on the patches of an encoder. Shapes: B batch, h w patches, T tokens, D hidden."""

import typing

from keras import ops

from keras_vit.checks import check_flag
from keras_vit.layers.base import BaseLayer
from keras_vit.layers.ops.activations import activate


class DenseHead(BaseLayer):
    """A head that reads the outputs of encoder blocks, called taps.

    Class attributes:
        NUM_TAPS: Number of evenly spaced blocks that are read by default. The last one is the last block.

    Attributes:
        use_class_token: Whether each patch token is joined with the class token.

    Args:
        taps: Indices of the blocks, counted from 0. `None`: the default for the number of blocks of the encoder.
        use_norm: Whether the encoder's final LayerNorm is applied to each tap.

    Call arguments:
        patches: (B, h, w, D), the embedded patches of the encoder. Only their size is used.
        taps: List of tokens (B, T, D). The last h w tokens are those of the patches.
        images: (B, H, W, C). Only their size is used.
    """

    NUM_TAPS: typing.ClassVar[int] = 1
    use_class_token = False

    def __init__(self, taps: typing.Sequence[int] | None = None, use_norm: bool = True, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        self.taps = None if taps is None else _checked_taps(taps)
        self.use_norm = check_flag("use_norm", use_norm)

    def for_encoder(self, config):
        """Returns an unbuilt copy of this head for an encoder.

        Args:
            config: `ViTConfig` of the encoder.

        Raises:
            ValueError: If the encoder does not have the blocks of the taps, or tokens that the head reads.
        """
        if config.token_merging:
            raise ValueError("The head reads one token for each patch. Use an encoder with token_merging=0.")
        if self.use_class_token and not config.has_class_token:
            raise ValueError("The encoder has no class token. Use a head with use_class_token=False or readout=None.")
        count = config.num_layers
        if count < self.NUM_TAPS:
            raise ValueError(f"The head reads {self.NUM_TAPS} blocks. Received: an encoder with {count} blocks")
        taps = self.taps or [(i + 1) * count // self.NUM_TAPS - 1 for i in range(self.NUM_TAPS)]
        if max(taps) >= count:
            raise ValueError(f"taps must be from 0 to {count - 1} for {count} blocks. Received: taps={tuple(taps)}")
        return self.with_arguments(taps=tuple(taps))

    def with_arguments(self, **changes):
        """Returns an unbuilt copy of this head with other arguments."""
        return self.from_config(self.get_config() | changes)

    @property
    def arguments(self):
        """{argument: value} of this head."""
        return self._arguments()


def _checked_taps(taps):
    is_list = isinstance(taps, (tuple, list)) and len(taps) > 0
    if not is_list or not all(type(tap) is int and tap >= 0 for tap in taps) or sorted(set(taps)) != list(taps):
        raise ValueError(f"taps must be indices of blocks in increasing order, such as (2, 5, 8). Received: {taps!r}")
    return tuple(taps)


def patch_map(tokens, patches):
    """The tokens of the patches as a map (B, h, w, D), from tokens (B, T, D) and patches (B, h, w, any)."""
    height, width = ops.shape(patches)[1:3]
    return ops.reshape(tokens[:, -height * width :], (-1, height, width, tokens.shape[-1]))


def with_class_token(tokens, patches):
    """The tokens of the patches, each joined with the class token: (B, h, w, 2 D)."""
    maps = patch_map(tokens, patches)
    class_token = ops.broadcast_to(tokens[:, :1, None], (*ops.shape(maps)[:3], maps.shape[-1]))
    return ops.concatenate([maps, class_token], axis=-1)


def hidden_values(layers, x, activation, training=None):
    """The values (..., D) behind the hidden layers of an MLP, for values x (..., D)."""
    for layer in layers:
        x = activate(activation, layer(x), training)
    return x
