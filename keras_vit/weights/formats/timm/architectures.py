"""What timm's config.json does not say: settings that follow from the name of an architecture.

timm's `config.json` contains the name of the architecture. Its `model_args` contain only the arguments that differ from
the defaults of the architecture. Many settings, such as the number of heads, the LayerNorm epsilon or rotary positions,
cannot be seen in the arrays either. An architecture is therefore read only if its name is in `architectures.toml` and
its arguments are in `settings.toml`. `make support-matrix` compares the results with timm.
"""

import re

from keras_vit.architectures.rotary import RotaryConfig
from keras_vit.weights.formats.settings import check_supported, read_toml

_TABLE, _SUPPORTED = read_toml("timm/architectures.toml"), read_toml("timm/settings.toml")
# {pattern of an architecture: (timm's class, arguments that differ from the defaults)}. The first match is used.
_ARCHITECTURES = {
    pattern: (family["class"], family["arguments"] | arguments)
    for family in _TABLE["families"]
    for pattern, arguments in family["architectures"].items()
}
MLP_BY_ACTIVATION = {"gelu": "gelu_exact", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "swiglu"}
"""{`act_layer` in `model_args`: `ViTConfig.mlp`}"""
# Models of these architectures end with a projection to the space of CLIP, unless they were fine-tuned.
_PROJECTED, _PROJECTION_WIDTHS = re.compile(r"_clip_|_pe_core_"), (512, 640, 768, 1024, 1280)

_STRUCTURE = ("patch_size", "embed_dim", "depth", "num_heads")
"""Arguments that `model_args` must contain if the name of the architecture is unknown."""


def check_architecture(config):
    """Checks that the architecture in a `config.json` is supported.

    Args:
        config: Contents of the file.

    Raises:
        ValueError: If the architecture or an argument is unsupported. The message contains the unsupported name.
    """
    architecture, arguments = config["architecture"], config.get("model_args", {})
    timm_class, _ = _of_name(architecture)
    if timm_class is None and (feature := _first_match("unsupported", architecture)):
        raise ValueError(f"timm's {architecture} has {feature}, which this package does not support.")
    if timm_class is None and not all(name in arguments for name in _STRUCTURE):
        raise ValueError(
            f"{architecture!r} is not a known architecture of timm. If it is a VisionTransformer of timm, add its "
            f"arguments to model_args of config.json, at least {', '.join(_STRUCTURE)}."
        )
    check_supported("model_args of config.json", arguments, _SUPPORTED[timm_class or "VisionTransformer"], strict=True)


def is_eva(architecture):
    """Whether an architecture is one of timm's class `Eva`."""
    return _of_name(architecture)[0] == "Eva"


def _of_name(architecture):
    """(timm's class or `None`, arguments that differ from the defaults) of an architecture."""
    matches = (each for pattern, each in _ARCHITECTURES.items() if re.fullmatch(pattern, architecture))
    return next(matches, (None, {"layer_norm_eps": None}))


def _first_match(table, architecture):
    """The value of the first pattern in a table of `architectures.toml` that matches a name, or `None`."""
    return next((value for pattern, value in _TABLE[table].items() if re.search(pattern, architecture)), None)


def arguments_of(config):
    """{argument: value} for all arguments with defaults and for those in the `model_args` of a `config.json`.

    If the architecture is unknown, `layer_norm_eps` is `None`.

    Args:
        config: Contents of the `config.json`, or `{}` if there is none.
    """
    return _TABLE["defaults"] | _of_name(config.get("architecture", ""))[1] | config.get("model_args", {})


def rotary_of(arguments):
    """`ViTConfig.rotary` for the result of `arguments_of`."""
    if not arguments["use_rot_pos_emb"]:
        return None
    kind, offset, grid = (arguments[name] for name in ("rope_type", "rope_grid_offset", "ref_feat_shape"))
    if (kind == "mixed" and arguments["rope_rotate_half"]) or (kind == "dinov3" and offset):
        raise ValueError(
            f"model_args of config.json has rope_type={kind!r}, rope_rotate_half={arguments['rope_rotate_half']} and "
            f"rope_grid_offset={offset!r}. This package does not support this kind of rotary positions."
        )
    if kind != "cat":  # timm does not use these arguments.
        offset, grid = 0.0, None
    return RotaryConfig(
        kind="mixed" if kind == "mixed" else "axial",
        base=arguments["rope_temperature"],
        layout="half" if arguments["rope_rotate_half"] else "interleaved",
        coordinates="normalized" if kind == "dinov3" else "grid",
        reference_grid=(grid, grid) if isinstance(grid, int) else grid,
        offset=offset,
        axis_order="xy" if arguments["rope_grid_indexing"] == "xy" else "yx",
    )


def has_final_norm(arguments, pooling):
    """`ViTConfig.final_norm` for the result of `arguments_of`."""
    with_fc_norm = pooling == "avg" if arguments["use_fc_norm"] is None else arguments["use_fc_norm"]
    return arguments["final_norm"] and (with_fc_norm or arguments["use_post_transformer_norm"] is not False)


def num_heads_of(architecture):
    """Number of attention heads of an architecture, derived from its name, or `None` if unknown."""
    size = re.match(r"[a-z0-9]+_(?:pe_[a-z]+_)?([a-z0-9]+)", architecture)
    return _first_match("num_heads", architecture) or (size and _TABLE["num_heads_by_size"].get(size[1]))


def activation_of(architecture):
    """`ViTConfig.mlp` of an architecture, derived from its name."""
    return _first_match("mlp", architecture)


def has_classifier(config, classes):
    """Whether the head of a model with a `config.json` computes logits of classes, not a projection like CLIP's.

    Args:
        config: Contents of the `config.json`. For published models, they include a tag, such as `"openai_ft_in1k"`.
        classes: Number of outputs of the head.
    """
    is_projected = _PROJECTED.search(config.get("architecture", "")) and classes in _PROJECTION_WIDTHS
    tag = config.get("pretrained_cfg", config).get("tag")
    return not (is_projected and tag and "_ft_" not in tag)
