import pytest

from keras_vit.layers import PointwiseConvolution
from tests.reference import visual_transformer as reference
from tests.test_case import assert_close, canonical_weights, norm_shapes, random_inputs, run_layer_test, run_parity_test


def projection_shapes(name, channels, filters, num_groups=1, has_norm=True):
    """Shapes of the weights of a projection inside a layer."""
    kernel = {f"{name}/kernel": (channels // num_groups, filters)}
    return kernel | (norm_shapes(f"{name}/norm", filters) if has_norm else {})


@pytest.mark.on_torch
def test_layer(tmp_path):
    shapes = {"kernel": (3, 8)} | norm_shapes("norm", 8)
    arguments = {"filters": 8, "num_groups": 2, "use_batch_norm": True}
    run_layer_test(PointwiseConvolution, arguments, [(5, 6)], (5, 8), shapes, tmp_path)


@pytest.mark.parametrize(
    ("channels", "filters", "num_groups", "use_batch_norm"), [(5, 7, 1, False), (6, 4, 2, True), (6, 9, 3, False)]
)
def test_equals_the_equation(channels, filters, num_groups, use_batch_norm):
    def equation(x, w):
        return reference.project(x, {f"tested/{path}": array for path, array in w.items()}, "tested")

    layer = PointwiseConvolution(filters, num_groups, use_batch_norm)
    run_parity_test(layer, equation, random_inputs((11, channels)))


def test_in_training_statistics_are_those_of_the_batch():
    [values] = random_inputs((7, 6), batch=5)
    layer = PointwiseConvolution(8, use_batch_norm=True)
    layer(3 * values + 1, training=True)
    weights = canonical_weights(layer)
    assert_close(weights["norm/moving_mean"], 0.1 * ((3 * values + 1) @ weights["kernel"]).mean((0, 1)))


def test_macs():
    assert PointwiseConvolution(8).macs((None, 5, 6)) == 5 * 6 * 8
    assert PointwiseConvolution(8, 2).macs((None, 5, 6)) == 5 * 2 * 3 * 4


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"multiple of num_groups. Received: filters=8, num_groups=3"):
        PointwiseConvolution(8, 3)
    with pytest.raises(ValueError, match=r"splits channels into 4 groups.*Received: 6 channels"):
        PointwiseConvolution(8, 4).build((None, 5, 6))
