"""The layout of each variable. `distribution_test.py` checks the resulting shardings."""

import re

import keras
import pytest

import keras_vit
from tests.test_case import without_values
from training.engine.layouts import check_divisible, layout_map
from training.errors import InputError

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_dim=24, num_layers=2, num_heads=3, mlp_dim=20)
STEM = keras_vit.StemConfig((1, 1))
# Covers every field of the config that changes the variables.
OPTIONS = [
    {"stem": STEM, "input_shape": (32, 32, 3)},
    {"stem": keras_vit.ConvStemConfig((4, 6), (1, 2)), "patch_size": 2},
    {"stem": keras_vit.StemConfig(()), "position_embedding": "sincos_2d"},
    {"pooling": "map", "mlp": "swiglu"},
    {"pooling": "avg", "norm_placement": "after_pooling", "position_embedding": "none"},
    {"distillation_token": True, "num_register_tokens": 2, "num_position_prefix_rows": 0},
    {"representation_dim": 11, "pre_norm": True},
    {"layer_scale": 0.1, "qk_norm": True},
    {"position_placement": "every_layer"},
    {"position_embedding": "learned_2d", "position_placement": "every_layer"},
    {"position_embedding": "relative"},
    {"pooling": "avg", "axial": True},
    {"pooling": "map", "pooling_num_heads": 4, "pooling_mlp_dim": 7, "final_norm": False},
    {"rotary": keras_vit.RotaryConfig("mixed"), "qkv_bias": "no_key", "mlp_inner_norm": True, "block_norm": "post"},
    {"rotary": keras_vit.RotaryConfig(), "qkv_bias": "none", "attention_inner_norm": True},
    {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1, "patch_dropout_rate": 0.5},
    {"include_preprocessing": True, "include_top": False},
]
# Layouts with both kinds of sharding. All other variables are whole on every device.
SHARDED = {
    "encoder_block_1/attention/query/kernel": ("batch", "model", None),
    "encoder_block_1/attention/key/kernel": ("batch", "model", None),
    "encoder_block_1/attention/value/kernel": ("batch", "model", None),
    "encoder_block_1/attention/query/bias": ("model", None),
    "encoder_block_1/attention/key/bias": ("model", None),
    "encoder_block_1/attention/value/bias": ("model", None),
    "encoder_block_1/attention/output/kernel": ("model", None, "batch"),
    "encoder_block_1/mlp/hidden/kernel": ("batch", "model"),
    "encoder_block_1/mlp/hidden/bias": ("model",),
    "encoder_block_1/mlp/output/kernel": ("model", "batch"),
    "pooling/attention/query/kernel": ("batch", "model", None),
    "pooling/attention/output/kernel": ("model", None, "batch"),
    "pooling/mlp/hidden/kernel": ("batch", "model"),
    "patch_embedding/kernel": (None, None, None, "batch"),
    "position_embedding/embedding": (None, "batch"),
    "position_embedding_1/embedding": (None, "batch"),
    "encoder_block_1/column/attention/query/kernel": ("batch", "model", None),
    "encoder_block_1/row/mlp/output/kernel": ("model", "batch"),
    "pre_logits/kernel": ("batch", None),
    "predictions/kernel": ("batch", None),
    "distillation_predictions/kernel": ("batch", None),
    "stem_conv/kernel": (None, None, None, "batch"),
    "stem_conv_1/kernel": (None, None, None, "batch"),
    "stem_stage_1_unit_0/conv_2/kernel": (None, None, None, "batch"),
    "stem_stage_1_unit_0/projection_conv/kernel": (None, None, None, "batch"),
}
WHOLE = [
    "encoder_block_1/attention/output/bias",
    "encoder_block_1/attention/query_norm/gamma",
    "encoder_block_1/attention/inner_norm/gamma",
    "encoder_block_1/attention/rotary/frequencies",
    "encoder_block_1/mlp/inner_norm/beta",
    "encoder_block_1/attention_norm/beta",
    "encoder_block_1/attention_scale/gamma",
    "encoder_block_1/mlp/output/bias",
    "encoder_block_1/mlp/seed_generator_4/seed_generator_state",
    "stem_stage_1_unit_0/norm_2/gamma",
    "stem_norm_1/moving_mean",
    "class_token/token",
    "position_embedding/prefix",
    "position_embedding_1/columns",
    "encoder_block_1/attention/relative_position/embedding",
    "register_tokens/tokens",
    "pooling/probe",
    "adamw/iteration",
    "loss/total",
]


