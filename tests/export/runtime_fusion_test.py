"""ONNX Runtime and OpenVINO fuse operations into one kernel where they have such a kernel."""

import collections

import numpy as np
import pytest

import keras_vit
from keras_vit.export.runtimes import export_model
from tests.export.exports import rotary
from tests.test_case import randomize


def _assert_openvino_joins_norms(path, num_norms):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU")
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    kinds = collections.Counter(info["layerType"] for info in nodes)
    assert kinds["MVN"] == num_norms
    assert not {"ReduceMean", "SquaredDifference"} & set(kinds)


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


def _assert_onnx_runtime_joins_norms_and_gelus(path, gelu, folder, num_layers=2):
    written, run = _onnx_operations(path, folder)
    assert run["LayerNormalization"] == 2 * num_layers + 1
    assert run[gelu] == num_layers
    assert not {"Erf", "Tanh", "Sqrt", "ReduceMean"} & set(run)
    # A block has 8 products: queries, keys, values, two in the attention, its output, and two in the MLP. Only the
    # classifier uses Gemm, which is slower. The class token's query is multiplied with the transposed tokens.
    assert (run["MatMul"], run["FusedMatMul"], run["Gemm"]) == (8 * num_layers - 1, 1, 1)
    # The patches and the class token need the batch size. Blocks do not.
    assert written["Shape"] == 2


def test_onnx_runtime_joins_norms_and_gelus(onnx_file, tmp_path):
    _assert_onnx_runtime_joins_norms_and_gelus(onnx_file[1].path, "BiasGelu", tmp_path)


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


def test_rotations_are_constants_in_litert(litert_file):
    from ai_edge_litert.interpreter import Interpreter

    operations = Interpreter(str(litert_file[1].path))._get_ops_details()  # The public functions list only tensors.
    kinds = collections.Counter(operation["op_name"] for operation in operations)
    assert kinds["GELU"] == 2
    assert not {"COS", "SIN"} & set(kinds)


def test_openvino_joins_norms_and_attention(openvino_file):
    import openvino

    path = openvino_file[1].path
    # The norms of the block and the encoder, and the group norms of the stem.
    _assert_openvino_joins_norms(path, num_norms=2 + 1 + 5)
    kinds = [node.get_type_name() for node in openvino.Core().read_model(path).get_ops()]
    assert kinds.count("ScaledDotProductAttention") == 1


def _model(mlp):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=32, num_layers=2, num_heads=2, mlp_dim=64, mlp=mlp)
    return randomize(keras_vit.ViT(config, input_shape=(12, 8, 3), classes=5), scale=0.3)


@pytest.mark.slow
def test_other_gelus(tmp_path):
    model = _model("gelu_tanh")
    path = export_model(model, tmp_path / "pets.onnx", "onnx").path
    _assert_onnx_runtime_joins_norms_and_gelus(path, "FastGelu", tmp_path)
    _assert_openvino_joins_norms(export_model(model, tmp_path / "pets.xml", "openvino").path, num_norms=2 * 2 + 1)
