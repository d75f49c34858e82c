import numpy as np
import pytest

from keras_vit.export.int8 import openvino as int8_openvino

CHANNELS = 6


def _write(path, scale):
    """Writes a file with three products: a plain one, one whose input is multiplied by `scale`, and a classifier."""
    import openvino
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)
    kernels = [rng.uniform(0.1, 1, shape).astype("float32") for shape in [(3, CHANNELS), (CHANNELS, 9), (9, 5)]]
    images = ops.parameter([-1, 4, 7, 3], np.float32, "images")
    tokens = ops.matmul(ops.reshape(images, [0, -1, 3], special_zero=True), kernels[0], False, False, name="plain")
    scaled = ops.multiply(ops.relu(tokens), np.asarray(scale, "float32"))
    hidden = ops.relu(ops.matmul(scaled, kernels[1] / np.float32(np.max(scale)), False, False, name="scaled"))
    pooled = ops.reduce_mean(hidden, [1], keep_dims=False)
    logits = ops.matmul(pooled, np.float32(0.01) * kernels[2], False, False, name="classifier")
    probabilities = ops.softmax(logits, 1)
    probabilities.output(0).set_names({"probabilities"})
    openvino.save_model(openvino.Model([probabilities], [images]), path, compress_to_fp16=False)


def _quantized_products(path):
    """Names of the products whose kernel has 8 bits."""
    import openvino

    products = [node for node in openvino.Core().read_model(path).get_ordered_ops() if node.get_type_name() == "MatMul"]
    kernels = {node.get_friendly_name(): node.input_value(1).get_node().get_type_name() for node in products}
    return {name for name, kind in kernels.items() if kind != "Constant"}


def _run(path, images):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(images)["probabilities"]


@pytest.mark.parametrize(
    ("large", "expected"), [pytest.param(1, {"plain", "scaled"}, marks=pytest.mark.slow), (1e3, {"plain"})]
)
def test_products_in_8_bits(large, expected, tmp_path, capsys, monkeypatch):
    """A product whose input has outliers stays in float32. So does the classifier, which has one row."""
    monkeypatch.setattr(int8_openvino, "_OUTLIER", 3)  # The images have too few pixels for larger outliers.
    exact, path = tmp_path / "exact.xml", tmp_path / "int8.xml"
    images = np.random.default_rng(1).uniform(0, 255, (5, 4, 7, 3)).astype("float32")
    _write(exact, [large] + [1] * (CHANNELS - 1))
    int8_openvino.quantize(str(exact), str(path), [images])
    assert capsys.readouterr().out == ""
    assert _quantized_products(path) == expected
    for batch in (images[:1], images[:3]):
        difference = np.abs(_run(path, batch) - _run(exact, batch)).max()
        assert 1e-6 < difference < 0.05


def test_the_file_with_the_smallest_error(tmp_path, monkeypatch):
    """A model with several convolutions is quantized with several settings."""
    import openvino
    from openvino import opset13 as ops

    rng = np.random.default_rng(2)
    values = images = ops.parameter([-1, 3, 8, 9], np.float32, "images")
    for _ in range(2):
        values = ops.convolution(
            values, rng.normal(size=(3, 3, 1, 1)).astype("float32"), [1, 1], [0, 0], [0, 0], [1, 1]
        )
    exact, written = tmp_path / "exact.xml", tmp_path / "int8.xml"
    openvino.save_model(openvino.Model([values], [images]), exact, compress_to_fp16=False)
    shifts, ignored = iter([0.5, 0.125, -0.25]), []

    def quantize(model, dataset, ignored_scope=None, **settings):
        ignored.append(ignored_scope)
        outputs = model.get_results()[0].input_value(0)
        return openvino.Model([ops.add(outputs, np.float32(next(shifts)))], model.get_parameters())

    monkeypatch.setattr("nncf.quantize", quantize)
    pixels = rng.uniform(0, 255, (5, 3, 8, 9)).astype("float32")
    int8_openvino.quantize(str(exact), str(written), [pixels])
    assert [scope and scope.types for scope in ignored] == [[], ["Convolution", "GroupConvolution"], None]
    outputs = [int8_openvino.compiled_in_float32(str(path))(pixels)[0] for path in (exact, written)]
    np.testing.assert_allclose(outputs[1] - outputs[0], 0.125, atol=1e-3)


def test_one_row_for_each_image():
    import openvino

    shapes = {(-1, 12): True, (-1, 1, 12): True, (-1, 7, 12): False, (-1, -1, 12): False, (-1, 1, 2, 12): False}
    for shape, expected in shapes.items():
        assert int8_openvino._has_one_row(openvino.PartialShape(list(shape))) == expected
