"""Converts configs of version 0.1 to current configs. In version 0.1, a block created its attention and MLP itself.

Each function returns a config in the format of `keras.saving.serialize_keras_object`.
"""

from keras_vit.layers.composite import entries_below


def encoder_block(config):
    """Returns the config of an `EncoderBlock`, or of a `MergingEncoderBlock` if the block merges tokens."""
    layer_arguments = {key: config[key] for key in ("name", "trainable", "dtype")}

    def part(class_name, name, **arguments):
        return _serialized(class_name, layer_arguments | arguments | {"name": name} | _quantization(config, name))

    epsilon, dropout_rate = config["layer_norm_epsilon"], config["dropout_rate"]
    attention = {
        "num_heads": config["num_heads"],
        "dropout_rate": config["attention_dropout_rate"],
        "qk_norm": config["qk_norm"],
        "layer_norm_epsilon": epsilon,
        "relative_positions": config.get("relative_positions", False),
    }
    mlp = {"mlp_dim": config["mlp_dim"], "activation": config["mlp"], "dropout_rate": dropout_rate}
    arguments = layer_arguments | {
        "attention": part("MultiHeadSelfAttention", "attention", **attention),
        "mlp": part("MlpBlock", "mlp", **mlp),
        "layer_norm_epsilon": epsilon,
        "dropout_rate": dropout_rate,
        "drop_path_rate": config["drop_path_rate"],
        "layer_scale": config["layer_scale"],
    }
    if not config.get("token_merging"):
        return _serialized("EncoderBlock", arguments)
    merging = {"num_merged": config["token_merging"], "num_prefix_tokens": config["num_prefix_tokens"]}
    return _serialized("MergingEncoderBlock", arguments | {"merging": part("TokenMerging", "merging", **merging)})


def axial_encoder_block(config):
    """Returns the config of an `AxialEncoderBlock`."""
    layer_arguments = {key: config[key] for key in ("name", "trainable", "dtype")}
    shared = {key: value for key, value in config.items() if key != "quantization"}
    blocks = {name: encoder_block(shared | {"name": name} | _quantization(config, name)) for name in ("row", "column")}
    return _serialized("AxialEncoderBlock", layer_arguments | blocks)


def _quantization(config, name):
    """Returns {"quantization": entries for the part `name`}, or an empty dictionary if there are no entries."""
    part_entries = entries_below(name, config.get("quantization", {}))
    return {"quantization": part_entries} if part_entries else {}


def _serialized(class_name, config):
    names = {"module": "keras_vit.layers", "class_name": class_name, "registered_name": f"keras_vit>{class_name}"}
    return names | {"config": config}
