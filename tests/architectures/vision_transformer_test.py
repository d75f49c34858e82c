import dataclasses
import json
import re

import numpy as np
import pytest

from keras_vit import VARIANTS, RotaryConfig, StemConfig, ViTConfig
from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import get_variant

CHOICES = ViTConfig.choices()

TINY = {"patch_size": (4, 3), "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
STEM = StemConfig(stage_depths=(2, 1), width=32)
ROTARY = RotaryConfig(coordinates="grid", reference_grid=(4, 7))


def test_defaults():
    config = ViTConfig(**TINY)
    assert config.pooling == "token"
    assert config.position_embedding == "learned_1d"
    assert config.mlp == "gelu_tanh"
    assert config.layer_norm_epsilon == 1e-6
    assert config.representation_dim is None
    assert config.head_bias == config.dropout_rate == config.attention_dropout_rate == config.drop_path_rate == 0


def test_patch_shape():
    assert ViTConfig(**TINY).patch_shape == (4, 3)
    assert ViTConfig(**{**TINY, "patch_size": 4}).patch_shape == (4, 4)


def test_class_token_follows_the_pooling():
    for pooling, class_token, number in (
        *(("token", None, 1), ("token", True, 1)),
        *(("avg", None, 0), ("avg", True, 1), ("avg", False, 0)),
        *((None, None, 1), (None, True, 1), (None, False, 0)),
        *(("map", None, 0), ("map", True, 1), ("map", False, 0)),
    ):
        config = ViTConfig(**TINY, pooling=pooling, class_token=class_token)
        numbers = config.num_class_tokens, config.position_prefix_rows, config.num_prefix_tokens
        assert numbers == (number,) * 3, (pooling, class_token)


def test_tokens_before_the_patches():
    config = ViTConfig(**TINY, distillation_token=True, num_register_tokens=4)
    assert (config.num_class_tokens, config.position_prefix_rows, config.num_prefix_tokens) == (2, 2, 6)
    averaging = ViTConfig(**TINY, pooling="avg", num_register_tokens=4)
    assert (averaging.num_class_tokens, averaging.position_prefix_rows, averaging.num_prefix_tokens) == (0, 0, 4)


def test_position_prefix_rows():
    assert ViTConfig(**TINY, num_position_prefix_rows=0).position_prefix_rows == 0
    assert ViTConfig(**TINY, num_position_prefix_rows=1).position_prefix_rows == 1
    assert ViTConfig(**TINY, num_position_prefix_rows=1, distillation_token=True).position_prefix_rows == 1
    for rows, changes, limit in (
        *((2, {}, 1), (-1, {}, 1), (1, {"pooling": "avg"}, 0)),
        *((4, {"num_register_tokens": 2}, 3), (3, {"num_register_tokens": 2, "pooling": "map"}, 2)),
    ):
        message = f"None or from 0 to {limit}, the number of class, distillation and register .*Received: {rows}"
        with pytest.raises(ValueError, match=message):
            ViTConfig(**TINY, num_position_prefix_rows=rows, **changes)
        assert ViTConfig(**TINY, num_position_prefix_rows=limit, **changes).position_prefix_rows == limit


def test_tokens_that_are_not_pooled():
    averaging = ViTConfig(**TINY, pooling="avg", class_token=True, num_register_tokens=2)
    assert averaging.num_tokens_not_pooled == 3
    assert averaging.replace(pool_prefix_tokens=True).num_tokens_not_pooled == 0


def test_replace():
    config = ViTConfig(**TINY).replace(mlp_dim=24, pooling="avg")
    assert config == ViTConfig(**{**TINY, "mlp_dim": 24}, pooling="avg")
    with pytest.raises(ValueError, match="num_heads"):
        config.replace(num_heads=5)


def test_replace_refuses_an_unknown_name_and_offers_the_nearest():
    for name, near in (
        *(("hiden_dim", "hidden_dim"), ("representation", "representation")),
        # Names that other projects use, and arguments of the functions that change configs.
        *(("drop_rate", "dropout_rate"), ("embed_dim", "hidden_dim"), ("num_classes", "classes")),
    ):
        message = f"'{name}' is not a field of ViTConfig. Did you mean .*'{near}.*Accepted: patch"
        with pytest.raises(TypeError, match=message):
            ViTConfig(**TINY).replace(**{name: 1})
    with pytest.raises(TypeError, match=r"'zzz' is not a field of ViTConfig. Accepted: patch_size, hidden_dim"):
        ViTConfig(**TINY).replace(zzz=1)


def test_what_is_not_available_is_refused_with_what_is():
    for field, choices in CHOICES.items():
        value = 1 if True in choices else "nowhere"  # tests/arguments_test.py tests other values of flags.
        message = re.escape(f"{field} must be one of {', '.join(map(repr, choices))}. Received: {value!r}")
        with pytest.raises(ValueError, match=f"^{message}$"):
            ViTConfig(**TINY, **{field: value})


def test_every_choice_is_accepted():
    for field, choices in CHOICES.items():
        for choice in choices:
            pooling = "token" if field == "distillation_token" else "avg"
            others = {"num_register_tokens": 2} if field == "pool_prefix_tokens" else {}
            assert getattr(ViTConfig(**{**TINY, "pooling": pooling, **others, field: choice}), field) is choice


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "hidden_dim must be a multiple of num_heads.*hidden_dim=12, num_heads=5"),
        ({"patch_size": (4, 0)}, "patch_size must be a positive integer. Received: 0"),
        ({"patch_size": (4,)}, r"patch_size must be an integer or a pair \(height, width\). Received: \(4,\)"),
        ({"head_bias": "0"}, "head_bias must be a number. Received: '0'"),
        ({"head_bias": 1e300}, "head_bias must be a number. Received: 1e[+]300"),
        ({"layer_scale": 0.0}, "layer_scale must be a positive number. Received: 0.0"),
        ({"layer_scale": True}, "layer_scale must be a positive number. Received: True"),
        ({"stem": "R50"}, "stem must be None or a keras_vit.StemConfig or a keras_vit.ConvStemConfig. Received: 'R50'"),
        # Positions.
        ({"position_embedding": "sincos_2d", "hidden_dim": 6}, "multiple of 4 and at least 8.*hidden_dim=6"),
        ({"position_embedding": "sincos_2d", "hidden_dim": 4, "num_heads": 2}, "multiple of 4 and at least 8"),
        ({"position_embedding": "learned_2d", "hidden_dim": 15}, "needs an even hidden_dim.*Received: hidden_dim=15"),
        (
            {"position_embedding": "none", "position_placement": "every_layer"},
            "'none' needs position_placement='stem', .* no positions to add. .*'every_layer'",
        ),
        (
            {"position_embedding": "relative", "position_placement": "every_layer_shared"},
            "'relative' needs position_placement='stem', .*because relative positions .*'every_layer_shared'",
        ),
        # Poolings.
        ({"pooling": "token", "class_token": False}, "pooling='token' reads the class token"),
        ({"pooling_num_heads": 2}, "pooling_num_heads=2 needs pooling='map', because .* Received: pooling='token'"),
        (
            {"pooling_mlp_dim": 7, "pooling": "avg"},
            "pooling_mlp_dim=7 needs pooling='map', because other poolings have no attention. Received: pooling='avg'",
        ),
        (
            {"pooling_num_heads": 5, "pooling": "map"},
            "multiple of pooling_num_heads. Received: hidden_dim=12, pooling_num_heads=5",
        ),
        ({"pool_prefix_tokens": True}, "needs pooling='avg' or 'map', .*Received: pooling='token', class_token=None"),
        ({"pool_prefix_tokens": True, "pooling": None}, "needs pooling='avg' or 'map', .*Received: pooling=None"),
        (
            {"pool_prefix_tokens": True, "pooling": "map"},
            "and tokens before the patch tokens, such as class_token=True. .*'map', .*None, num_register_tokens=0",
        ),
    ],
)
def test_impossible_values(changes, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**TINY, **changes})


