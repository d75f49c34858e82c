"""Every published variant equals exact counts. All are counted by the equations, some are built without values."""

import inspect
import math

import pytest

import keras_vit
from keras_vit import models
from keras_vit.models import vit
from tests.reference.vit import num_macs, num_parameters
from tests.test_case import counted_once, without_values

# (variant, function): (hidden_dim, num_layers, num_heads, mlp_dim), then for each image size the parameters and GMACs
# with a class token and 1,000 classes. Counts at 224 are also in vit_jax/models_test.py of
# google-research/vision_transformer (Ti, S, B, L, H) and in timm (S/8, S/14, B/14).
VARIANTS = {
    ("Ti/16", "ViTTi16"): ((192, 12, 3, 768), {224: (5_717_416, 1.254), 384: (5_790_376, 4.682)}),
    ("S/8", "ViTS8"): ((384, 12, 6, 1536), {224: (22_055_272, 22.406), 384: (22_638_952, 98.079)}),
    ("S/14", "ViTS14"): ((384, 12, 6, 1536), {224: (22_004_584, 6.124), 518: (22_431_976, 46.697)}),
    ("S/16", "ViTS16"): ((384, 12, 6, 1536), {224: (22_050_664, 4.599), 384: (22_196_584, 15.490)}),
    ("S/32", "ViTS32"): ((384, 12, 6, 1536), {224: (22_878_952, 1.143), 384: (22_915_432, 3.443)}),
    ("M/16", "ViTM16"): ((512, 12, 8, 2048), {224: (38_837_736, 7.991), 384: (39_032_296, 26.099)}),
    ("B/8", "ViTB8"): ((768, 12, 12, 3072), {224: (86_576_872, 78.148), 384: (87_744_232, 294.045)}),
    ("B/14", "ViTB14"): ((768, 12, 12, 3072), {224: (86_475_496, 23.162), 518: (87_330_280, 151.574)}),
    ("B/16", "ViTB16"): ((768, 12, 12, 3072), {224: (86_567_656, 17.564), 384: (86_859_496, 55.484)}),
    ("B/32", "ViTB32"): ((768, 12, 12, 3072), {224: (88_224_232, 4.409), 384: (88_297_192, 13.044)}),
    ("L/14", "ViTL14"): ((1024, 24, 16, 4096), {224: (304_203_752, 81.013), 378: (304_688_104, 247.086)}),
    ("L/16", "ViTL16"): (
        (1024, 24, 16, 4096),
        {224: (304_326_632, 61.555), 384: (304_715_752, 191.066), 512: (305_174_504, 361.986)},
    ),
    ("L/32", "ViTL32"): ((1024, 24, 16, 4096), {224: (306_535_400, 15.378), 384: (306_632_680, 45.276)}),
    ("So400m/14", "ViTSo400m14"): ((1152, 27, 16, 4304), {224: (413_597_656, 109.928), 378: (414_142_552, 333.727)}),
    ("So400m/16", "ViTSo400m16"): ((1152, 27, 16, 4304), {224: (413_735_896, 83.570), 384: (414_173_656, 258.409)}),
    ("H/14", "ViTH14"): ((1280, 32, 16, 5120), {224: (632_045_800, 167.295), 518: (633_470_440, 1016.717)}),
    ("H/16", "ViTH16"): ((1280, 32, 16, 5120), {224: (632_199_400, 127.315), 384: (632_685_800, 390.858)}),
    ("g/14", "ViTg14"): ((1408, 40, 16, 6144), {224: (1_012_611_432, 267.031), 378: (1_013_277_416, 797.387)}),
    ("g-opt/16", "ViTgOpt16"): ((1536, 40, 16, 6144), {224: (1_136_286_184, 228.097), 384: (1_136_869_864, 695.022)}),
    ("G/14", "ViTG14"): ((1664, 48, 16, 8192), {224: (1_844_440_680, 483.748), 378: (1_845_227_752, 1429.226)}),
}
# (hybrid, function): encoder's variant, stages of the stem, patch size on its map, then parameters with a class token
# and 1,000 classes, and GMACs. Both are at 224, as in google-research/vision_transformer.
HYBRIDS = {
    ("R+Ti/16", "RViTTi16"): ("Ti/16", (), 8, 6_337_704, 0.43),
    ("R26+S/32", "R26ViTS32"): ("S/32", (2, 2, 2, 2), 1, 36_431_912, 3.46),
    ("R26+B/32", "R26ViTB32"): ("B/32", (2, 2, 2, 2), 1, 101_383_976, 6.71),
    ("R50+B/16", "R50ViTB16"): ("B/16", (3, 4, 9), 1, 98_659_112, 21.54),
    ("R50+B/32", "R50ViTB32"): ("B/32", (3, 4, 6, 3), 1, 110_945_832, 8.46),
    ("R50+L/16", "R50ViTL16"): ("L/16", (3, 4, 9), 1, 316_483_624, 65.54),
    ("R50+L/32", "R50ViTL32"): ("L/32", (3, 4, 6, 3), 1, 328_994_856, 19.41),
}
# (variant, function): parameters with average pooling and 1,000 classes, and GMACs, both at 224.
AXIAL = {("B/16", "AxialViTB16"): (171_620_584, 33.51), ("B/32", "AxialViTB32"): (173_277_160, 8.45)}
FUNCTIONS = [*VARIANTS, *HYBRIDS]
SIGNATURE = (
    "include_top weights input_tensor input_shape pooling classes classifier_activation include_preprocessing name"
)


