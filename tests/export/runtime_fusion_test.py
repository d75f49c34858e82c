"""ONNX Runtime and OpenVINO fuse operations into one kernel where they have such a kernel."""

import collections

import pytest

import keras_vit
from keras_vit.export.runtimes import export_model
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


def test_openvino_joins_norms(openvino_file):
    # The norms of the block and the encoder, and the group norms of the stem.
    _assert_openvino_joins_norms(openvino_file[1].path, num_norms=2 + 1 + 5)


def _model(mlp):
    config = keras_vit.ViTConfig(patch_size=4, hidden_dim=32, num_layers=2, num_heads=2, mlp_dim=64, mlp=mlp)
    return randomize(keras_vit.ViT(config, input_shape=(12, 8, 3), classes=5), scale=0.3)


@pytest.mark.slow
def test_other_gelus(tmp_path):
    model = _model("gelu_tanh")
    path = export_model(model, tmp_path / "pets.onnx", "onnx").path
    _assert_onnx_runtime_joins_norms_and_gelus(path, "FastGelu", tmp_path)
    _assert_openvino_joins_norms(export_model(model, tmp_path / "pets.xml", "openvino").path, num_norms=2 * 2 + 1)