def test_what_a_distillation_token_does_not_go_with():
    for changes, message in (
        ({"class_token": False, "pooling": None}, "needs a class token.*pooling=None, class_token=False"),
        ({"pooling": "avg"}, "needs a class token.*Received: pooling='avg', class_token=None"),
        ({"pooling": "avg", "class_token": True}, "pooling='token' or None.*Received: pooling='avg', class_token=True"),
        ({"pooling": "map", "class_token": True}, "pooling='token' or None.*Received: pooling='map', class_token=True"),
        ({"representation_dim": 7}, "neither representation_dim nor .*Received: .*representation_dim=7"),
        ({"unit_representation": True}, "nor unit_representation.*Received: .*unit_representation=True"),
        ({"norm_placement": "after_pooling"}, "norm_placement='before_pooling'.*norm_placement='after_pooling'"),
    ):
        ViTConfig(**TINY, **changes)
        with pytest.raises(ValueError, match=f"distillation_token=True .*{message}"):
            ViTConfig(**TINY, **changes, distillation_token=True)


def test_what_axial_attention_does_not_go_with():
    for changes in ({"pooling": "avg"}, {"pooling": "map"}, {"pooling": None, "class_token": False}):
        assert ViTConfig(**TINY, **changes, axial=True).num_prefix_tokens == 0
    for changes, message in (
        ({}, "without class token and registers.*pooling='token', class_token=None, num_register_tokens=0"),
        ({"pooling": "avg", "class_token": True}, "without class token.*pooling='avg', class_token=True"),
        ({"pooling": "avg", "num_register_tokens": 2}, "without class token.*num_register_tokens=2"),
        ({"pooling": "avg", "position_embedding": "relative"}, "cannot be combined with position_embedding='relative'"),
    ):
        with pytest.raises(ValueError, match=message):
            ViTConfig(**TINY, **changes, axial=True)


