import collections

import numpy as np
import pytest

from keras_vit.export.int8 import litert


def _interpreter(path):
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(str(path))


def _run(path, images):
    return _interpreter(path).get_signature_runner("serving_default")(images=images)["probabilities"]


def _images(num_images):
    return np.random.default_rng(num_images).uniform(0, 255, (num_images, 8, 9, 3)).astype("float32")


@pytest.fixture(scope="module")
def int8_file(litert_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8") / "tiny.tflite"
    litert.quantize(litert_file[1].path, path, [_images(5), _images(2)])
    return path


def test_kernels_are_integers(int8_file):
    from ai_edge_litert import schema_py_generated
    from ai_edge_litert.tools import flatbuffer_utils

    interpreter = _interpreter(int8_file)
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    kernels = collections.defaultdict(list)
    for operation in interpreter._get_ops_details():  # The public functions list only tensors.
        if operation["op_name"] in ("FULLY_CONNECTED", "CONV_2D"):
            kernels[operation["op_name"]].append(tensors[operation["inputs"][1]])
    # Queries, keys, values, output and MLP of the block; queries, output and MLP of the pooling; the classifier.
    assert {kind: len(found) for kind, found in kernels.items()} == {"FULLY_CONNECTED": 6 + 4 + 1, "CONV_2D": 1}
    for kernel in kernels["FULLY_CONNECTED"] + kernels["CONV_2D"]:
        assert kernel["dtype"] == np.int8
        assert kernel["quantization_parameters"]["scales"].shape == kernel["shape"][:1]
    codes = flatbuffer_utils.read_model(str(int8_file)).operatorCodes
    versions = {max(code.builtinCode, code.deprecatedBuiltinCode): code.version for code in codes}
    kinds = schema_py_generated.BuiltinOperator
    assert (versions[kinds.FULLY_CONNECTED], versions[kinds.CONV_2D]) == (12, 5)
    ends = interpreter.get_input_details() + interpreter.get_output_details()
    assert [end["dtype"] for end in ends] == [np.float32, np.float32]


@pytest.mark.parametrize("num_images", [1, 3])
def test_answers_are_close(num_images, int8_file, litert_file):
    images = _images(num_images)
    difference = np.abs(_run(int8_file, images) - _run(litert_file[1].path, images)).max()
    assert 1e-5 < difference < 0.05
    assert int8_file.stat().st_size < litert_file[1].path.stat().st_size


def test_outputs_change_less_than_with_the_nearest_integers():
    rng = np.random.default_rng(8)
    inputs = rng.normal(size=(900, 13)) @ rng.normal(size=(13, 70))  # More inputs than `_COLUMNS_AT_ONCE`.
    inputs += 0.1 * rng.normal(size=inputs.shape)
    weights = rng.uniform(-127, 127, (6, 70))
    integers = litert._round_in_turn(weights, inputs.T @ inputs)
    assert np.array_equal(integers, np.round(integers))
    assert np.abs(integers).max() <= 127
    error, nearest = (np.square(inputs @ (rounded - weights).T).sum() for rounded in (integers, np.round(weights)))
    assert error < 0.3 * nearest


def test_inputs_that_are_always_zero():
    moments = np.zeros((3, 3))
    assert np.array_equal(litert._round_in_turn(np.array([[1.4, -2.6, 0]]), moments), [[1, -3, 0]])


def test_refused(int8_file, litert_file, tmp_path):
    with pytest.raises(ValueError, match=r"needs calibration images\. Received: none"):
        litert.quantize(litert_file[1].path, tmp_path / "new.tflite", [])
    with pytest.raises(ValueError, match=r"tiny\.tflite has no dense layer.*precision='float32'"):
        litert.quantize(int8_file, tmp_path / "new.tflite", [_images(2)])
    with pytest.raises(ValueError, match=r"not finite.*Check the images"):
        litert.quantize(litert_file[1].path, tmp_path / "new.tflite", [np.full((1, 8, 9, 3), np.nan, "float32")])
    with pytest.raises(ValueError, match=r"cannot run the file for a calibration image \(9, 8, 3\): .*dimension 1"):
        litert.quantize(litert_file[1].path, tmp_path / "new.tflite", [np.zeros((2, 9, 8, 3), "float32")])
    assert not list(tmp_path.iterdir())
