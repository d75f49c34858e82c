"""ONNX Runtime and OpenVINO fuse operations into one kernel where they have such a kernel."""

import collections

import numpy as np
import pytest

from keras_vit.export.runtimes import export_model
from tests.export.exports import rotary


def _onnx_operations(path, folder):
    """{operation: count} in the file, and after ONNX Runtime has optimized it."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3  # ONNX Runtime warns that the optimized file is specific to this processor.
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    models = onnx.load(path), onnx.load(options.optimized_model_filepath, format="protobuf")
    assert {node.domain for node in models[0].graph.node} == {""}  # The file has no operators of a single runtime.
    return [collections.Counter(node.op_type for node in model.graph.node) for model in models]


@pytest.mark.slow
def test_onnx_runtime_joins_norms_and_gelus(onnx_file, tmp_path):
    written, run = _onnx_operations(onnx_file[1].path, tmp_path)
    assert (run["LayerNormalization"], run["BiasGelu"]) == (2 * 2 + 1, 2)
    assert not {"Erf", "Tanh", "Sqrt", "ReduceMean"} & set(run)
    # A block has 8 products: queries, keys, values, two in the attention, its output, and two in the MLP. Only the
    # classifier uses Gemm, which is slower. The class token's query is multiplied with the transposed tokens.
    assert (run["MatMul"], run["FusedMatMul"], run["Gemm"]) == (8 * 2 - 1, 1, 1)
    # The patches and the class token need the batch size. Blocks do not.
    assert written["Shape"] == 2


@pytest.mark.slow
def test_inner_norms_and_rotations_in_onnx(tmp_path):
    """Cosines and sines are constants. Each exchange of channels is a product, because `flip` has no fast operator."""
    images = np.random.default_rng(3).integers(0, 256, (3, 12, 15, 3))
    path = export_model(rotary(), tmp_path / "pets.onnx", "onnx", images=images).path
    written, run = _onnx_operations(path, tmp_path)
    assert run["LayerNormalization"] == 4 * 2 + 1
    assert run["QuickGelu"] == 2  # ONNX Runtime computes the SiLU of SwiGLU with this operator.
    # The 8 products of a block, and two exchanges, of queries and keys.
    assert (run["MatMul"] + run["FusedMatMul"], run["Gemm"]) == (10 * 2, 1)
    assert not {"Cos", "Sin", "ReverseSequence"} & set(written)
    assert written["Shape"] == 3  # The patches, the registers and the class token need the batch size.


@pytest.mark.slow
def test_rotations_are_constants_in_litert(litert_file):
    from ai_edge_litert.interpreter import Interpreter

    operations = Interpreter(str(litert_file[1].path))._get_ops_details()  # The public functions list only tensors.
    kinds = collections.Counter(operation["op_name"] for operation in operations)
    assert kinds["GELU"] == 2
    assert not {"COS", "SIN"} & set(kinds)


@pytest.mark.slow
def test_openvino_joins_norms_and_attention(openvino_file):
    import openvino

    path = openvino_file[1].path
    nodes = openvino.Core().compile_model(path, "CPU").get_runtime_model().get_ops()
    kinds = [node.get_rt_info()["layerType"] for node in nodes]
    assert kinds.count("MVN") == 2 + 1 + 5  # The norms of the block and the encoder, and the group norms of the stem.
    assert not {"ReduceMean", "SquaredDifference"} & set(kinds)
    kinds = [node.get_type_name() for node in openvino.Core().read_model(path).get_ops()]
    assert kinds.count("ScaledDotProductAttention") == 1
