"""BiT-ResNets equal NumPy and exact counts. Also tests features that only BiT-ResNets have."""

import functools

import numpy as np
import pytest

import keras_vit
from tests.models.counting import counts_by_layer, deep_counts, shapes_only
from tests.reference import bit_resnet as reference
from tests.test_case import counted_once, random_inputs, run_parity_test

# function: (depths of the stages, width factor, parameters with 1,000 classes, GMACs at 224). timm has the same numbers
# of parameters, see tests/peers/bit_resnet_test.py.
PUBLISHED = {
    "BiTResNet50x1": ((3, 4, 6, 3), 1, 25_549_352, 4.09),
    "BiTResNet50x2": ((3, 4, 6, 3), 2, 97_988_712, 16.12),
    "BiTResNet50x3": ((3, 4, 6, 3), 3, 217_319_080, 36.08),
    "BiTResNet101x1": ((3, 4, 23, 3), 1, 44_541_480, 7.80),
    "BiTResNet101x3": ((3, 4, 23, 3), 3, 387_934_888, 69.49),
    "BiTResNet152x1": ((3, 8, 36, 3), 1, 60_185_128, 11.51),
    "BiTResNet152x2": ((3, 8, 36, 3), 2, 236_335_208, 45.81),
    "BiTResNet152x4": ((3, 8, 36, 3), 4, 936_533_224, 182.78),
    "BiTResNet200x3": ((3, 24, 36, 3), 3, 568_633_000, 134.35),
}
SHAPE = (33, 46, 3)


def tiny(stage_depths=(1, 2), input_shape=SHAPE, classes=5, classifier_activation=None, **arguments):
    arguments |= {"input_shape": input_shape, "classes": classes, "classifier_activation": classifier_activation}
    return keras_vit.BiTResNet(stage_depths, 32, **arguments)


@pytest.mark.parametrize(
    ("stage_depths", "size", "stem_pooling_padding", "root_fill"),
    [((2, 1), (45, 33), None, 0.0), ((1, 2), (32, 48), "ignored", -np.inf)],
)
def test_equals_the_reference(stage_depths, size, stem_pooling_padding, root_fill):
    equation = functools.partial(reference.bit_resnet_logits, stage_depths=stage_depths, root_fill=root_fill)
    run_parity_test(
        tiny(stage_depths, (*size, 3), stem_pooling_padding=stem_pooling_padding), equation, random_inputs((*size, 3))
    )


@pytest.mark.slow
@counted_once
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_published_counts(factor):
    """One shallow model gives the counts of every depth of this width."""
    model, cost = shapes_only(lambda: keras_vit.BiTResNet((2, 2, 2, 2), 64 * factor))
    by_layer = counts_by_layer(model, cost, model.weights)
    rows = [row for row in PUBLISHED.values() if row[1] == factor]
    assert rows
    for stage_depths, _, parameters, giga_macs in rows:
        counted, macs = deep_counts(by_layer, stage_depths)
        assert counted == parameters
        assert macs == pytest.approx(giga_macs * 1e9, abs=0.005e9)


def test_refuses_impossible_arguments():
    for arguments, message in (
        ({"width": 48}, "width must be a multiple of 32, the number of groups. Received: 48"),
        ({"stem_pooling_padding": "same"}, "stem_pooling_padding must be one of 'zeros', 'ignored'. Received: 'same'"),
        ({"weights": "imagenet"}, "'BiT-ResNet@imagenet' is not the name of published weights"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.BiTResNet(**{"stage_depths": (1,), "width": 32, **arguments})
