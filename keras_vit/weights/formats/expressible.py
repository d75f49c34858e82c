"""Checks whether a format of weights can express a `ViTConfig`. A format lists the accepted values of each field."""

import dataclasses

from keras_vit.architectures.stem import StemConfig
from keras_vit.architectures.vision_transformer import ViTConfig

ANY = object()
"""Used instead of a list of accepted values, if every value of a field is accepted."""

# These fields affect only training and later adaptations. Files do not contain them, and outputs do not depend on them.
_NOT_IN_FILES = (
    *("dropout_rate", "attention_dropout_rate", "drop_path_rate", "patch_dropout_rate"),
    *("head_bias", "position_interpolation"),
)

_PUBLISHED = {
    "stem": (None, StemConfig),
    "pooling": ("token", "avg", "map", None),
    "class_token": (None, False, True),
    "block_norm": ("pre", "post"),
    "norm_placement": ("before_pooling", "after_pooling"),
    "position_embedding": ("learned_1d", "sincos_2d", "none"),
    "qkv_bias": ("all", "no_key", "none"),
    "mlp": ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu"),
    "token_merging": ANY,  # Token merging has no weights.
    **dict.fromkeys(("distillation_token", "pool_prefix_tokens", "final_norm", "qk_norm"), (False, True)),
    **dict.fromkeys(("attention_inner_norm", "mlp_inner_norm", "pre_norm", "crop_to_patches"), (False, True)),
    **dict.fromkeys(("num_register_tokens", "num_position_prefix_rows", "representation_dim", "layer_scale"), ANY),
    **dict.fromkeys(("pooling_num_heads", "pooling_mlp_dim", "rotary", "layer_norm_epsilon"), ANY),
}
"""{field: values that at least one format can express}"""


def check_expressible(owner, config, accepted, conflicts=()):
    """Checks that a format can express a model.

    Args:
        owner: Project that defines the format. It is named in the error message.
        config: `ViTConfig`.
        accepted: {field: accepted values or their classes, or `ANY`}. All other fields must have their defaults, as in
            a plain ViT. If a field or value is added to `ViTConfig`, it is therefore refused until a format lists it.
        conflicts: Pairs (description of a combination that the format cannot express, whether the model has it).

    Raises:
        ValueError: If the format cannot express the model; the message lists the fields and combinations.
    """
    refuse(owner, problems_of(config, accepted, conflicts))


def problems_of(config, accepted, conflicts=()):
    """The fields and combinations that a format cannot express. The arguments are those of `check_expressible`."""
    return _unexpected(config, accepted) + [conflict for conflict, is_present in conflicts if is_present]


def refuse(owner, problems):
    """Raises a ValueError if there are any problems."""
    if problems:
        raise ValueError(
            f"{owner} cannot express {', '.join(problems)}. The model was not saved. Choose another format, or change "
            f"these settings of the model."
        )


def check_published(config):
    """Checks that a format of published weights can express a `ViTConfig`. Configs of other classes are accepted."""
    if isinstance(config, ViTConfig) and (problems := _unexpected(config, _PUBLISHED)):
        raise ValueError(
            f"No format of published weights can express {', '.join(problems)}. Build the model with weights=None or "
            f"with your own .weights.h5 file, or change these settings."
        )


def _unexpected(config, accepted):
    problems = []
    for field in dataclasses.fields(ViTConfig):
        is_free = field.default is dataclasses.MISSING or field.name in _NOT_IN_FILES
        values = accepted.get(field.name, ANY if is_free else (field.default,))
        value = getattr(config, field.name)
        if values is not ANY and value not in values and type(value) not in values:
            names = (each.__name__ if isinstance(each, type) else repr(each) for each in values)
            problems.append(f"{field.name}={value!r} (accepted: {' or '.join(names)})")
    return problems
