"""What ONNX Runtime and OpenVINO make of files: one kernel where there are kernels."""

import collections

import pytest

import keras_vit
from keras_vit.export.runtimes import export_model
from tests.test_case import TENSORFLOW, randomize

pytestmark = pytest.mark.skipif(not TENSORFLOW, reason="another process writes the file, the same one")
NUM_LAYERS = 2


def _export(path, format, **changes):
    sizes = {"patch_size": 4, "hidden_dim": 32, "num_layers": NUM_LAYERS, "num_heads": 2, "mlp_dim": 64}
    config = keras_vit.ViTConfig(**(sizes | changes), pooling="token")
    # Where weights are zero, runtimes leave out what they do.
    model = randomize(keras_vit.ViT(config, input_shape=(12, 8, 3), classes=5), scale=0.3)
    return export_model(model, path, format).path


def _onnx_operations(path):
    """{operation: how many}, in the file and in what ONNX Runtime makes of it."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    options.log_severity_level = 3  # It warns that the file is for this processor.
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    models = onnx.load(path), onnx.load(options.optimized_model_filepath, format="protobuf")
    assert {node.domain for node in models[0].graph.node} == {""}  # Any runtime can read it.
    return [collections.Counter(node.op_type for node in model.graph.node) for model in models]


@pytest.mark.parametrize(("mlp", "gelu"), [("gelu_tanh", "FastGelu"), ("gelu_exact", "BiasGelu")])
def test_onnx_runtime_joins_norms_and_gelus(mlp, gelu, tmp_path):
    written, run = _onnx_operations(_export(tmp_path / "pets.onnx", "onnx", mlp=mlp))
    assert run["LayerNormalization"] == 2 * NUM_LAYERS + 1
    assert run[gelu] == NUM_LAYERS
    assert not {"Erf", "Tanh", "Sqrt", "ReduceMean"} & set(run)
    # Queries, keys, values, two of the attention, its output, two of the MLP. Gemm, the other form of a product and its
    # bias, is slower there; the classifier is one. The class token asks the tokens themselves, turned in the product.
    assert (run["MatMul"], run["FusedMatMul"], run["Gemm"]) == (8 * NUM_LAYERS - 1, 1, 1)
    # Patches and class token ask for the size of the batch; blocks do not.
    assert written["Shape"] == 2


@pytest.mark.parametrize(
    ("changes", "groups"), [({}, 0), ({"patch_size": 1, "stem": keras_vit.StemConfig((1,), width=32)}, 5)]
)
def test_openvino_joins_norms(changes, groups, tmp_path):
    import openvino

    compiled = openvino.Core().compile_model(_export(tmp_path / "pets.xml", "openvino", **changes), "CPU")
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    kinds = collections.Counter(info["layerType"] for info in nodes)
    assert kinds["MVN"] == 2 * NUM_LAYERS + 1 + groups
    assert not {"ReduceMean", "SquaredDifference"} & set(kinds)
