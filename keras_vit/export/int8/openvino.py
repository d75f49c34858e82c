"""OpenVINO files that compute in 8 bits. NNCF quantizes them. Shapes: N images, H W C image, B batch, D channels."""

import contextlib
import io
import logging

import numpy as np

from keras_vit.export.calibration import each_image
from keras_vit.export.formats.openvino import compiled_in_float32
from keras_vit.export.messages import without_messages

_SMOOTHING = 0.8
"""Strength of SmoothQuant: 0 scales only by the weights, 1 only by the inputs."""
_CONVOLUTIONS = ("Convolution", "GroupConvolution")
_JUDGING, _CHUNK = 32, 4
"""Maximum number of images of one size on which several settings are compared, and their number at a time."""
_OUTLIER = 100
"""Products stay in float32 if their input has a value more than this many times as large as its root mean square."""


def quantize(float_file, file, batches):
    """Writes a file that computes products in 8 bits: post-training quantization of NNCF.

    Weights have a scale for each output channel. The inputs of a product have one scale and zero point. In ViTs,
    SmoothQuant (Xiao et al., 2022, arXiv:2211.10438) scales channels so that inputs and weights have similar ranges.
    Norms, GELUs and outputs stay in float32. In ViTs, so do products of one row for each image, such as the classifier,
    and products whose inputs have outliers.

    No setting of NNCF is right for all models with convolutions. So they are quantized with several, and the file with
    the smallest error for the given images is written.

    Args:
        float_file: Path of a float32 file from `write`.
        file: Path of the `.xml` file to write.
        batches: List of arrays (N, H, W, C) that calibrate the ranges, pixels in [0, 255].
    """
    import nncf
    import openvino

    core = openvino.Core()
    images = [image for batch in batches for image in batch]
    model = core.read_model(float_file)
    settings, best, smallest = _settings(model, batches), None, np.inf
    expected = _outputs(model, batches) if len(settings) > 1 else []
    for each in settings:
        dataset = nncf.Dataset(images, lambda image: image[None].astype("float32"))
        # NNCF prints progress bars, and logs which products are not quantized.
        with without_messages("nncf", logging.WARNING), contextlib.redirect_stdout(io.StringIO()):
            quantized = nncf.quantize(core.read_model(float_file), dataset, subset_size=len(images), **each)
        outputs = _outputs(quantized, batches) if expected else []
        error = sum(np.abs(one - other).mean() for one, other in zip(expected, outputs, strict=True))
        if best is None or error < smallest:
            best, smallest = quantized, error
    openvino.save_model(best, file, compress_to_fp16=False)


def _settings(model, batches):
    """The settings to try, a list of arguments of `nncf.quantize`."""
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    nodes = model.get_ordered_ops()
    products = [
        node
        for node in nodes
        if node.get_type_name() == "MatMul" and node.input_value(1).get_node().get_type_name() == "Constant"
    ]
    # They take little time, and their errors change the probabilities directly.
    single_rows = [product for product in products if _has_one_row(product.input_value(0).get_partial_shape())]
    unchanged = [*single_rows, *_with_outliers(model, products, batches)]
    names = list(dict.fromkeys(product.get_friendly_name() for product in unchanged))
    # The default clips large values. In ViTs these matter.
    ranges = {"activations_range_estimator_params": RangeEstimatorParametersSet.MINMAX}
    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING)
    for_vits = {
        "model_type": nncf.ModelType.TRANSFORMER,
        "ignored_scope": nncf.IgnoredScope(names=names),
        "advanced_parameters": nncf.AdvancedQuantizationParameters(**ranges, smooth_quant_alphas=smoothing),
    }
    if sum(node.get_type_name() in _CONVOLUTIONS for node in nodes) <= 1:  # The patch embedding.
        return [for_vits]
    without_convolutions = nncf.IgnoredScope(names=names, types=[*_CONVOLUTIONS], validate=False)
    return [
        for_vits,
        for_vits | {"ignored_scope": without_convolutions},
        {"advanced_parameters": nncf.AdvancedQuantizationParameters(**ranges)},
    ]


def _outputs(model, batches):
    """All outputs for some of the images, a list of arrays."""
    compiled = compiled_in_float32(model)
    # Several images at a time: in models with tokens of VTs, SmoothQuant makes errors that one image does not show.
    chunks = [
        batch[start : start + _CHUNK].astype("float32")
        for batch in batches
        for start in range(0, min(len(batch), _JUDGING), _CHUNK)
    ]
    return [output for chunk in chunks for output in compiled(chunk).to_tuple()]


def _has_one_row(shape):
    """Whether a tensor (B, ..., D) has one row for each of the B images."""
    return all(axis.is_static and axis.get_length() == 1 for axis in list(shape)[1:-1])


def _with_outliers(model, products, batches):
    """The products whose input has values more than `_OUTLIER` times its root mean square.

    One range for such an input would round nearly all other values to zero. ViTs can have one or two such products,
    after a GELU (Sun et al., 2024, "Massive Activations in Large Language Models", arXiv:2402.17762).
    """
    import openvino
    from openvino import opset13 as ops

    outputs = []
    for values in (product.input_value(0) for product in products):
        axes = np.arange(values.get_partial_shape().rank.get_length())
        outputs.append(ops.reduce_max(ops.absolute(values), axes, keep_dims=False))
        outputs.append(ops.reduce_mean(ops.multiply(values, values), axes, keep_dims=False))
    measured = compiled_in_float32(openvino.Model(outputs, model.get_parameters()))
    results = np.array([[float(value) for value in measured(image).to_tuple()] for image in each_image(batches)])
    has_outliers = results[:, ::2].max(axis=0) > _OUTLIER * np.sqrt(results[:, 1::2].mean(axis=0))
    return [product for product, has in zip(products, has_outliers, strict=True) if has]