def mesh(batch_devices=2, model_devices=3):
    """Keras needs no real devices until an array is laid out."""
    devices = [f"cpu:{i}" for i in range(batch_devices * model_devices)]
    return keras.distribution.DeviceMesh((batch_devices, model_devices), ("batch", "model"), devices)


def matching(layouts, path):
    return [pattern for pattern in layouts if re.fullmatch(pattern, path)]


@pytest.mark.slow
def test_every_variable_of_every_option():
    """Each variable matches one pattern, which lays out all or none of its dimensions. Layer outputs match none."""
    layouts = layout_map(mesh(), shard_weights=True)
    for options in OPTIONS:
        with without_values():
            model = keras_vit.ViT(CONFIG, **{"input_shape": (16, 32, 3)} | options)
        for variable in model.variables:
            for prefix in ("", "outer/"):
                assert len(matching(layouts, prefix + variable.path)) == 1, variable.path
            axes = layouts[variable.path].axes
            assert axes == () or len(axes) == len(variable.shape), variable.path
            assert matching(layouts, variable.path.rpartition("/")[0] + "/output") == []


def test_optimizers_and_metrics():
    layouts = layout_map(mesh(), shard_weights=True)
    optimizers = [keras.optimizers.AdamW(), keras.optimizers.SGD(), keras.optimizers.RMSprop()]
    optimizers.append(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    for optimizer in optimizers:
        optimizer.build([])
    variables = [variable for optimizer in optimizers for variable in optimizer.variables]
    variables += [*keras.metrics.Mean(name="loss").variables, *keras.metrics.CategoricalAccuracy().variables]
    assert {variable.path: len(matching(layouts, variable.path)) for variable in variables} == {
        variable.path: 1 for variable in variables
    }


def test_layouts():
    sharded, whole = (layout_map(mesh(), shard_weights) for shard_weights in (True, False))
    for path, axes in SHARDED.items():
        assert sharded[path].axes == axes, path
        assert whole[path].axes == tuple(axis if axis == "model" else None for axis in axes), path
    for path in WHOLE:
        assert sharded[path].axes == (), path


def test_models_that_devices_cannot_share():
    for changes, devices, shard_weights, named in (
        ({}, (2, 2), False, "num_heads must be a multiple of the 2 devices.*distribution.model_devices"),
        ({"num_heads": 4, "mlp_dim": 21}, (2, 2), False, "mlp_dim must be a multiple of the 2 devices"),
        ({"num_heads": 4, "pooling": "map", "pooling_num_heads": 3}, (2, 2), False, "pooling_num_heads must be .* 3"),
        ({"num_heads": 4, "pooling": "map", "pooling_mlp_dim": 7}, (2, 2), False, "pooling_mlp_dim must be .*: 7"),
        ({}, (7, 1), True, "hidden_dim must be a multiple of the 7 devices.*distribution.shard_weights"),
        ({"hidden_dim": 9, "num_heads": 1}, (2, 1), True, "hidden_dim must be a multiple of the 2.*shard_weights"),
        (
            {"stem": keras_vit.ConvStemConfig((6, 4)), "patch_size": 1},
            (3, 1),
            True,
            r"stem.widths\[1\] must be a multiple of the 3 devices.*Received: 4",
        ),
        ({"stem": STEM}, (3, 1), True, r"stem.width must be a multiple of the 3 devices.*Received: 64"),
        ({"representation_dim": 6}, (4, 1), True, r"representation_dim must be a multiple of the 4.*Received: 6"),
        ({}, (7, 1), False, None),
        ({}, (4, 1), True, None),
        ({"num_heads": 4}, (2, 2), True, None),
    ):
        config = CONFIG.replace(**changes)
        if named is None:
            check_divisible(config, mesh(*devices), shard_weights)
        else:
            with pytest.raises(InputError, match=named):
                check_divisible(config, mesh(*devices), shard_weights)
