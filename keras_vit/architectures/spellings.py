"""Names of arguments and variants in other projects, for hints in error messages."""

import re

from keras_vit.checks import did_you_mean, shown

SIZE_NAMES = {
    "Ti": "tiny",
    "S": "small",
    "M": "medium",
    "B": "base",
    "L": "large",
    "So400m": "so400m",
    "H": "huge",
    "g": "giant",
    "g-opt": "giant-opt",
    "G": "gigantic",
}
"""{size of a variant: name of this size in the repositories of published weights}"""


def spelled_variant(name, variants):
    """Returns the variant for `name`, a name from another project such as "vit_base_patch16_224", or `None`."""
    words = [re.sub(r"(?i)^vit(?=.)", "", word) for word in re.findall(r"(?i)so400m|[a-z]+|\d+", name)]
    sizes = [size for word in words for size, other in SIZE_NAMES.items() if word.lower() in (size.lower(), other)]
    sizes.sort(key=lambda size: size not in words)  # g and G are different sizes.
    patches = [*filter(str.isdigit, words), "16"]  # 16 is used for names without a patch size.
    stems = [f"R{number}+" for number in re.findall(r"(?<![a-z])r(?:esnet)?(26|50|)(?![a-z\d])", name.lower())]
    meant = [f"{stem}{size}/{patch}" for stem in [*stems, ""] for size in sizes for patch in patches]
    return next((variant for variant in meant if variant in variants), None)


FACTORY_ARGUMENTS = (
    *("include_top", "weights", "input_tensor", "input_shape", "classes", "classifier_activation"),
    *("include_preprocessing", "name"),
)
"""The arguments of every factory, besides the fields of its config."""

_IMAGE_SIZE = "input_shape=(height, width, channels)"
_SPELLINGS = {
    **dict.fromkeys(("num_classes", "num_labels", "nb_classes", "n_classes"), "classes"),
    **dict.fromkeys(("image_size", "img_size", "input_size"), _IMAGE_SIZE),
    **dict.fromkeys(("in_chans", "in_channels", "num_channels"), _IMAGE_SIZE),
    **dict.fromkeys(("pretrained", "checkpoint_path"), 'weights="imagenet"'),
    **dict.fromkeys(("embed_dim", "hidden_size", "dim"), "hidden_dim"),
    **dict.fromkeys(("depth", "num_hidden_layers"), "num_layers"),
    **dict.fromkeys(("heads", "num_attention_heads"), "num_heads"),
    **dict.fromkeys(("intermediate_size", "mlp_ratio"), "mlp_dim"),
    **dict.fromkeys(("drop_rate", "dropout", "hidden_dropout_prob"), "dropout_rate"),
    **dict.fromkeys(("attn_drop_rate", "attention_dropout", "attention_probs_dropout_prob"), "attention_dropout_rate"),
    **dict.fromkeys(("drop_path", "stochastic_depth_prob", "stochastic_depth"), "drop_path_rate"),
    **dict.fromkeys(("patch_drop_rate", "patch_dropout"), "patch_dropout_rate"),
    **dict.fromkeys(("layer_norm_eps", "norm_eps"), "layer_norm_epsilon"),
    **dict.fromkeys(("global_pool", "pool"), "pooling"),
    **dict.fromkeys(("reg_tokens", "num_reg_tokens"), "num_register_tokens"),
    "init_values": "layer_scale",
}
"""{name of an argument in timm, transformers or torchvision: the argument of this package}"""


def unknown_argument(name, what, accepted, others=(), hint=""):
    """Returns the TypeError for an unknown field or argument.

    Args:
        name: The unknown name.
        what: What it is not, such as `"a field of ViTConfig"`.
        accepted: Names that are accepted.
        others: Further names that the message may suggest.
        hint: Suggestion, or `""` for the accepted name that is most similar or that another project calls `name`.
    """
    known = [*accepted, *others]
    hint = hint or argument_hint(name, known) or did_you_mean(name, known)
    return TypeError(f"{shown(name)} is not {what}.{hint} Accepted: {', '.join(accepted)}")


def argument_hint(name, arguments):
    """Returns a hint if another project uses `name` for one of the `arguments`, otherwise ""."""
    spelling = _SPELLINGS.get(name, "")
    if spelling.partition("=")[0] in arguments:
        return f" Did you mean {spelling if '=' in spelling else repr(spelling)}?"
    if name in ("dtype", "dtype_policy"):
        return " Set the precision by keras.config.set_dtype_policy, before the model is built."
    return ""
