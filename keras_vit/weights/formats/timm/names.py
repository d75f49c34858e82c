"""Names of the arrays in files of timm's classes `VisionTransformer` and `Eva`."""

import numpy as np

from keras_vit.weights.formats.names import Names, join_gates, read_rules, split_gates

_ALL_FREQUENCIES = "rotary/frequencies"  # The frequencies of all blocks, which are one array in a file.
_FREQUENCIES = "encoder_block_{i}/attention/rotary/frequencies"

# Only masked pre-training uses the decoder and the token that replaces masked patches.
NAMES = Names(read_rules("timm/names.txt"), ignored=(r"mask_token", r"decoder_.*", r".*\.bias_mask"))


def decode(file, config):
    """Converts a file's {name: array} to {canonical path: array} for a `ViTConfig`.

    Raises:
        ValueError: Same as in `Names.decode`.
    """
    weights = join_gates(NAMES.decode(file, config.num_heads, config.pooling_num_heads))
    if (all_frequencies := weights.pop(_ALL_FREQUENCIES, None)) is not None:
        if len(all_frequencies) != config.num_layers:
            raise ValueError(
                f"rope.freqs has frequencies for {len(all_frequencies)} blocks, but the model has {config.num_layers}."
            )
        weights |= {_FREQUENCIES.format(i=i): frequencies for i, frequencies in enumerate(all_frequencies)}
    return weights


def encode(weights, config, separate_gates=False):
    """Converts {canonical path: array} to {name in the file: array}.

    Args:
        weights: {canonical path: array}
        config: `ViTConfig`
        separate_gates: Whether gates and values of SwiGLU are separate arrays.

    Raises:
        ValueError: Same as in `Names.encode`.
    """
    weights = split_gates(weights) if separate_gates else dict(weights)
    paths = [_FREQUENCIES.format(i=i) for i in range(config.num_layers)]
    if paths[0] in weights:
        weights[_ALL_FREQUENCIES] = np.stack([weights.pop(path) for path in paths])
    return NAMES.encode(weights, config.num_heads)
