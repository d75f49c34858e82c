import collections

import numpy as np
import pytest

from keras_vit.export.int8 import onnx as int8_onnx


def _session(path, folder=None):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # ONNX Runtime warns that the optimized file is specific to this processor.
    options.add_session_config_entry("session.x64quantprecision", "1")  # No overflow on x86 without VNNI.
    if folder is not None:
        options.optimized_model_filepath = str(folder / "optimized.onnx")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _counts(path):
    """{operator: count} of a file."""
    import onnx

    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


def _write(path, nodes, constants, channels):
    """Writes an ONNX file from `images` (N, H, W, channels) to `probabilities`."""
    import onnx
    from onnx import helper, numpy_helper

    shape = ["n", "h", "w", channels]
    images = helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, shape)
    outputs = helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, None)
    nodes = [helper.make_node(kind, inputs, [name], name, **options) for kind, name, inputs, options in nodes]
    tensors = [numpy_helper.from_array(array.astype("float32"), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", [images], [outputs], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.slow
def test_the_encoder_multiplies_integers(onnx_file, tmp_path):
    _, written = onnx_file
    images = np.random.default_rng(3).integers(0, 256, (9, 12, 8, 3)).astype("float32")
    path = tmp_path / "int8.onnx"
    int8_onnx.quantize(written.path, path, [images[:4], images[4:6]])
    assert [file.name for file in tmp_path.iterdir()] == ["int8.onnx"]
    assert path.stat().st_size < written.path.stat().st_size
    exact, session = _session(written.path), _session(path, tmp_path)
    for batch in (images[6:], images[:1]):
        expected = exact.run(["probabilities"], {"images": batch})[0]
        difference = np.abs(session.run(["probabilities"], {"images": batch})[0] - expected)
        assert difference.shape == (len(batch), 5)
        assert 1e-5 < difference.max() < 0.05
    # 6 products with a kernel in the first block. In the last block, 4 products compute the class token only.
    assert _counts(tmp_path / "optimized.onnx")["MatMulIntegerToFloat"] == 10


def _quantized(tmp_path, nodes, constants, images):
    """(operators that ONNX Runtime runs, outputs in float32, outputs in 8 bits)"""
    exact, path = tmp_path / "float32.onnx", tmp_path / "int8.onnx"
    _write(exact, nodes, constants, images.shape[-1])
    int8_onnx.quantize(exact, path, [images])
    outputs = [_session(file, tmp_path).run(None, {"images": images})[0] for file in (exact, path)]
    return _counts(tmp_path / "optimized.onnx"), *outputs


@pytest.mark.parametrize("is_norm", [False, True])
def test_a_channel_of_large_values(is_norm, tmp_path):
    """The product stays in float32, unless the weights of a norm can make the channel's range smaller."""
    rng = np.random.default_rng(5)
    scale = np.array([1, 1, 1000, 1, 1, 1])
    constants = {"first_kernel": rng.normal(size=(4, 6)), "scale": scale, "shift": 0.1 * scale}
    constants["second_kernel"] = rng.normal(size=(6, 5)) / scale[:, None]
    nodes = [
        ("MatMul", "first", ["images", "first_kernel"], {}),
        ("Mul", "scaled", ["first", "scale"], {}),
        ("Add", "shifted", ["scaled", "shift"], {}),
        ("MatMul", "probabilities", ["shifted" if is_norm else "scaled", "second_kernel"], {}),
    ]
    nodes = [node for node in nodes if is_norm or node[1] != "shifted"]
    counts, expected, outputs = _quantized(
        tmp_path, nodes, constants, rng.uniform(0, 255, (3, 2, 7, 4)).astype("float32")
    )
    assert counts["MatMulIntegerToFloat"] == (2 if is_norm else 1)
    assert 1e-6 < np.abs(outputs - expected).max() < 0.02 * np.abs(expected).max()


def test_convolutions_and_matrices_that_are_not_kernels(tmp_path):
    """The first convolution, the exchange of channels and the product of two activations stay in float32."""
    rng = np.random.default_rng(6)
    constants = {"kernel_0": rng.normal(size=(5, 3, 1, 1)), "kernel_1": rng.normal(size=(7, 5, 3, 3))}
    constants |= {"bias_1": rng.normal(size=7), "exchange": np.eye(4)[::-1]}
    nodes = [
        ("Transpose", "channels_first", ["images"], {"perm": [0, 3, 1, 2]}),
        ("Conv", "convolution_0", ["channels_first", "kernel_0"], {}),
        ("Relu", "relu_0", ["convolution_0"], {}),
        ("Conv", "convolution_1", ["relu_0", "kernel_1", "bias_1"], {"pads": [1, 1, 1, 1]}),
        ("Relu", "relu_1", ["convolution_1"], {}),
        ("MatMul", "exchanged", ["relu_1", "exchange"], {}),
        ("MatMul", "probabilities", ["relu_1", "exchanged"], {}),
    ]
    images = rng.uniform(0, 255, (3, 4, 4, 3)).astype("float32")
    counts, expected, outputs = _quantized(tmp_path, nodes, constants, images)
    assert (counts["Conv"] + counts["FusedConv"], counts["QLinearConv"]) == (1, 1)
    assert (counts["MatMul"], counts["MatMulIntegerToFloat"]) == (2, 0)
    assert 1e-6 < np.abs(outputs - expected).max() < 0.03 * np.abs(expected).max()


def test_no_product_in_8_bits(tmp_path):
    _write(tmp_path / "float32.onnx", [("Relu", "probabilities", ["images"], {})], {}, 3)
    with pytest.raises(ValueError, match=r"No product of this model can be computed in 8 bits.*precision='float32'"):
        int8_onnx.quantize(tmp_path / "float32.onnx", tmp_path / "int8.onnx", [np.ones((1, 2, 5, 3), "float32")])
    assert [file.name for file in tmp_path.iterdir()] == ["float32.onnx"]
