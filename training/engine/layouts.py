"""How `model_parallel` lays variables out over a mesh of devices ("batch", "model").

Tensor parallelism as in Megatron-LM (arXiv 1909.08053, section 3): the devices of the axis "model" share the heads of
an attention and the hidden width of an MLP, so that a block needs one sum over them after each. D hidden width, K
heads, Dh width of a head, M MLP.
"""

import keras

from training.errors import InputError

# The pattern of a variable's path, and the axis of the mesh that each of its dimensions is cut along. "batch" holds
# with `shard_weights` only: then weights are kept in parts on the devices of that axis too, cut along D, which every
# matrix has and which divides well (FSDP, arXiv 2304.11277).
#
# A pattern has to match the whole path, and a path may have the name of an outer model before it: hence ".*". It ends
# with the variable's name, because Keras looks up the outputs of layers in the same table, as "<layer>/output".
_LAYOUTS = {
    r".*attention/(query|key|value)/kernel": ("batch", "model", None),  # (D, K, Dh)
    r".*attention/(query|key|value)/bias": ("model", None),  # (K, Dh)
    r".*attention/output/kernel": ("model", None, "batch"),  # (K, Dh, D)
    r".*mlp/hidden/kernel": ("batch", "model"),  # (D, M), of SwiGLU (D, 2M)
    r".*mlp/hidden/bias": ("model",),
    r".*mlp/output/kernel": ("model", "batch"),  # (M, D)
    r".*patch_embedding/kernel": (None, None, None, "batch"),  # (h, w, C, D)
    r".*position_embedding(_\d+)?/embedding": (None, "batch"),  # (rows, D)
    r".*(pre_logits|predictions)/kernel": ("batch", None),  # (D, classes)
    r".*(stem_conv|/conv_\d+|/projection_conv)/kernel": (None, None, None, "batch"),
    # Whole on every device: vectors, and what counts steps and images.
    r".*(attention|mlp)/output/bias": (),
    r".*(patch_embedding|pre_logits|predictions)/bias": (),
    r".*/(gamma|beta|token|tokens|probe)": (),
    r".*position_embedding(_\d+)?/(prefix|rows|columns)": (),  # Some rows, of D and of D / 2.
    r".*relative_position/embedding": (),  # (2T - 1, Dh)
    r".*/(seed_generator_state|iteration|learning_rate|step_counter|dynamic_scale|total|count)": (),
}


def layout_map(device_mesh, shard_weights):
    """The layout of every variable of the package's models, and of their optimizers.

    An optimizer's slots are laid out by Keras as the variables that they belong to.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with the axes "batch" and "model".
        shard_weights: Whether matrices are also cut along the axis "batch".

    Returns:
        A `keras.distribution.LayoutMap`.
    """
    layouts = keras.distribution.LayoutMap(device_mesh)
    for pattern, axes in _LAYOUTS.items():
        layouts[pattern] = tuple(None if axis == "batch" and not shard_weights else axis for axis in axes)
    # What a block returns (B, T, D) is cut by images alone. Left to itself, XLA may follow the weights' parts and cut
    # along D, and then it sends activations around where it should gather weights.
    layouts[r".*encoder_block_\d+/output"] = ("batch", None, None)
    return layouts


def check_divisible(config, device_mesh, shard_weights):
    """Refuses a model whose sizes the devices cannot share equally.

    Args:
        config: `keras_vit.ViTConfig`
        device_mesh: `keras.distribution.DeviceMesh` with the axes "batch" and "model".
        shard_weights: As for `layout_map`.

    Raises:
        InputError: If a size is not a multiple of the number of devices that share it.
    """
    batch_devices, model_devices = device_mesh.shape
    shared = {"num_heads": config.num_heads, "mlp_dim": config.mlp_dim}
    _check_shared(shared, model_devices, "distribution.model_devices")
    if shard_weights:
        widths = {"hidden_dim": config.hidden_dim, "representation_dim": config.representation_dim}
        if config.stem is not None:
            widths["stem.width"] = config.stem.width
        _check_shared(widths, batch_devices, "distribution.shard_weights")


def _check_shared(sizes, devices, field):
    for name, size in sizes.items():
        if size is not None and size % devices:
            raise InputError(
                f"The model's {name} must be a multiple of the {devices} devices that share it. Received: {size}. "
                f"Change {field}, or take another model."
            )
