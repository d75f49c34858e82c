"""The checks of fields of `ViTConfig` that depend on each other."""


def check_combinations(config):
    """Checks the fields of a `ViTConfig` that depend on each other."""
    if config.hidden_dim % config.num_heads:
        raise ValueError(
            f"hidden_dim must be a multiple of num_heads. Received: hidden_dim={config.hidden_dim}, "
            f"num_heads={config.num_heads}"
        )
    _check_positions(config)
    _check_rotary(config)
    _check_pooling(config)
    _check_distillation(config)
    _check_token_merging(config)
    _check_patch_dropout(config)


def _check_pooling(config):
    if config.pooling == "token" and config.class_token is False:
        raise ValueError("pooling='token' reads the class token, which class_token=False removes. Use pooling='avg'.")
    if config.norm_placement == "after_pooling" and (config.pooling is None or not config.final_norm):
        raise ValueError(
            f"norm_placement='after_pooling' needs a pooling, such as pooling='avg', and final_norm=True. Received: "
            f"pooling={config.pooling!r}, final_norm={config.final_norm}"
        )
    for field in ("pooling_num_heads", "pooling_mlp_dim"):
        if config.pooling != "map" and getattr(config, field) is not None:
            raise ValueError(
                f"{field}={getattr(config, field)} needs pooling='map', because other poolings have no attention. "
                f"Received: pooling={config.pooling!r}"
            )
    if config.pooling == "map" and config.hidden_dim % (config.pooling_num_heads or 1):
        raise ValueError(
            f"hidden_dim must be a multiple of pooling_num_heads. Received: hidden_dim={config.hidden_dim}, "
            f"pooling_num_heads={config.pooling_num_heads}"
        )
    if config.pool_prefix_tokens and not (config.pooling in ("avg", "map") and config.num_prefix_tokens):
        raise ValueError(
            f"pool_prefix_tokens=True needs pooling='avg' or 'map', and tokens before the patch tokens, such as "
            f"class_token=True. Received: pooling={config.pooling!r}, class_token={config.class_token!r}, "
            f"num_register_tokens={config.num_register_tokens}"
        )
    rows = config.num_position_prefix_rows
    if rows is not None and (isinstance(rows, bool) or rows not in range(config.num_prefix_tokens + 1)):
        raise ValueError(
            f"num_position_prefix_rows must be None or from 0 to {config.num_prefix_tokens}, the number of class, "
            f"distillation and register tokens of this model. Received: {rows!r}"
        )


def _present(config, conflicts):
    """The assignments of those fields that are a conflict, as text. `conflicts`: {field: whether it is one}."""
    return ", ".join(f"{field}={getattr(config, field)!r}" for field, is_present in conflicts.items() if is_present)


def _check_rotary(config):
    if config.rotary is None:
        return
    if config.key_dim % 4:
        raise ValueError(
            f"rotary needs heads whose width, hidden_dim / num_heads, is a multiple of 4. Received: hidden_dim="
            f"{config.hidden_dim}, num_heads={config.num_heads}"
        )
    conflicts = {"axial": config.axial, "token_merging": config.token_merging}
    conflicts["position_embedding"] = config.position_embedding == "relative"
    wrong = _present(config, conflicts)
    if wrong:
        raise ValueError(
            f"rotary needs one sequence of tokens in which each patch keeps its position. Set axial=False, "
            f"token_merging=0 and a position_embedding other than 'relative'. Received: {wrong}"
        )


def _check_distillation(config):
    if not config.distillation_token:
        return
    if config.num_class_tokens != 2 or config.pooling not in ("token", None):
        raise ValueError(
            f"distillation_token=True needs a class token, and pooling='token' or None. Received: "
            f"pooling={config.pooling!r}, class_token={config.class_token!r}"
        )
    head = config.representation_dim or config.projection_dim or config.unit_representation
    if head or config.norm_placement == "after_pooling":
        raise ValueError(
            f"distillation_token=True needs norm_placement='before_pooling', and neither representation_dim nor "
            f"projection_dim nor unit_representation. Received: norm_placement={config.norm_placement!r}, "
            f"representation_dim={config.representation_dim!r}, projection_dim={config.projection_dim!r}, "
            f"unit_representation={config.unit_representation!r}"
        )


def _check_token_merging(config):
    required = {"axial": False, "position_placement": "stem"}
    wrong = [field for field, value in required.items() if getattr(config, field) != value]
    wrong += ["position_embedding"] if config.position_embedding == "relative" else []
    if config.token_merging and wrong:
        raise ValueError(
            f"token_merging={config.token_merging} leaves no grid of patches after the first block, so it needs "
            f"axial=False, position_placement='stem' and a position_embedding other than 'relative'. Received: "
            f"{', '.join(f'{field}={getattr(config, field)!r}' for field in wrong)}"
        )


def _check_patch_dropout(config):
    conflicts = {"axial": config.axial, "position_placement": config.position_placement != "stem"}
    conflicts |= {"rotary": config.rotary is not None, "pooling": config.pooling is None}
    conflicts["position_embedding"] = config.position_embedding == "relative"
    wrong = _present(config, conflicts)
    if config.patch_dropout_rate and wrong:
        raise ValueError(
            f"patch_dropout_rate={config.patch_dropout_rate} removes patches before the first block, so it needs "
            f"axial=False, position_placement='stem', a position_embedding other than 'relative', rotary=None and a "
            f"pooling. Received: {wrong}"
        )


def _check_positions(config):
    kind, placement, width = config.position_embedding, config.position_placement, config.hidden_dim
    if kind == "sincos_2d" and (width % 4 or width < 8):
        raise ValueError(
            f"position_embedding='sincos_2d' needs a hidden_dim that is a multiple of 4 and at least 8 (a sine and "
            f"a cosine of each coordinate). Received: hidden_dim={width}"
        )
    if kind == "learned_2d" and width % 2:
        raise ValueError(
            f"position_embedding='learned_2d' needs an even hidden_dim, because half of it is used for each "
            f"coordinate. Received: hidden_dim={width}"
        )
    if kind in ("none", "relative") and placement != "stem":
        is_none = kind == "none"
        reason = "there are no positions to add" if is_none else "relative positions are used by every attention"
        raise ValueError(
            f"position_embedding={kind!r} needs position_placement='stem', the default, because {reason}. Received: "
            f"position_placement={placement!r}"
        )
    if config.axial and config.num_prefix_tokens:
        raise ValueError(
            f"axial=True needs a model without class token and registers, such as pooling='avg', class_token=None "
            f"and num_register_tokens=0. Received: pooling={config.pooling!r}, class_token="
            f"{config.class_token!r}, num_register_tokens={config.num_register_tokens}"
        )
    if config.axial and kind == "relative":
        raise ValueError(
            "axial=True cannot be combined with position_embedding='relative'. Use 'learned_1d' or 'learned_2d'."
        )
