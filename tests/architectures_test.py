import copy
import json

import keras
import pytest

import keras_vit
from keras_vit.architectures import (
    RESNETS,
    VT_RESNETS,
    AxialResNetConfig,
    BiTResNetConfig,
    PanopticFPNConfig,
    ResNetConfig,
    SelfAttentionNetworkConfig,
    VTFPNConfig,
    VTResNetConfig,
    changed_config,
    read_architecture,
)
from keras_vit.checks import shown

STEM = keras_vit.StemConfig((1, 2), 32)
CONFIGS = [
    keras_vit.VARIANTS["B/16"],
    keras_vit.VARIANTS["R50+B/16"].replace(patch_size=(2, 1), stem=STEM),
    keras_vit.VARIANTS["B/16"].replace(patch_size=1, stem=keras_vit.ConvStemConfig((8, 16), strides=(2, 1))),
    BiTResNetConfig((3, 4), 96),
    BiTResNetConfig((3, 4), 96, "ignored"),
    AxialResNetConfig([3, 4, 1], 12, 3),
    ResNetConfig((3, 4), 12, 1, True, 0.1, 0.2),
    VTResNetConfig(
        [3, 4], 12, 1, filters=24, relation_modules=range(0, 3, 2), tokenizer="clustering", has_projector=False
    ),
    VTResNetConfig((3, 4)),
    PanopticFPNConfig((1, 2), 8, expansion=1, neck_dim=12, head_dim=6),
    VTFPNConfig((1, 2), 8, drop_path_rate=0.1, num_tokens=2, token_dim=24, num_heads=3, group_width=4),
    ResNetConfig(
        (3, 4), mixing="local_relation", attention="cbam", global_unit="double_attention", num_global_units=[0, 2]
    ),
    SelfAttentionNetworkConfig((3, 4), 96, "pairwise", [5, 3]),
]


def test_survives_json():
    for config in CONFIGS:
        fields = json.loads(json.dumps(config.to_dict()))
        again = read_architecture(fields)
        assert again == config
        assert type(again) is type(config)
        assert json.loads(json.dumps(again.to_dict())) == fields


def test_dictionaries_have_the_kind():
    assert CONFIGS[0].to_dict()["kind"] == "vit"
    fields = {"kind": "bit_resnet", "stage_depths": [3, 4], "width": 96, "stem_pooling_padding": "zeros"}
    assert CONFIGS[3].to_dict() == fields
    assert read_architecture({"kind": "bit_resnet", "stage_depths": [3, 4], "width": 96}) == CONFIGS[3]


def test_defaults_and_strides():
    assert AxialResNetConfig((3, 4)).num_heads == 8
    assert SelfAttentionNetworkConfig((3, 4, 2), window_sizes=(3, 5, 7)).total_stride == (8, 8)
    assert VTResNetConfig((3, 4, 6)).total_stride == (16, 16)
    assert BiTResNetConfig((3, 4, 6, 3)).total_stride == (32, 32)
    assert BiTResNetConfig((1,)).total_stride == (4, 4)


def test_sizes_with_changes():
    assert changed_config(RESNETS, "R34", {}) == ResNetConfig((3, 4, 6, 3), expansion=1)
    config = changed_config(VT_RESNETS, VTResNetConfig((1, 2)), {"num_modules": 2})
    assert config == VTResNetConfig((1, 2), num_modules=2)
    assert config.related_modules == (0, 1)
    assert changed_config(VT_RESNETS, "VT-R18", {"num_modules": 4}).related_modules == (0, 1, 2, 3)
    with pytest.raises(ValueError, match=r"is not a published VT-ResNet.* A keras_vit\.architectures\.VTResNetConfig"):
        changed_config(VT_RESNETS, ResNetConfig((1, 2)), {})
    with pytest.raises(ValueError, match=r"is not a published ResNet.* A keras_vit\.architectures\.ResNetConfig"):
        changed_config(RESNETS, VTResNetConfig((1, 2)), {})
    with pytest.raises(TypeError, match=r"'widht' is not a field of ResNetConfig\. Did you mean 'width'"):
        changed_config(RESNETS, "R18", {"widht": 3})


@pytest.mark.combination("a config with a misspelt field", "refused, with the name of the field")
def test_configs_suggest_a_field():
    for config, wrong, near in (
        (keras_vit.RotaryConfig, "bse", "base"),
        (keras_vit.StemConfig, "stage_depth", "stage_depths"),
        (keras_vit.ConvStemConfig, "width", "widths"),
        (keras_vit.ViTConfig, "embed_dim", "hidden_dim"),
    ):
        with pytest.raises(TypeError, match=f"'{wrong}' is not a field of {config.__name__}. Did you mean '{near}'"):
            config(**{wrong: 3})
    config = keras_vit.RotaryConfig(base=3)
    assert copy.deepcopy(config) == config


