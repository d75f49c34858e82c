"""LiteRT files with kernels in 8 bits. Shapes: N images, H W C image; O outputs and I inputs of a layer."""

import collections
import os
import pathlib

import numpy as np

from keras_vit.export.calibration import each_image

_DAMPING = 0.01
_COLUMNS_AT_ONCE = 64


def quantize(float_file, file, batches):
    """Writes a LiteRT file with kernels in 8 bits, from a file with kernels in float32.

    The weights of each output of a dense layer or convolution have a scale of their own. When the file runs, LiteRT
    quantizes the inputs of these layers to 8 bits as well, with one scale for each token or image, and multiplies
    integers. All other values remain float32, including the file's inputs and outputs. Signature, variable batch size
    and variable image size do not change.

    The weights of dense layers are rounded by GPTQ (arXiv 2210.17323, algorithm 1): the weights of each input are
    rounded in turn, and the weights of the remaining inputs compensate the error, so that the layer's outputs for the
    calibration images change as little as possible. The weights of convolutions are rounded to the nearest integers.

    Args:
        float_file: Path of a file that `keras_vit.export_model` wrote with `precision="float32"`.
        file: Path of the new file.
        batches: Calibration images, a list of arrays (N, H, W, C) with pixels in [0, 255]. Arrays may have
            different sizes if the file accepts them.

    Raises:
        ValueError: If there are no calibration images, if the file has no kernels in float32, if LiteRT cannot run the
            file for an image, or if the inputs of a layer are not finite.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    if not sum(len(images) for images in batches):
        raise ValueError("Quantization needs calibration images. Received: none. Give arrays of shape (N, H, W, C).")
    model = flatbuffer_utils.read_model(str(float_file))
    dense, convolutions = _kernels(model)
    if not dense and not convolutions:
        raise ValueError(
            f"{pathlib.Path(float_file).name} has no dense layer and no convolution with a float32 kernel. Give a file "
            f"that keras_vit.export_model wrote with precision='float32'."
        )
    for inputs, moments in _second_moments(model, list(dense), batches).items():
        weights = [_values(model, kernel) for kernel in dense[inputs]]
        scales = [_scales(array) for array in weights]
        # Layers with the same inputs, such as queries, keys and values, are rounded together.
        integers = _round_in_turn(np.concatenate(weights) / np.concatenate(scales), moments)
        parts = np.split(integers, np.cumsum([len(array) for array in weights])[:-1])
        for kernel, part, scale in zip(dense[inputs], parts, scales, strict=True):
            _store(model, kernel, part, scale)
    for kernel in convolutions:
        values = _values(model, kernel)
        scale = _scales(values)
        _store(model, kernel, np.round(values / scale), scale)
    _raise_versions(model)
    _drop_unused_buffers(model)
    flatbuffer_utils.write_model(model, str(file))


def _kernels(model):
    """Returns ({inputs: kernels} of the dense layers, kernels of the convolutions). All are indices of tensors."""
    from ai_edge_litert import schema_py_generated as schema

    kinds = schema.BuiltinOperator
    (graph, *_), uses = model.subgraphs, collections.defaultdict(list)
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        kind = max(code.builtinCode, code.deprecatedBuiltinCode)
        for position, tensor in enumerate(operator.inputs):
            uses[tensor].append((kind if position == 1 else None, operator.inputs[0]))
    dense, convolutions = collections.defaultdict(list), []
    for tensor, users in uses.items():
        # A tensor that several operators use is not a kernel of this package's layers, and remains float32.
        data = model.buffers[graph.tensors[tensor].buffer].data
        is_constant = graph.tensors[tensor].type == schema.TensorType.FLOAT32 and data is not None and len(data) > 0
        if len(users) == 1 and is_constant:
            [(kind, inputs)] = users
            if kind == kinds.FULLY_CONNECTED:
                dense[inputs].append(tensor)
            elif kind == kinds.CONV_2D:
                convolutions.append(tensor)
    return dense, convolutions


def _values(model, kernel):
    """Returns the weights of a kernel, (O, I)."""
    tensor = model.subgraphs[0].tensors[kernel]
    return np.frombuffer(model.buffers[tensor.buffer].data, "<f4").reshape(tensor.shape[0], -1)


def _scales(weights):
    """Returns scales (O, 1) that map the weights to [-127, 127]."""
    largest = np.abs(weights).max(axis=1, keepdims=True)
    return np.where(largest > 0, largest, 1) / 127


def _second_moments(model, tensors, batches):
    """Returns {tensor: sum of `x x^T` over its rows x}, each (I, I), for the calibration images."""
    interpreter, moments = _interpreter(model, tensors), dict.fromkeys(tensors, 0.0)
    [images] = interpreter.get_input_details()
    for image in each_image(batches):
        try:
            interpreter.resize_tensor_input(images["index"], image.shape, strict=True)
            interpreter.allocate_tensors()
            interpreter.set_tensor(images["index"], image)
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            shape = image.shape[1:]
            raise ValueError(f"LiteRT cannot run the file for a calibration image {shape}: {error}") from error
        for tensor in tensors:
            values = interpreter.get_tensor(tensor)
            rows = values.reshape(-1, values.shape[-1])
            moments[tensor] += rows.T @ rows
    if not all(np.isfinite(total).all() for total in moments.values()):
        raise ValueError("For the calibration images, the inputs of a dense layer are not finite. Check the images.")
    return moments


def _interpreter(model, tensors):
    """Returns a LiteRT interpreter of a model whose outputs are the given tensors."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_litert.tools import flatbuffer_utils

    # LiteRT keeps outputs. The other tensors share memory: for large images, those of the attention are very large.
    (graph, *_) = model.subgraphs
    outputs, signatures = graph.outputs, model.signatureDefs
    graph.outputs, model.signatureDefs = tensors, []
    content = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    graph.outputs, model.signatureDefs = outputs, signatures
    return Interpreter(model_content=content, num_threads=os.cpu_count())


