import keras
import pytest

import keras_vit
from tests.models.tiny import SHAPE, STEM, tiny_model
from tests.test_case import canonical_weights, randomize

START = ["patch_embedding", "class_token", "position_embedding"]


def _nested(**changes):
    inner = tiny_model(include_top=False, name="inner", **changes)
    inputs = keras.Input(SHAPE)
    x = keras.layers.Conv2D(3, 1, name="before")(inputs)
    return keras.Model(inputs, keras.layers.Dense(4, name="after")(inner(x)), name="outer")


@pytest.fixture(scope="module")
def model():
    """Shared by tests that set all its weights and, with `freeze`, all its flags."""
    return randomize(tiny_model())


@pytest.mark.parametrize(
    ("up_to", "frozen"),
    [
        (None, []),
        ("patch_embedding", START[:1]),
        ("position_dropout", START),
        ("encoder_block_0", [*START, "encoder_block_0"]),
        ("encoder_block_1", [*START, "encoder_block_0", "encoder_block_1"]),
        ("pooling", [*START, "encoder_block_0", "encoder_block_1", "encoder_norm"]),
        ("predictions", [*START, "encoder_block_0", "encoder_block_1", "encoder_norm", "predictions"]),
    ],
)
def test_what_is_frozen(up_to, frozen, model):
    # Whole layers or parts of layers.
    model.get_layer("encoder_block_1").attention.trainable = False
    model.get_layer("predictions").trainable = False
    assert keras_vit.freeze(model, up_to) == frozen
    fixed = {path for path in canonical_weights(model) if path.split("/")[0] in frozen}
    assert {weight.path for weight in model.non_trainable_weights} == fixed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "frozen"),
    [
        ({"position_placement": "every_layer"}, "patch_embedding class_token position_embedding_0 encoder_block_0"),
        (
            {"rotary": keras_vit.RotaryConfig("mixed"), "position_embedding": "none", "num_register_tokens": 2},
            "patch_embedding register_tokens class_token encoder_block_0",
        ),
    ],
)
def test_positions_and_axial_blocks(changes, frozen):
    model = tiny_model(**changes)
    assert keras_vit.freeze(model, "encoder_block_0") == frozen.split()
    assert {weight.path.split("/")[0] for weight in model.non_trainable_weights} == set(frozen.split())


def _check_kept_in_a_file(model, folder):
    """A saved model keeps its trainable flags, and `freeze(model, None)` unfreezes all layers."""
    model.save(folder / "frozen.keras")
    reloaded = keras.saving.load_model(folder / "frozen.keras")
    assert [w.path for w in reloaded.trainable_weights] == [w.path for w in model.trainable_weights]
    assert keras_vit.freeze(reloaded, None) == []
    assert len(reloaded.trainable_weights) == len(reloaded.weights)


@pytest.mark.slow
def test_of_a_hybrid_the_stem_comes_first(tmp_path):
    model = tiny_model(stem=STEM, patch_size=1, input_shape=(32, 32, 3))
    frozen = keras_vit.freeze(model, "patch_embedding")
    assert frozen == ["stem_conv", "stem_norm", "stem_stage_0_unit_0", "stem_stage_1_unit_0", "patch_embedding"]
    assert {weight.path.split("/")[0] for weight in model.non_trainable_weights} == set(frozen)
    _check_kept_in_a_file(model, tmp_path)


def test_nested(tmp_path):
    model = _nested(qk_norm=True, layer_scale=0.1)
    assert keras_vit.freeze(model, "encoder_block_0") == [*START, "encoder_block_0"]
    _check_kept_in_a_file(model, tmp_path)
    model.get_layer("before").trainable = False
    assert keras_vit.freeze(model, "encoder_block_0") == [*START, "encoder_block_0"]
    # The block has 16 weights, 4 in its query and key norms, and 2 scales. The last norm and the head have 2 each.
    assert len(model.trainable_weights) == 16 + 4 + 2 + 2 + 2
    assert not model.get_layer("before").trainable
    assert keras_vit.freeze(model, None) == []
    assert len(model.trainable_weights) == len(model.weights) - 2


def test_refusals(model):
    with pytest.raises(ValueError, match=r"no layer 'encoder_block_2'\. Did you mean .*Layers: images, .*predictions"):
        keras_vit.freeze(model, "encoder_block_2")
    with pytest.raises(ValueError, match="no layer 'encoder_block_5'"):
        keras_vit.freeze(model)
    outer = _nested(num_layers=1)
    outer.trainable = False
    with pytest.raises(ValueError, match="'outer', in which 'inner' is nested, has trainable=False"):
        keras_vit.freeze(outer, "encoder_block_0")
    with pytest.raises(ValueError, match="has one Preprocessing layer, but 'stranger' has 0"):
        keras_vit.freeze(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="stranger"))