@pytest.mark.combination("a config with a size of 10^9", "refused")
def test_absurd_sizes_are_refused():
    small = {"patch_size": 16, "hidden_dim": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 7}
    names = ("num_layers", "num_register_tokens", "representation_dim", "token_merging", "patch_size")
    cases = [(keras_vit.ViTConfig, small | {name: 10**9}, name) for name in names]
    cases += [(keras_vit.ConvStemConfig, {"widths": (10**9,)}, "Each number in widths")]
    cases += [(keras_vit.StemConfig, {"stage_depths": (1,), "width": 32 * 10**9}, "width")]
    cases += [(ResNetConfig, {"stage_depths": (10**9,)}, "stage_depths"), (VTFPNConfig, {"neck_dim": 10**9}, "neck")]
    for config, fields, name in cases:
        with pytest.raises(ValueError, match=f"{name}.* must be at most (1,000,000|65,535). Received: (32|1)0{{9}}$"):
            config(**({"stage_depths": (1,)} if config is VTFPNConfig else {}) | fields)


def test_messages_show_long_values_without_their_middle():
    for value, text in (
        ("b" * 30_000, f"'{'b' * 149} … {'b' * 149}'"),
        (10**5000, "an integer of 16610 bits"),
        (3, "3"),
    ):
        assert shown(value) == text
    for refuse in (keras_vit.ViTConfig, keras_vit.weights.catalogue.get_entry, keras_vit.weights.sources.fetch.locate):
        with pytest.raises((ValueError, OSError, TypeError)) as caught:
            refuse(**{"a" * 30_000: 1}) if refuse is keras_vit.ViTConfig else refuse("a" * 30_000)
        assert len(str(caught.value)) < 1500


def test_kinds_of_later_versions_are_refused():
    message = "'perceiver' is not a known kind of model. Known: .*bit_resnet, .*vt_resnet"
    with pytest.raises(ValueError, match=message):
        read_architecture({"kind": "perceiver"})
    with pytest.raises(ValueError, match=r"A VT-ResNet has no depth in this version\. The file may have been written"):
        read_architecture({**VTResNetConfig((1, 2)).to_dict(), "depth": 3})


def test_a_model_that_does_not_say_what_it_is_made_of_is_refused():
    inputs = keras.Input((8, 9, 3))
    model = keras.Model(inputs, keras_vit.Preprocessing()(inputs))
    with pytest.raises(ValueError, match=r"does not contain the model.s architecture\. Build it with keras_vit\.ViT"):
        keras_vit.describe(model)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (ResNetConfig, {"mixing": "attention"}, "must be one of 'convolution', 'attention_.*Received: 'attention'"),
        (ResNetConfig, {"attention": "se"}, "must be one of None, 'squeeze_excitation', 'cbam'. Received: 'se'"),
        (ResNetConfig, {"global_unit": "glore"}, "global_unit must be one of None, 'global_.*Received: 'glore'"),
        (ResNetConfig, {"num_global_units": (1, 0)}, "num_global_units needs a global_unit.*Received: .*\\(1, 0\\)"),
        (ResNetConfig, {"global_unit": "global_reasoning"}, "one number for each stage.*Received: .*=\\(\\)"),
        (
            *(ResNetConfig, {"global_unit": "global_reasoning", "num_global_units": (4, 0)}),
            "from 0 to the stage's depth. Received: num_global_units=\\(4, 0\\), stage_depths=\\(3, 4\\)",
        ),
        (ResNetConfig, {"num_global_units": 3}, "must be a tuple of one number for each stage. Received: 3"),
        (VTResNetConfig, {"relation_modules": (True, 2)}, "numbers of modules from 0 to 2. Received: .True, 2"),
        (SelfAttentionNetworkConfig, {}, "one odd number for each stage. Received: window_sizes=.*7, 7, 7"),
        (SelfAttentionNetworkConfig, {"window_sizes": (3, 4)}, "one odd number for each.*window_sizes=.*3, 4"),
        (SelfAttentionNetworkConfig, {"relation": "both"}, "one of 'pairwise', 'patchwise'. Received: 'both'"),
        (SelfAttentionNetworkConfig, {"width": 48}, "width must be a multiple of 32. Received: 48"),
    ],
)
def test_refuses_impossible_attention(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config((3, 4), **changes)


@pytest.mark.parametrize("name", ["rotary", "stem"])
def test_unknown_fields_of_a_part_are_refused(name):
    sizes = {"patch_size": 4, "hidden_dim": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 8}
    with pytest.raises(ValueError, match=r"Config has no zoom in this version\. Fields: .*newer keras_vit"):
        read_architecture({"kind": "vit", **sizes, name: {"zoom": 1}})
    with pytest.raises(ValueError, match=r"ConvStemConfig has no zoom in this version"):
        read_architecture({"kind": "vit", **sizes, "stem": {"widths": (8,), "zoom": 1}})
