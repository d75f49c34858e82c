import keras
import pytest

from keras_vit.layers.convolutional.convolutional_block_attention import ConvolutionalBlockAttention
from tests.reference import resnet_baselines as reference
from tests.test_case import norm_shapes, random_inputs, run_layer_test, run_parity_test


def _torch_fails():
    """Whether PyTorch cannot differentiate a bfloat16 convolution with one output: on CPUs without AVX-512."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.on_torch
@pytest.mark.skipif(_torch_fails(), reason="PyTorch's gradient fails: slow_conv2d: grad_weight must be contiguous")
def test_layer(tmp_path):
    shapes = {"dense_1/kernel": (6, 2), "dense_2/kernel": (2, 6), "conv/kernel": (3, 3, 2, 1)} | norm_shapes("norm", 1)
    arguments = {"reduction": 3, "kernel_size": 3}
    run_layer_test(ConvolutionalBlockAttention, arguments, [(4, 7, 6)], (4, 7, 6), shapes, tmp_path)


@pytest.mark.parametrize(("reduction", "hidden", "kernel_size"), [(2, 6, 3), (16, 1, 7)])
def test_equals_the_equation(reduction, hidden, kernel_size):
    layer = ConvolutionalBlockAttention(reduction, kernel_size)
    run_parity_test(layer, reference.cbam, random_inputs((3, 5, 12)))
    # The MLP of the channel attention runs twice.
    assert layer.macs((None, 3, 5, 12)) == 2 * 2 * 12 * hidden + 15 * kernel_size**2 * 2


def test_refuses_an_even_kernel():
    with pytest.raises(ValueError, match=r"kernel_size must be odd\. Received: 4"):
        ConvolutionalBlockAttention(2, 4)