@pytest.fixture(autouse=True)
def _on_shapes_only():
    """Builds models without values: the largest model would need 7 GB."""
    with without_values():
        yield


def _count(model):
    return sum(math.prod(weight.shape) for weight in model.weights)


def test_table_is_complete():
    assert [variant for variant, _ in FUNCTIONS] == list(keras_vit.VARIANTS)
    functions = {"ViT", "AxialViT"} | {function for _, function in [*FUNCTIONS, *AXIAL]}
    assert functions == {*models.FACTORIES} - {*models.RESNETS, *models.SEGMENTERS, *models.dense.__all__}
    assert {*models.FACTORIES} <= {*keras_vit.__all__}
    assert [getattr(keras_vit, name).__name__ for name in models.FACTORIES] == [*models.FACTORIES]
    assert {parameter(name, "classes") for name in models.SEGMENTERS} == {150}  # ADE20K has 150 classes.


def parameter(function, name):
    """The default of an argument."""
    return inspect.signature(getattr(keras_vit, function)).parameters[name].default


def _letters(variant, size, classes=1000):
    """Values for the equations: width, depth, MLP width, patch side, number of patches, number of classes."""
    (hidden_dim, num_layers, _, mlp_dim), _ = next(row for name, row in VARIANTS.items() if name[0] == variant)
    patch_size = int(variant.split("/")[1])
    return hidden_dim, num_layers, mlp_dim, patch_size, (size // patch_size) ** 2, classes


@pytest.mark.parametrize(("variant", "function"), list(VARIANTS))
def test_equations(variant, function):
    """The table contains the sizes of the variants, and its counts follow from these sizes."""
    (hidden_dim, num_layers, num_heads, mlp_dim), by_size = VARIANTS[variant, function]
    patch_size = int(variant.split("/")[1])
    assert keras_vit.VARIANTS[variant] == keras_vit.ViTConfig(patch_size, hidden_dim, num_layers, num_heads, mlp_dim)
    for size, (parameters, giga_macs) in by_size.items():
        letters = _letters(variant, size)
        assert num_parameters(*letters) == parameters
        assert num_macs(*letters) == pytest.approx(giga_macs * 1e9, rel=1e-3)


@counted_once
def test_parameters_with_average_pooling():
    width, _, *letters = _letters("S/32", 224)
    model = keras_vit.ViT("S/32", pooling="avg", num_layers=1)
    assert _count(model) == num_parameters(width, 1, *letters, class_token=False)


def _stem_counts(stage_depths, size=224, width=64):
    """(parameters, MACs) of a hybrid's stem, then side and channels of its map. Each convolution has a norm."""
    side, channels = size // 4, width
    parameters, macs = 49 * 3 * width + 2 * width, (size // 2) ** 2 * 49 * 3 * width
    for stage, depth in enumerate(stage_depths):
        inner = width * 2**stage
        for unit in range(depth):
            places_in = side**2
            side //= 2 if stage and not unit else 1
            parameters += channels * inner + 9 * inner**2 + 4 * inner**2 + 2 * (inner + inner + 4 * inner)
            macs += places_in * channels * inner + side**2 * (9 * inner**2 + 4 * inner**2)
            if not unit:
                parameters += channels * 4 * inner + 2 * 4 * inner
                macs += side**2 * channels * 4 * inner
            channels = 4 * inner
    return parameters, macs, side, channels


@pytest.mark.parametrize(("variant", "function"), list(HYBRIDS))
def test_equations_of_hybrids(variant, function):
    encoder, stage_depths, patch_size, parameters, giga_macs = HYBRIDS[variant, function]
    stem = keras_vit.StemConfig(stage_depths)
    config = keras_vit.VARIANTS[encoder].replace(stem=stem, patch_size=patch_size)
    assert keras_vit.VARIANTS[variant] == config
    of_stem, macs_of_stem, side, channels = _stem_counts(stage_depths)
    sizes = config.hidden_dim, config.num_layers, config.mlp_dim, patch_size, (side // patch_size) ** 2, 1000, channels
    assert of_stem + num_parameters(*sizes) == parameters
    assert macs_of_stem + num_macs(*sizes) == pytest.approx(giga_macs * 1e9, abs=0.005e9)


def _axial_counts(variant):
    """(parameters, MACs) at 224 pixels, with twice the blocks and without class token."""
    width, depth, *letters = _letters(variant, 224)
    letters = (width, 2 * depth, *letters)
    side = 224 // keras_vit.VARIANTS[variant].patch_size
    # A patch attends to the patches of its row or column instead of all.
    fewer = 2 * depth * 2 * width * (side**4 - side**3)
    return num_parameters(*letters, class_token=False), num_macs(*letters, class_token=False) - fewer


@pytest.mark.parametrize(("variant", "function"), list(AXIAL))
def test_equations_of_axial_models(variant, function):
    expected, giga_macs = AXIAL[variant, function]
    parameters, macs = _axial_counts(variant)
    assert parameters == expected
    assert macs == pytest.approx(giga_macs * 1e9, abs=0.005e9)
    assert list(inspect.signature(getattr(keras_vit, function)).parameters) == SIGNATURE.split()


# Parameters of the towers of SigLIP (arXiv 2303.15343) and of Scaling ViT (arXiv 2106.04560).
TOWERS = {
    ("So400m/14", 224): 427_680_704,
    ("So400m/14", 384): 428_225_600,  # 27 x 27 patches; 6 pixels are cut off.
    ("g/14", 224): 1_036_448_384,
    ("G/14", 224): 1_881_132_416,
}


@pytest.mark.parametrize(("variant", "size"), list(TOWERS))
def test_equations_of_attention_pooling(variant, size):
    letters = _letters(variant, size, classes=0)
    width, _, mlp_width, *_ = letters
    pooling = width + 4 * (width**2 + width) + 2 * width + 2 * width * mlp_width + mlp_width + width
    assert num_parameters(*letters, class_token=False) + pooling == TOWERS[variant, size]


@pytest.mark.parametrize(("variant", "function"), FUNCTIONS)
def test_function_of_each_variant(variant, function, monkeypatch):
    build = getattr(keras_vit, function)
    assert build.__name__ == build.__qualname__ == function
    assert f'"{variant}"' in build.__doc__
    assert list(inspect.signature(build).parameters) == SIGNATURE.split()
    assert inspect.signature(build).parameters["pooling"].default == keras_vit.VARIANTS[variant].pooling
    for name in set(SIGNATURE.split()) - {"pooling"}:
        assert inspect.signature(build).parameters[name] == inspect.signature(keras_vit.ViT).parameters[name], name
    # Arguments that differ from all defaults, one at a time.
    arguments = {name: object() for name in SIGNATURE.split()}
    monkeypatch.setattr(vit, "ViT", lambda *positional, **named: (positional, named))
    assert build(**arguments) == ((variant,), arguments)
    assert build(*arguments.values()) == ((variant,), arguments)


# Parameters with a tanh layer as wide as the tokens and the 21,843 classes of ImageNet-21k.
PRE_TRAINED = {"B/32": 104_843_091, "B/16": 103_186_515, "L/16": 326_740_307, "L/32": 328_949_075, "H/14": 660_385_363}


@pytest.mark.parametrize("variant", PRE_TRAINED)
def test_equations_of_the_pre_training_head(variant):
    letters = _letters(variant, 224, classes=21_843)
    assert num_parameters(*letters) + letters[0] ** 2 + letters[0] == PRE_TRAINED[variant]


@pytest.mark.slow
@counted_once
def test_models_of_published_sizes():
    for variant in ("Ti/16", "G/14"):
        letters, model = _letters(variant, 224), keras_vit.ViT(variant)
        cost = keras_vit.profile(model)
        assert _count(model) == cost.parameters == num_parameters(*letters)
        assert cost.macs == num_macs(*letters)
        assert model.get_layer("encoder_block_0").attention.num_heads == keras_vit.VARIANTS[variant].num_heads
    for variant, function in (("R+Ti/16", "RViTTi16"), ("R50+B/32", "R50ViTB32")):
        *_, parameters, giga_macs = HYBRIDS[variant, function]
        model = keras_vit.ViT(variant)
        cost = keras_vit.profile(model)
        assert _count(model) == cost.parameters == parameters
        assert cost.macs == pytest.approx(giga_macs * 1e9, abs=0.005e9)
    model = keras_vit.AxialViTB32()
    assert (_count(model), keras_vit.profile(model).macs) == _axial_counts("B/32")
    arguments = {"include_top": False, "pooling": "map", "crop_to_patches": True, "input_shape": (384, 384, 3)}
    assert _count(keras_vit.ViT("So400m/14", **arguments)) == TOWERS["So400m/14", 384]
    assert _count(keras_vit.ViT("B/32", classes=21_843, representation_dim=768)) == PRE_TRAINED["B/32"]


BLOCK = 7_087_872
"""Parameters of a block of B/16."""


@counted_once
@pytest.mark.parametrize(
    ("changes", "parameters", "more_in_a_block"),
    [
        ({"include_top": False, "representation_dim": 768}, 85_798_656, 0),
        ({"position_embedding": "sincos_2d"}, 86_416_360, 0),
        # A table for each block: a row for the class token, and 14 half-width rows for each coordinate.
        ({"position_embedding": "learned_2d", "position_placement": "every_layer"}, 86_554_600, 11_520),
        # 2 * 197 - 1 rows (one per offset) in each block, as wide as a head.
        ({"position_embedding": "relative"}, 86_718_184, 393 * 64),
        ({"num_position_prefix_rows": 0}, 86_567_656 - 768, 0),
        ({"pooling": None, "include_top": False, "class_token": False}, 85_798_656 - 2 * 768, 0),
        ({"input_shape": (224, 224, 1)}, 86_567_656 - 2 * 16 * 16 * 768, 0),
    ],
)
def test_parameters_of_base_16(changes, parameters, more_in_a_block):
    """A model with two blocks gives the parameters of twelve."""
    shallow = _count(keras_vit.ViT("B/16", num_layers=2, **changes))
    assert shallow + 10 * (BLOCK + more_in_a_block) == parameters


def test_name_of_a_model():
    for variant, name in (("g-opt/16", "vit_g_opt16"), ("R+Ti/16", "vit_R_Ti16"), ("S/32", "vit_S32")):
        assert keras_vit.ViT(variant, num_layers=1).name == name
    assert keras_vit.ViT(keras_vit.VARIANTS["Ti/16"], num_layers=1).name == "vit"