def _round_in_turn(weights, moments):
    """Rounds weights (O, I), in units of their scales, to integers in [-127, 127], the weights of one input at a time.

    Args:
        weights: (O, I)
        moments: (I, I), from `_second_moments`.

    Returns:
        (O, I)
    """
    moments = moments.astype("float64")
    moments += np.eye(len(moments)) * (_DAMPING * np.trace(moments) / len(moments) or 1.0)
    factor = np.linalg.cholesky(np.linalg.inv(moments)).T  # Upper triangular.
    weights, integers = weights.astype("float64"), np.empty(weights.shape)
    for start in range(0, len(factor), _COLUMNS_AT_ONCE):
        columns = slice(start, start + _COLUMNS_AT_ONCE)
        block, triangle = weights[:, columns].copy(), factor[columns, columns]
        errors = np.empty(block.shape)
        for i, row in enumerate(triangle):
            integers[:, start + i] = np.clip(np.round(block[:, i]), -127, 127)
            errors[:, i] = (block[:, i] - integers[:, start + i]) / row[i]
            block[:, i:] -= np.outer(errors[:, i], row[i:])
        weights[:, columns.stop :] -= errors @ factor[columns, columns.stop :]
    return integers


def _store(model, kernel, integers, scales):
    """Replaces the weights of a kernel by integers (O, I) and their scales (O, 1)."""
    from ai_edge_litert import schema_py_generated as schema

    tensor = model.subgraphs[0].tensors[kernel]
    buffer, quantization = schema.BufferT(), schema.QuantizationParametersT()
    buffer.data = integers.astype("int8").reshape(-1).view("uint8")
    model.buffers.append(buffer)
    quantization.scale, quantization.zeroPoint = scales[:, 0].astype("float32").tolist(), [0] * len(scales)
    quantization.quantizedDimension = 0
    tensor.buffer, tensor.type, tensor.quantization = len(model.buffers) - 1, schema.TensorType.INT8, quantization


def _raise_versions(model):
    """Sets the versions that operators with a scale for each output need. Older runtimes then refuse the file."""
    from ai_edge_litert import schema_py_generated as schema

    # The function GetBuiltinOperatorVersion of TensorFlow (tensorflow/lite/tools/versioning/op_version.cc).
    versions = {schema.BuiltinOperator.FULLY_CONNECTED: 12, schema.BuiltinOperator.CONV_2D: 5}
    for code in model.operatorCodes:
        kind = max(code.builtinCode, code.deprecatedBuiltinCode)
        code.version = max(code.version, versions.get(kind, 0))


def _drop_unused_buffers(model):
    """Empties the buffers of the float32 weights. Their places remain, because buffers are found by their index."""
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    used |= {metadata.buffer for metadata in model.metadata or []}
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data = None
