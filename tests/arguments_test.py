"""Arguments of the same kind are checked in the same way: flags, integers, rates and epsilons."""

import dataclasses
import functools
import inspect
import math
import re
import typing

import numpy as np
import pytest

import keras_vit
from keras_vit import architectures, layers
from tests.models.tiny import tiny_model

CONFIGS = {
    config.__name__: config
    for config in (keras_vit.ViTConfig, *vars(architectures).values())
    if dataclasses.is_dataclass(config)
}
FACTORIES = {name: getattr(keras_vit, name) for name in keras_vit.models.FACTORIES} | {
    name: getattr(keras_vit.baselines, name) for name in keras_vit.baselines.__all__
}
LAYERS = {name: getattr(room, name) for room in (layers, keras_vit.heads) for name in room.__all__}
BLOCK = {"attention": layers.MultiHeadSelfAttention(3), "mlp": layers.MlpBlock(7)}
# Required arguments of configs and layers.
REQUIRED = {
    **BLOCK,
    **dict.fromkeys(("row", "column"), layers.EncoderBlock(**BLOCK)),
    **dict.fromkeys(
        ("num_heads", "patch_size", "num_layers", "num_tokens", "kernel_size", "num_nodes", "scale", "labels"), 3
    ),
    **dict.fromkeys(
        ("hidden_dim", "mlp_dim", "filters", "features", "num_features", "num_states", "num_attentions"), 12
    ),
    **dict.fromkeys(("key_dim", "value_dim"), 8),
    **dict.fromkeys(("vocabulary_size", "context_length"), 9),
    **{"positions": "learned", "kind": "causal", "pooling": "largest"},
    **{"stage_depths": (1,), "width": 32, "grid_size": (2, 3), "num_merged": 2, "merging": layers.TokenMerging(2)},
    **{"rate": 0.5, "initial_value": 0.1, "rotary": keras_vit.RotaryConfig("mixed")},
    **{"max_patches": 6, "axis": "height", "padding": "same", "relation": "pairwise"},
}
WRONG = {
    # "no" would count as true, and 0.0 as false.
    "flag": ("no", 1, None, np.True_),
    "positive integer": (0, -1, 2.5, True, "3"),
    "integer": (-1, 2.5, True, "3"),
    "index": (2.5, True, "3"),  # Negative indices count from the end.
    "rate": (-0.1, 1, "0.5", True),
    "epsilon": (0, 2.0, True, math.nan),
}
# Another layer, which is made later, checks these. The last two may be 0.
CHECKED_LATER = {
    *(("MlpBlock", name) for name in ("dropout_rate", "layer_norm_epsilon")),
    *(("MultiHeadSelfAttention", name) for name in ("dropout_rate", "layer_norm_epsilon")),
    ("SelfAttentionUnit", "window_size"),
    ("EoMTHead", "num_upscales"),
    ("TextPooling", "end_id"),
}


def _kind(name, hint, default):
    """A key of `WRONG`, or `None` for an argument of another kind."""
    if hint is bool:
        return "flag"
    if hint in (int, int | None, int | tuple[int, int]) and name != "seed":
        return "index" if name == "index" else "integer" if default == 0 else "positive integer"
    return next((kind for kind in ("rate", "epsilon") if name.endswith(kind)), None)


def _kinds(function):
    """{argument: kind} of a function, class or config."""
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    parameters = inspect.signature(function).parameters.values()
    kinds = {p.name: _kind(p.name, hints.get(p.name), p.default) for p in parameters}
    return {name: kind for name, kind in kinds.items() if kind}


def _required(function):
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return {name: REQUIRED[name] for name in needed}


def _accepted(function, name, kind):
    """The wrong values that a function accepts, or refuses with a message that does not name the argument."""
    accepted = []
    for value in WRONG[kind]:
        try:
            function(**{name: value})
        except ValueError as error:
            # A layer passes some rates and epsilons on to an inner layer, which calls them `rate` and `epsilon`.
            names = rf"(?:{name}|{kind})" if kind in ("rate", "epsilon") else name
            if re.search(rf"{names} must be .* Received: {re.escape(repr(value))}", str(error)):
                continue
        accepted.append(value)
    return accepted


def test_configs_and_layers():
    built = CONFIGS | LAYERS | {"Preprocessing": keras_vit.Preprocessing}
    cases = {(owner, name): kind for owner, value in built.items() for name, kind in _kinds(value).items()}
    assert set(WRONG) == set(cases.values())
    assert cases.keys() >= CHECKED_LATER
    accepted = {}
    for (owner, name), kind in cases.items():
        function = functools.partial(built[owner], **_required(built[owner]))
        if values := _accepted(function, name, kind):
            accepted[owner, name] = values
    assert accepted.pop(("ViTConfig", "num_position_prefix_rows")) == [0]
    assert accepted.keys() == CHECKED_LATER, accepted


def _flags(function):
    return [name for name, p in inspect.signature(function).parameters.items() if type(p.default) is bool]


def _assert_refused(function, *flags):
    assert not {flag: values for flag in flags if (values := _accepted(function, flag, "flag"))}


def test_factories():
    cases = [(name, flag) for name, function in FACTORIES.items() for flag in _flags(function)]
    cases.append(("AxialViT", "include_top"))
    assert len(cases) > 100
    assert not {case: values for case in cases if (values := _accepted(FACTORIES[case[0]], case[1], "flag"))}


def test_other_functions(tmp_path):
    model = tiny_model(include_preprocessing=True)
    partial = functools.partial
    _assert_refused(partial(keras_vit.rematerialize, model), "enabled")
    _assert_refused(partial(keras_vit.pretraining.MaskedAutoencoder, model), "normalize_targets")
    _assert_refused(partial(keras_vit.export_saved_model, model, tmp_path), "overwrite", "jit_compile", "card")
    _assert_refused(partial(keras_vit.export_model, model, tmp_path / "a.onnx", "onnx"), "overwrite", "card")
    _assert_refused(partial(keras_vit.save_weights, model, tmp_path / "a.npz", "google"), "card")
    _assert_refused(partial(keras_vit.from_pretrained, "missing.npz"), "include_top", "include_preprocessing")
    public = {name: value for name, value in vars(keras_vit).items() if inspect.isfunction(value)}
    others = {(name, flag) for name, value in public.items() if name not in FACTORIES for flag in _flags(value)}
    assert others == {
        *(("rematerialize", "enabled"), ("save_weights", "card"), ("export_image_text_model", "overwrite")),
        *(("export_model", flag) for flag in ("overwrite", "card")),
        *(("export_saved_model", flag) for flag in ("overwrite", "jit_compile", "card")),
    }


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (3, r"must be \(rows, columns\)"),
        ((2, 3, 4), r"must be \(rows, columns\)"),
        ((2, 0), "must be a positive integer"),
        ((2, True), "must be a positive integer"),
        ((2, 65536), "must be at most 65,535"),
    ],
)
def test_grids(grid, message):
    for function in (
        layers.LearnedPositionEmbedding,
        layers.Learned2DPositionEmbedding,
        layers.PoolingTokenizer,
        functools.partial(keras_vit.RotaryConfig, "mixed", 10.0, "interleaved", "grid"),
    ):
        with pytest.raises(ValueError, match=rf"(grid_size|reference_grid) {message}.* Received: "):
            function(grid)
