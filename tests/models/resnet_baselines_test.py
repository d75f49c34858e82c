"""The baselines of Visual Transformers' Table 8: counts of all of them, and small ones in all that a model can do."""

import functools
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import resnet_baselines, self_attention_network
from tests.fresh_process import reload_and_run
from tests.reference import resnet_baselines as reference
from tests.test_case import (
    MIXED_POLICIES,
    assert_close,
    canonical_weights,
    check_gradients,
    counted_once,
    random_inputs,
    randomize,
    run_mixed_precision_test,
    run_parity_test,
    to_numpy,
)

SHAPE = (33, 46, 3)

# function: trained parameters, multiply-accumulates at 224 x 224 pixels; the paper's parameters in millions, and by how
# many hundredths ours differ. Papers are those of the models, but where said otherwise.
COUNTS = {
    # Exact: a ResNet's, and 2 C^2 / 16 for each unit of C channels.
    "SEResNet18": (11_776_552, 1_814_160_384, 11.8, 0.3),
    "SEResNet34": (21_954_856, 3_663_918_592, 22.0, 0.3),
    "SEResNet50": (28_071_976, 4_091_699_200, 28.1, 0.2),
    "SEResNet101": (49_292_328, 7_806_148_608, 49.3, 0.1),
    # Exact: as many, and 2 x 7 x 7 + 2 for each unit. Visual Transformers print 22.9 for 34 layers, a misprint.
    "CBAMResNet18": (11_777_352, 1_815_063_764, 11.8, 0.3),
    "CBAMResNet34": (21_956_456, 3_665_434_742, 22.0, 0.3),
    "CBAMResNet50": (28_073_576, 4_095_573_110, 28.1, 0.2),
    "CBAMResNet101": (49_295_628, 7_812_577_278, 49.3, 0.1),
    "AAResNet34": (20_745_072, 3_596_721_568, 20.7, 0.3),
    "AAResNet50": (25_777_392, 4_180_099_248, 25.6, 0.8),
    "AAResNet101": (45_354_728, 8_138_515_248, 45.4, 0.2),
    "StandAloneResNet50": (18_038_632, 3_389_730_816, 18.0, 0.3),
    "LRNet18": (14_624_988, 2_360_690_244, 14.4, 1.6),
    "LRNet50": (23_400_944, 4_014_293_881, 23.3, 0.5),
    "LRNet101": (40_834_410, 7_485_904_681, 42.0, 2.8),
    "GloReResNet50": (30_481_448, 5_316_018_176, 30.5, 0.1),
    "GloReResNet200": (70_420_520, 16_876_044_288, 70.6, 0.3),
    # As "ECA-Net" (arXiv 1910.03151), Table 3, prints it; A2-Nets' own paper does not.
    "A2ResNet50": (32_905_256, 6_658_195_456, 33.0, 0.3),
    "SAN19Pairwise": (17_596_156, 3_636_263_340, 17.6, 0.1),
    "SAN19Patchwise": (20_518_470, 3_130_145_280, 20.5, 0.1),
}


def test_every_function_is_counted():
    functions = {*resnet_baselines.__all__, *self_attention_network.__all__} - {"SelfAttentionNetwork"}
    assert set(COUNTS) == functions


@counted_once
@pytest.mark.parametrize("function", COUNTS)
def test_counts(function):
    parameters, macs, printed, difference = COUNTS[function]
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, function)()
        cost = keras_vit.profile(model)
        keras.utils.clear_session()
    trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert (trained, cost.macs) == (parameters, macs)
    assert trained / 1e6 == pytest.approx(printed, rel=difference / 100)


def _resnet(size="R50", input_shape=SHAPE, **changes):
    arguments = {"stage_depths": (1, 2), "width": 16, "classes": 5, "classifier_activation": None, **changes}
    return keras_vit.ResNet(size, input_shape=input_shape, **arguments)


def _self_attention_network(relation, input_shape=SHAPE, **arguments):
    arguments |= {"stage_depths": (1, 1), "window_sizes": (3, 5), "width": 32, "relation": relation}
    return keras_vit.SelfAttentionNetwork(
        "SAN10", input_shape=input_shape, classes=5, classifier_activation=None, **arguments
    )