def test_a_norm_after_pooling_needs_a_pooling():
    for pooling in ("token", "avg", "map"):
        ViTConfig(**TINY, norm_placement="after_pooling", pooling=pooling)
    for changes, message in (
        ({"pooling": None}, "needs a pooling, such as pooling='avg', and final_norm=True. Received: pooling=None, fin"),
        ({"final_norm": False}, "and final_norm=True. Received: pooling='token', final_norm=False"),
    ):
        with pytest.raises(ValueError, match=f"norm_placement='after_pooling' .*{message}"):
            ViTConfig(**TINY, norm_placement="after_pooling", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary": "axial"}, "rotary must be None or a keras_vit.RotaryConfig. Received: 'axial'"),
        ({"num_heads": 2}, "hidden_dim / num_heads, is a multiple of 4. Received: hidden_dim=12, num_heads=2"),
        ({"position_embedding": "relative"}, "position_embedding other than 'relative'. .*: position_embedding='relat"),
        ({"token_merging": 2}, "rotary needs one sequence of tokens .*token_merging=0 .*Received: token_merging=2"),
        ({"axial": True, "pooling": "avg", "class_token": False}, "axial=False, .*Received: axial=True"),
    ],
)
def test_what_rotary_positions_do_not_go_with(changes, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**TINY, "rotary": RotaryConfig(), **changes})


def test_stride_of_a_stem():
    for stage_depths, stride in (((), 4), ((2,), 4), ((3, 4), 8), ((3, 4, 9), 16)):
        stem = StemConfig(stage_depths)
        assert stem.stride == stride
        assert ViTConfig(**{**TINY, "stem": stem}).total_stride == (4 * stride, 3 * stride)
    assert ViTConfig(**TINY).total_stride == (4, 3)


def test_impossible_stems():
    for changes, message in (
        ({"stage_depths": 3}, "stage_depths must be a tuple of integers. Received: 3"),
        ({"stage_depths": (2, 0)}, "Each number in stage_depths must be a positive integer. Received: 0"),
        ({"width": 48}, "width must be a multiple of 32, the number of groups. Received: 48"),
    ):
        with pytest.raises(ValueError, match=message):
            StemConfig(**{"stage_depths": (2, 1), **changes})


def test_survives_json():
    for config in (*VARIANTS.values(), ViTConfig(**TINY, stem=STEM, rotary=ROTARY, pooling="map", class_token=True)):
        fields = json.loads(json.dumps(config.to_dict()))
        assert set(fields) == {"kind", *(field.name for field in dataclasses.fields(ViTConfig))}
        assert read_architecture(fields) == config


def test_unknown_variant():
    for name, near in (("B16", "B/16"), ("ViT-B/16", "B/16"), ("l/16", "L/16"), ("B/17", "B/16")):
        with pytest.raises(ValueError, match=f"'{name}' is not a published variant. Did you mean .*'{near}'"):
            get_variant(name)
    message = r"'x' is not a published variant. Available: Ti/16, .*, R50\+L/32\. A keras_vit\.ViTConfig is also"
    with pytest.raises(ValueError, match=message):
        get_variant("x")


def test_variants_are_named_after_their_patch():
    for name, config in VARIANTS.items():
        side = int(name.split("/")[1])
        # The authors name it R+Ti/16, because a token covers 32 pixels of the image.
        assert config.total_stride == ((32, 32) if name == "R+Ti/16" else (side, side))
        assert (config.stem is not None) == name.startswith("R")
        assert get_variant(name) is config


def test_integers_of_numpy_become_plain_ones():
    config = ViTConfig(**{**TINY, "hidden_dim": np.int64(12), "patch_size": [np.int32(4), 2]})
    assert config == ViTConfig(**{**TINY, "patch_size": (4, 2)})
    assert type(config.hidden_dim) is int
    assert type(config.patch_size[0]) is int
    hash(config)
