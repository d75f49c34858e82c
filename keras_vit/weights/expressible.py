"""Checks whether a format of weights can express a `ViTConfig`, by the accepted values of each field."""

import dataclasses

from keras_vit.architectures.vision_transformer import ViTConfig

ANY = object()
"""Accepts every value, for fields that are numbers or a `StemConfig`."""

# These fields affect only training and later adaptations. No file contains them, and no output depends on them.
_NOT_IN_FILES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate", "head_bias", "position_interpolation")

_PUBLISHED = {
    "stem": ANY,
    "pooling": ("token", "avg", "map", None),
    "class_token": (None, False, True),
    "distillation_token": (False, True),
    "num_register_tokens": ANY,
    "norm_placement": ("before_pooling", "after_pooling"),
    "position_embedding": ("learned_1d", "sincos_2d", "none"),
    "num_position_prefix_rows": ANY,
    "representation_dim": ANY,
    "layer_scale": ANY,
    "qk_norm": (False, True),
    "pre_norm": (False, True),
    "crop_to_patches": (False, True),
    "mlp": ("gelu_tanh", "gelu_exact", "quick_gelu", "swiglu"),
    "layer_norm_epsilon": ANY,
    "token_merging": ANY,  # It has no weights.
}
"""{field: values that at least one format can express}"""


def check_expressible(owner, config, accepted, conflicts=()):
    """Checks that a format can express a model.

    Args:
        owner: Project that owns the format, for the message.
        config: `ViTConfig`.
        accepted: {field: accepted values, or `ANY`}. All other fields must have the default, which is a plain ViT. New
            fields and new values are thus refused until a format lists them.
        conflicts: Pairs (combination that the format cannot express, whether the model has it).

    Raises:
        ValueError: If the format cannot express the model; the message lists the fields and combinations.
    """
    if problems := _unexpected(config, accepted) + [combination for combination, present in conflicts if present]:
        raise ValueError(
            f"{owner} cannot express {', '.join(problems)}. The model was not saved. Choose another format, or change "
            f"these settings of the model."
        )


def check_published(config):
    """Checks that at least one format of published weights can express a config of any architecture."""
    if isinstance(config, ViTConfig) and (problems := _unexpected(config, _PUBLISHED)):
        raise ValueError(
            f"No format of published weights can express {', '.join(problems)}. Build the model with weights=None or "
            f"with your own .weights.h5 file, or change these settings."
        )


def _unexpected(config, accepted):
    problems = []
    for field in dataclasses.fields(ViTConfig):
        value, values = getattr(config, field.name), accepted.get(field.name, _accepted_by_default(field))
        if values is not ANY and value not in values:
            problems.append(f"{field.name}={value!r} (accepted: {' or '.join(map(repr, values))})")
    return problems


def _accepted_by_default(field):
    is_free = field.default is dataclasses.MISSING or field.name in _NOT_IN_FILES
    return ANY if is_free else (field.default,)
