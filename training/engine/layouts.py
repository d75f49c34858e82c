"""Layouts of variables on a mesh of devices with the axes "batch" and "model", for `model_parallel`.

The axis "model" is used for tensor parallelism as in Megatron-LM (arXiv 1909.08053, section 3): its devices share the
heads of an attention and the hidden width of an MLP. A block sums over these devices twice, after the attention and
after the MLP. Shapes: D hidden width, K heads, Dh width of a head, M width of the MLP.
"""

import keras

from keras_vit.architectures.stem import StemConfig
from training.errors import InputError

# Pattern of a variable's path, and the axis of the mesh along which each dimension of the variable is split. The axis
# "batch" is used only with `shard_weights`, which splits matrices over its devices, too (FSDP, arXiv 2304.11277). It
# splits them along D, because every matrix has this dimension, and D has many divisors.
#
# A pattern must match the whole path. It starts with ".*", because a path may start with the name of an outer model. It
# ends with the variable's name. Otherwise it could match "<layer>/output", the key of the layout of a layer's output.
_LAYOUTS = {
    r".*attention/(query|key|value)/kernel": ("batch", "model", None),  # (D, K, Dh)
    r".*attention/(query|key|value)/bias": ("model", None),  # (K, Dh)
    r".*attention/output/kernel": ("model", None, "batch"),  # (K, Dh, D)
    r".*mlp/hidden/kernel": ("batch", "model"),  # (D, M), for SwiGLU (D, 2M)
    r".*mlp/hidden/bias": ("model",),
    r".*mlp/output/kernel": ("model", "batch"),  # (M, D)
    r".*patch_embedding/kernel": (None, None, None, "batch"),  # (h, w, C, D)
    r".*position_embedding(_\d+)?/embedding": (None, "batch"),  # (rows, D)
    r".*(pre_logits|predictions)/kernel": ("batch", None),  # (D, classes)
    r".*(stem_conv(_\d+)?|/conv_\d+|/projection_conv)/kernel": (None, None, None, "batch"),
    # Vectors, and counters of steps and images, are replicated on every device.
    r".*(attention|mlp)/output/bias": (),
    r".*(patch_embedding|pre_logits|predictions)/bias": (),
    r".*/(gamma|beta|moving_mean|moving_variance|token|tokens|probe|frequencies)": (),
    r".*position_embedding(_\d+)?/(prefix|rows|columns)": (),  # A few rows of width D or D / 2.
    r".*preprocessing/normalization": (),  # (2, channels)
    r".*relative_position/embedding": (),  # (2T - 1, Dh)
    r".*/(seed_generator_state|iteration|learning_rate|step_counter|dynamic_scale|total|count)": (),
}


def layout_map(device_mesh, shard_weights):
    """The layouts of all variables of the package's models and of their optimizers.

    In Keras, each variable of an optimizer, such as a momentum, has the layout of its weight.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with the axes "batch" and "model".
        shard_weights: Whether matrices are also split along the axis "batch".

    Returns:
        A `keras.distribution.LayoutMap`.
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    for pattern, axes in _LAYOUTS.items():
        layouts[pattern] = tuple(None if axis == "batch" and not shard_weights else axis for axis in axes)
    # The output of a block (B, T, D) is split along B only. Otherwise XLA may split it along D, like the weights, and
    # exchange activations between devices instead of gathering weights.
    layouts[r".*encoder_block_\d+/output"] = ("batch", None, None)
    return layouts


def check_divisible(config, device_mesh, shard_weights):
    """Checks that the dimensions of a model are divisible by the number of devices.

    Args:
        config: `keras_vit.ViTConfig`
        device_mesh: `keras.distribution.DeviceMesh` with the axes "batch" and "model".
        shard_weights: As in `layout_map`.

    Raises:
        InputError: If a dimension is not divisible by the number of devices that it is split over.
    """
    batch_devices, model_devices = device_mesh.shape
    shared = {name: getattr(config, name) for name in ("num_heads", "mlp_dim", "pooling_num_heads", "pooling_mlp_dim")}
    _check_shared(shared, model_devices, "distribution.model_devices")
    if shard_weights:
        widths = {"hidden_dim": config.hidden_dim, "representation_dim": config.representation_dim}
        if isinstance(config.stem, StemConfig):
            widths["stem.width"] = config.stem.width
        elif config.stem is not None:
            widths |= {f"stem.widths[{i}]": width for i, width in enumerate(config.stem.widths)}
        _check_shared(widths, batch_devices, "distribution.shard_weights")


def _check_shared(sizes, devices, field):
    for name, size in sizes.items():
        if size is not None and size % devices:
            raise InputError(
                f"The model's {name} must be a multiple of the {devices} devices that share it. Received: {size}. "
                f"Change {field}, or choose another model."
            )
