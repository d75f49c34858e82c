"""ResNets equal NumPy and exact counts. Also tests features that only ResNets have."""

import functools

import pytest

import keras_vit
from keras_vit.architectures import RESNETS, ResNetConfig
from tests.models.counting import counts_by_layer, deep_counts, shapes_only
from tests.models.steps import train
from tests.reference import visual_transformer as reference
from tests.test_case import counted_once, random_inputs, randomize, run_parity_test

# function: (config, parameters with 1,000 classes without the statistics of batch norms, MACs at 224). torchvision has
# the same numbers of parameters, see tests/peers/torchvision_resnet_test.py.
PUBLISHED = {
    "ResNet18": (ResNetConfig((2, 2, 2, 2), expansion=1), 11_689_512, 1_814_073_344),
    "ResNet34": (ResNetConfig((3, 4, 6, 3), expansion=1), 21_797_672, 3_663_761_408),
    "ResNet50": (ResNetConfig((3, 4, 6, 3)), 25_557_032, 4_089_184_256),
    "ResNet101": (ResNetConfig((3, 4, 23, 3)), 44_549_160, 7_801_405_440),
}
SHAPE = (33, 46, 3)


def tiny(size="R50", input_shape=SHAPE, classes=5, classifier_activation=None, **arguments):
    arguments |= {"input_shape": input_shape, "classes": classes, "classifier_activation": classifier_activation}
    return keras_vit.ResNet(size, **{"stage_depths": (1, 2), "width": 4, **arguments})


@pytest.mark.parametrize(("size", "stage_depths", "pixels"), [("R50", (1, 2), (45, 33)), ("R18", (2, 1), (32, 48))])
def test_equals_the_reference(size, stage_depths, pixels):
    equation = functools.partial(reference.resnet_logits, stage_depths=stage_depths)
    run_parity_test(tiny(size, (*pixels, 3), stage_depths=stage_depths), equation, random_inputs((*pixels, 3)))


def test_strides_in_the_first_convolution():
    equation = functools.partial(reference.resnet_logits, stage_depths=(1, 1), strides_first=True)
    run_parity_test(tiny(strides_first=True, stage_depths=(1, 1)), equation, random_inputs(SHAPE))


@pytest.mark.slow
@counted_once
@pytest.mark.parametrize("size", ["R18", "R50"])
def test_published_counts(size):
    """One shallow model gives the counts of every depth of this kind of units."""
    by_layer = counts_by_layer(*shapes_only(lambda: keras_vit.ResNet(size, stage_depths=(2, 2, 2, 2))))
    rows = [row for row in PUBLISHED.values() if row[0].expansion == RESNETS[size].expansion]
    assert len(rows) == 2
    for config, *counts in rows:
        assert deep_counts(by_layer, config.stage_depths) == tuple(counts)


def test_table_of_sizes():
    sizes = {f"R{function.removeprefix('ResNet')}": config for function, (config, *_) in PUBLISHED.items()}
    assert sizes == RESNETS


def test_a_size_may_be_a_config():
    config = ResNetConfig((1,), 6, 1)
    assert keras_vit.describe(keras_vit.ResNet(config, input_shape=SHAPE)).config == config
    model = tiny(config, stage_depths=(2,), width=5, dropout_rate=0.25)
    assert keras_vit.describe(model).config == ResNetConfig((2,), 5, 1, dropout_rate=0.25)
    assert model.get_layer("dropout").rate == 0.25


@pytest.mark.slow
def test_freezing():
    """A frozen norm also keeps its statistics."""
    model = randomize(tiny())
    assert keras_vit.freeze(model, "stage_1_unit_0") == ["stem_conv", "stem_norm", "stage_0_unit_0", "stage_1_unit_0"]
    trained = {weight.path.split("/")[0] for weight in model.trainable_weights}
    assert trained == {"stage_1_unit_1", "predictions"}
    assert {path.split("/")[0] for path in train(model, SHAPE)} == trained


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": "R152"}, ValueError, "'R152' is not a published ResNet.* Available: R18, R34, R50, R101. A keras"),
        ({"size": 50}, ValueError, "50 is not a published ResNet.* Available: R18"),
        (
            {"depths": (1,)},
            TypeError,
            "'depths' is not a field of ResNetConfig.* Accepted: stage_depths, width, exp",
        ),
        ({"stage_depths": ()}, ValueError, r"stage_depths must be a tuple of at least one integer. Received: \(\)"),
        ({"expansion": 2}, ValueError, r"expansion must be 4 \(bottleneck units\) or 1 \(basic units\). Received: 2"),
        ({"pooling": "max"}, ValueError, "pooling must be 'avg', or None together with.*pooling='max'"),
        ({"pooling": None}, ValueError, "pooling must be 'avg', or None together with include_top=False.*pooling=None"),
        ({"classes": 0}, ValueError, "classes must be a positive integer. Received: 0"),
        ({"weights": "imagenet"}, ValueError, "'ResNet@imagenet' is not the name of published weights"),
        ({"weights": "missing.weights.h5"}, ValueError, "weights='missing.weights.h5': there is no such file"),
        ({"weights": "missing.pth"}, FileNotFoundError, "There is no file or folder 'missing.pth'"),
        ({"input_shape": (32, 32)}, ValueError, r"input_shape must be \(height, width, channels\)"),
    ],
)
def test_refuses_impossible_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        tiny(**arguments)
