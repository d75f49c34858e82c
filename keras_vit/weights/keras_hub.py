"""KerasHub's ViT presets: a folder of `config.json`, `model.weights.h5` and, with a head, `task.json`,
`task.weights.h5`.

Keras names the layers in a file by their classes, in snake case, and numbers the variables of each.
"""

import re

from keras_vit.config import ViTConfig
from keras_vit.weights.checkpoint import Checkpoint, Renamed
from keras_vit.weights.names import Names, Rule, block_rules

_EMBEDDING = "vi_t_patching_and_embedding"
_BLOCK = "vi_t_encoder/encoder_layers/vi_t_encoder_block_{i}/"


def _pair_of(name, path, first, second):
    return Rule(f"{name}/vars/0", f"{path}/{first}"), Rule(f"{name}/vars/1", f"{path}/{second}")


def _norm(name, path):
    return _pair_of(name, path, "gamma", "beta")


def _dense(name, path):
    return _pair_of(name, path, "kernel", "bias")


NAMES = Names(
    (
        Rule(f"{_EMBEDDING}/vars/0", "class_token/token"),
        *_dense(f"{_EMBEDDING}/patch_embedding", "patch_embedding"),
        Rule(f"{_EMBEDDING}/position_embedding/vars/0", "position_embedding/embedding"),
        *block_rules(_BLOCK, _norm("layer_norm_1", "attention_norm")),
        *block_rules(_BLOCK, _dense("mha/query_dense", "attention/query")),
        *block_rules(_BLOCK, _dense("mha/key_dense", "attention/key")),
        *block_rules(_BLOCK, _dense("mha/value_dense", "attention/value")),
        *block_rules(_BLOCK, _dense("mha/output_dense", "attention/output")),
        *block_rules(_BLOCK, _norm("layer_norm_2", "mlp_norm")),
        *block_rules(_BLOCK, _dense("mlp/dense_1", "mlp/hidden")),
        *block_rules(_BLOCK, _dense("mlp/dense_2", "mlp/output")),
        *_norm("vi_t_encoder/layer_norm", "encoder_norm"),
        *_dense("pre_logits", "pre_logits"),
        *_dense("predictions", "predictions"),
    ),
)
"""The table, with every block numbered and the head's layers by their names, as `_renamed` gives them."""

_PREFIX = re.compile(r"^layers/(vi_t_backbone/layers/)?")


def recognises(file):
    """Whether a file has KerasHub's names."""
    return any(f"{_EMBEDDING}/patch_embedding/vars/0" in name for name in file)


def describe(file, hints):
    """The `Checkpoint` of a preset: its two weight files as one mapping, its config and task as `hints.config`.

    Raises:
        ValueError: If the config is missing, or says what has no part here.
    """
    if hints.config.get("class_name") != "ViTBackbone":
        raise ValueError(
            f"A KerasHub preset needs its config.json beside the weights, of class ViTBackbone. Received: class "
            f"{hints.config.get('class_name')!r}"
        )
    settings = hints.config["config"]
    task = hints.config.get("task", {}).get("config", {})
    everything, file = file, _renamed(file, task)
    height, width, _ = settings["image_shape"]
    patch = tuple(settings["patch_size"]) if isinstance(settings["patch_size"], list) else (settings["patch_size"],) * 2
    config = ViTConfig(
        patch_size=patch[0] if patch[0] == patch[1] else patch,
        hidden_dim=settings["hidden_dim"],
        num_layers=settings["num_layers"],
        num_heads=settings["num_heads"],
        mlp_dim=settings["mlp_dim"],
        pooling=_pooling(settings, task),
        class_token=settings["use_class_token"],
        position_interpolation="bilinear",
        representation_dim=task.get("intermediate_dim"),
        mlp="gelu_exact",
        layer_norm_epsilon=settings["layer_norm_epsilon"],
    )
    return Checkpoint(
        source=hints.source,
        format="keras_hub",
        config=config,
        grid_size=(height // patch[0], width // patch[1]),
        classes=task.get("num_classes"),
        image_size=(height, width),
        pixels=_pixels(hints.processor, (height, width)),
        read=lambda: NAMES.decode(file, config.num_heads),
        skipped=file.left_out(everything),
    )


def _renamed(file, task):
    names = {}
    head = ["pre_logits", "predictions"] if task.get("intermediate_dim") else ["predictions"]
    heads = dict(zip(["dense/", "dense_1/"], head, strict=False))
    for old in file:
        if old.startswith("optimizer/"):
            continue
        new = _PREFIX.sub("", old)
        new = re.sub(r"vi_t_encoder_block/", "vi_t_encoder_block_0/", new)
        for layer, name in heads.items():
            if new.startswith(layer):
                new = f"{name}/{new.removeprefix(layer)}"
        names[new] = old
    return Renamed(file, names)


def _pooling(settings, task):
    if task.get("pooling", "token") == "token":
        return "token" if settings["use_class_token"] else "avg"
    if settings["use_class_token"]:
        raise ValueError(
            "The preset averages the class token together with the patches; no pooling here does. Load its backbone "
            "with include_top=False and pooling='token' or None."
        )
    return "avg"


def _pixels(converter, image_size):
    """Arguments of `Preprocessing` from the preset's image converter."""
    settings = converter.get("config", {})
    if settings.get("scale") is None:
        return None
    scale, offset = settings["scale"], settings.get("offset") or 0.0
    scales, offsets = (value if isinstance(value, list) else [value] for value in (scale, offset))
    std = [1 / (255 * value) for value in scales]
    mean = [-shift * deviation for shift, deviation in zip(offsets, std, strict=True)]
    return {
        "mean": mean[0] if len(set(mean)) == 1 else tuple(mean),
        "std": std[0] if len(set(std)) == 1 else tuple(std),
        "resize": image_size,
        "crop": None,
        "interpolation": settings.get("interpolation", "bilinear"),
    }
