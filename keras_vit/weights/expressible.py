"""What files of weights can express: the accepted values of each field of `ViTConfig`. All other values are refused."""

import dataclasses

from keras_vit.architectures.vision_transformer import ViTConfig

ANY = object()
"""Every value of a field that is a number, or a `StemConfig`."""

# They change training and later adaptations only: no file holds them, and no output depends on them.
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
    "token_merging": ANY,  # It needs no weights of its own.
}
"""What at least one format can express."""


def check_expressible(owner, config, accepted, conflicts=()):
    """Refuses a model that a format cannot express.

    Args:
        owner: Whose format it is.
        config: `ViTConfig`
        accepted: {field: values that it may have, or `ANY`}. Every other field must have its default, which is that of
            a plain ViT. So new fields and new values are refused until a format lists them.
        conflicts: Pairs (combination of values, whether the model has it) that the format cannot express.

    Raises:
        ValueError: If the format cannot express the model; the message says what.
    """
    if found := _unexpected(config, accepted) + [what for what, present in conflicts if present]:
        raise ValueError(
            f"{owner} cannot express {', '.join(found)}. The model was not saved. Choose another format, or build the "
            f"model without."
        )


def check_published(config):
    """Refuses a config, of any architecture, that no published weights are made for."""
    if isinstance(config, ViTConfig) and (found := _unexpected(config, _PUBLISHED)):
        raise ValueError(
            f"No format of published weights can express {', '.join(found)}. Build the model with weights=None or with "
            f"a .weights.h5 file of your own, or choose a model without."
        )


def _unexpected(config, accepted):
    found = []
    for field in dataclasses.fields(ViTConfig):
        value, values = getattr(config, field.name), accepted.get(field.name, _default(field))
        if values is not ANY and value not in values:
            found.append(f"{field.name}={value!r} (it has {' or '.join(map(repr, values))})")
    return found


def _default(field):
    is_free = field.default is dataclasses.MISSING or field.name in _NOT_IN_FILES
    return ANY if is_free else (field.default,)
