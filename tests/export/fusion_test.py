import pathlib

import numpy as np
import pytest

import keras_vit
from tests.export.exports import rotary, save_pixel_signature
from tests.test_case import randomize

NUM_LAYERS = 2
GELUS = {"gelu_tanh": "GeluApproximate", "gelu_exact": "GeluExact"}


def _has_kernels():
    """Whether TensorFlow enables oneDNN: on Linux, for x86 processors with 8-bit or 16-bit products."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.is_file() else set()
    return bool(flags & {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile"})


pytestmark = pytest.mark.skipif(not _has_kernels(), reason="TensorFlow has no such kernels here")


def _operations(folder, images):
    """The operations that TensorFlow runs for a SavedModel, as a server does: [(operation, fused operations)]"""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], str(folder)).signature_def["predict_pixels_float"]
        options = v1.RunOptions(output_partition_graphs=True)
        found = v1.RunMetadata()
        feeds = {signature.inputs["images"].name: images}
        session.run(signature.outputs["probabilities"].name, feeds, options=options, run_metadata=found)
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    return [(node.op, b" ".join(node.attr["fused_ops"].list.s).decode()) for node in nodes]


@pytest.mark.slow
@pytest.mark.parametrize("mlp", GELUS)
def test_norms_and_gelus_are_one_kernel_each(mlp, tmp_path):
    sizes = {"patch_size": 4, "hidden_dim": 32, "num_layers": NUM_LAYERS, "num_heads": 2, "mlp_dim": 64}
    config = keras_vit.ViTConfig(**sizes, mlp=mlp, pooling="token")
    # TensorFlow leaves out operations with zero weights.
    save_pixel_signature(randomize(keras_vit.ViT(config, input_shape=(12, 8, 3), classes=5), scale=0.3), tmp_path)
    operations = _operations(tmp_path, np.zeros((2, 12, 8, 3), "float32"))
    assert [op for op, _ in operations].count("_MklLayerNorm") == 2 * NUM_LAYERS + 1
    assert [joined for _, joined in operations].count(f"BiasAdd {GELUS[mlp]}") == NUM_LAYERS
    # Queries, keys, values, and outputs of attention and MLP in each block, but the last block computes no keys and
    # values. The patches and the classifier add one each.
    assert [joined for _, joined in operations].count("BiasAdd") == 5 * NUM_LAYERS - 2 + 2
    assert not {"Tanh", "Erf", "Rsqrt"} & {op for op, _ in operations}


@pytest.mark.slow
def test_inner_norms_are_one_kernel_each_and_rotations_are_constants(tmp_path):
    save_pixel_signature(rotary(), tmp_path)
    operations = _operations(tmp_path, np.zeros((2, 12, 15, 3), "float32"))
    names = [op for op, _ in operations]
    assert names.count("_MklLayerNorm") == 4 * NUM_LAYERS + 1
    # In each block, queries, values, the outputs of the attention and both layers of the MLP have biases, and keys have
    # none. The patches and the classifier add one each.
    assert [joined for _, joined in operations].count("BiasAdd") == 5 * NUM_LAYERS + 2
    # In each block, the keys, and the exchange of interleaved channels of queries and keys.
    assert names.count("_MklMatMul") == 3 * NUM_LAYERS
    assert not {"Cos", "Sin", "Rsqrt"} & set(names)