KINDS = {
    "cbam": functools.partial(_resnet, attention="cbam"),
    "attention_augmented": functools.partial(_resnet, "R18", mixing="attention_augmented", stage_depths=(1, 1, 1)),
    "stand_alone": functools.partial(_resnet, mixing="stand_alone", attention="squeeze_excitation"),
    "local_relation": functools.partial(_resnet, mixing="local_relation"),
    "global_reasoning": functools.partial(_resnet, global_unit="global_reasoning", num_global_units=(0, 2)),
    "double_attention": functools.partial(_resnet, "R18", global_unit="double_attention", num_global_units=(1, 1)),
    "pairwise": functools.partial(_self_attention_network, "pairwise"),
    "patchwise": functools.partial(_self_attention_network, "patchwise"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_small_models(kind, tmp_path):
    [images] = random_inputs(SHAPE)
    model = randomize(KINDS[kind]())
    outputs = to_numpy(model(images))
    assert np.isfinite(outputs).all()
    assert np.ptp(outputs, axis=0).max() > 1e-4
    np.testing.assert_array_equal(reload_and_run(model, [images], tmp_path), outputs)
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(cloned(images)), outputs)


# Not of a SAN: with random weights whole channels inside its attention are below zero, where ReLU lets nothing through.
# tests/layers/self_attention_unit_test.py has its gradients.
@pytest.mark.parametrize("kind", ["attention_augmented", "stand_alone", "global_reasoning"])
def test_gradients(kind):
    check_gradients(randomize(KINDS[kind](), scale=0.5), random_inputs(SHAPE, batch=4))


@pytest.mark.parametrize("policy", MIXED_POLICIES)
@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("cbam", 0.3),
        ("attention_augmented", 0.3),
        pytest.param("local_relation", 0.3, marks=pytest.mark.slow),
        pytest.param("double_attention", 0.3, marks=pytest.mark.slow),
        pytest.param("patchwise", 0.4, marks=pytest.mark.slow),
        ("pairwise", 0.45),
    ],
)
def test_mixed_precision(kind, scale, policy):
    run_mixed_precision_test(KINDS[kind], policy, SHAPE, scale)


@pytest.mark.parametrize("kind", ["cbam", "stand_alone", "local_relation", "global_reasoning", "patchwise"])
def test_images_of_any_size(kind):
    model = randomize(KINDS[kind](input_shape=(None, None, 4)))
    for size in ((33, 46), (20, 25)):
        [images] = random_inputs((*size, 4))
        fixed = randomize(KINDS[kind](input_shape=(*size, 4)))
        assert_close(model(images), to_numpy(fixed(images)), 1e-4)  # Of sums in another order, through seven layers.


def test_augmented_models_take_one_size():
    with pytest.raises(ValueError, match=r"has tables for the height and width of its maps, so they must be known"):
        KINDS["attention_augmented"](input_shape=(None, None, 3))


def test_small_images_are_refused_where_windows_reflect_them():
    with pytest.raises(ValueError, match=r"must be more than 3. Received: maps of shape \(None, 3, 4, 2048\)"):
        keras_vit.SAN19Patchwise(input_shape=(96, 128, 3))


def test_attention_augmented_from_the_second_stage_on():
    model = KINDS["attention_augmented"]()
    mixings = [layer.mixing for layer in model.layers if layer.name.startswith("stage")]
    assert mixings == ["convolution", "pooled_attention_augmented", "attention_augmented"]


def test_where_global_units_stand():
    changes = {"stage_depths": (2, 4, 6), "global_unit": "global_reasoning", "num_global_units": (0, 2, 3)}
    with keras.StatelessScope(initialize_variables=False):
        names = [layer.name for layer in _resnet(**changes).layers]
    found = [name for name in names if "global" in name]
    # As in facebookresearch/GloRe.
    assert found == [f"stage_{stage}_global_unit_{unit}" for stage, unit in ((1, 0), (1, 2), (2, 0), (2, 2), (2, 4))]
    assert all(names.index(name) == names.index(name.replace("global_unit", "unit")) + 1 for name in found)


def test_the_trunk_of_a_visual_transformer_may_attend():
    changes = {"stage_depths": (1, 1), "width": 8, "filters": 32, "token_dim": 32, "num_heads": 4, "num_tokens": 6}
    model = keras_vit.VTResNet("VT-R18", input_shape=SHAPE, classes=5, attention="squeeze_excitation", **changes)
    assert canonical_weights(model)["stage_1_unit_0/gate/dense_1/kernel"].shape == (16, 1)
    assert keras_vit.describe(model).config.attention == "squeeze_excitation"


@pytest.mark.parametrize("relation", ["pairwise", "patchwise"])
def test_a_self_attention_network_equals_the_reference(relation):
    shape = (13, 16, 3)
    model = _self_attention_network(relation, input_shape=shape)
    equation = functools.partial(
        reference.self_attention_network_logits, attention=getattr(reference, relation), window_sizes=(3, 5)
    )
    run_parity_test(model, equation, random_inputs(shape), 1e-4)  # Sums of hundreds of terms, of some hundreds.
