"""ONNX files that compute in 8 bits. ONNX Runtime's static quantiser writes them.

Shapes: N images, H W C image, T tokens of several images, D channels, M outputs.
"""

import collections
import functools
import pathlib
import tempfile
import types

import numpy as np

from keras_vit.export.calibration import each_image
from keras_vit.export.formats.onnx import remove_unused_constants
from keras_vit.export.messages import without_messages

# As in SmoothQuant (arXiv 2211.10438), the channels of an input are divided by range**ALPHA / (kernel's range)**(1 -
# ALPHA), and the kernel's rows are multiplied by the same numbers.
_ALPHA = 0.8
# A product with a larger relative error stays in float32.
_MAX_ERROR = 0.025
_MAX_TOKENS = 2048


def quantize(float_file, file, batches):
    """Writes a float32 ONNX file as a file that multiplies 8-bit integers.

    Kernels are stored as signed integers with a scale for each output. Their inputs are rounded to unsigned integers,
    with one scale that follows from the smallest and the largest value for the given images. The file contains standard
    operators only. ONNX Runtime replaces `DequantizeLinear` and a product by a product of integers when it loads the
    file. Such products are fast on processors with AVX512-VNNI, AVX-VNNI or NEON dot products. On x86 processors
    without these instructions, ONNX Runtime adds pairs of products in 16 bits, and large sums are cut off. The session
    option `session.x64quantprecision=1` prevents this.

    Matrix products with a kernel and convolutions are computed in 8 bits. The first convolution, products of two
    activations, norms and softmaxes stay in float32. A matrix product also stays in float32 if its relative error for
    the given images exceeds 2.5 %. This happens if a few channels of its input have far larger values than the others.
    If a norm computes this input, its weights are changed first, so that the channels have similar ranges.

    Args:
        float_file: Path of a float32 file that `keras_vit.export_model` wrote.
        file: Path of the new file.
        batches: Images for the calibration, a list of arrays (N, H, W, C), pixels in [0, 255].

    Raises:
        ValueError: If no product can be computed in 8 bits.
    """
    import onnx
    from onnxruntime import quantization

    model = onnx.load(float_file)
    graph = _Graph(model.graph, {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer})
    products = graph.products()
    inputs = _inputs(model, list(products), batches) if products else {}
    chosen = graph.convolutions_and_activations()
    for name, nodes in products.items():
        lowest, highest, tokens = inputs[name]
        kernel = np.concatenate([graph.constants[node.input[1]] for node in nodes], axis=1)
        affine = graph.affine_before(name, nodes)
        factors = _factors(lowest, highest, kernel) if affine else np.ones_like(highest)
        if _error(tokens / factors, kernel * factors[:, None], lowest / factors, highest / factors) <= _MAX_ERROR:
            chosen += [node.name for node in nodes]
            for node in nodes if affine else ():
                _replace(model.graph, node, 1, graph.constants[node.input[1]] * factors[:, None])
            for node, position in affine:
                _replace(model.graph, node, position, graph.constants[node.input[position]] / factors)
    if not chosen:
        raise ValueError(
            "No product of this model can be computed in 8 bits for the given images. Give other images for the "
            "calibration, or export with precision='float32'."
        )
    remove_unused_constants(model.graph)  # Those that were replaced.
    with tempfile.TemporaryDirectory() as folder, without_messages(None):  # Such as advice to prepare the file.
        scaled = pathlib.Path(folder) / "scaled.onnx"
        images = ({"images": image} for image in each_image(batches))
        onnx.save(model, scaled)
        quantization.quantize_static(
            scaled,
            file,
            types.SimpleNamespace(get_next=functools.partial(next, images, None)),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["Conv", "MatMul", "Relu"],
            nodes_to_quantize=chosen,
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        )


class _Graph:
    """Finds operators of an ONNX graph. `constants` are {name: array}."""

    def __init__(self, graph, constants):
        self.graph = graph
        self.constants = constants
        self.producers = {output: node for node in graph.node for output in node.output}
        self.uses = collections.Counter(name for node in graph.node for name in node.input)

    def products(self):
        """Returns {name of an input (..., D): [operators that multiply it by a kernel (D, M)]}."""
        products = {}
        for node in self.graph.node:
            kernel = self.constants.get(node.input[1]) if node.op_type == "MatMul" else None
            # ONNX Runtime multiplies kernels of other ranks only if they have a single scale. Exchanges of channels, as
            # in rotary positions, are matrices with one value in each column.
            if kernel is not None and kernel.ndim == 2 and np.count_nonzero(kernel, axis=0).max() > 1:
                products.setdefault(node.input[0], []).append(node)
        return products

    def convolutions_and_activations(self):
        """Returns the names of all convolutions except the first, and of the ReLUs that follow one."""
        _, *convolutions = [node for node in self.graph.node if node.op_type == "Conv"] or [None]
        outputs = {node.output[0] for node in convolutions}
        relus = [node for node in self.graph.node if node.op_type == "Relu" and node.input[0] in outputs]
        return [node.name for node in convolutions + relus]

    def affine_before(self, name, products):
        """Returns [(operator, position of its weights (D,))] of the scale and shift of a norm that computes `name`.

        The list is empty if a norm does not compute `name`, or if operators other than `products` use it.
        """
        affine, num_uses = [], len(products)
        for op_type in ("Add", "Mul"):
            node = self.producers.get(name)
            if node is None or node.op_type != op_type or self.uses[name] != num_uses:
                return []
            weights = [name in self.constants and self.constants[name].ndim == 1 for name in node.input]
            if sum(weights) != 1:
                return []
            affine.append((node, weights.index(True)))
            name, num_uses = node.input[weights.index(False)], 1
        return affine


def _replace(graph, node, position, array):
    """Replaces a constant input of an operator. Other operators that use this constant keep it."""
    from onnx import numpy_helper

    name = f"{node.output[0]}/constant_{position}"
    graph.initializer.append(numpy_helper.from_array(array.astype("float32"), name))
    node.input[position] = name


def _factors(lowest, highest, kernel):
    """Returns the numbers by which channels are divided before they are rounded, (D,)."""
    ranges = np.maximum(highest, -lowest)
    kernel_ranges = np.abs(kernel).max(axis=1)
    ranges, kernel_ranges = np.maximum(ranges, 1e-5), np.maximum(kernel_ranges, 1e-5)
    factors = ranges**_ALPHA / kernel_ranges ** (1 - _ALPHA)
    return factors / np.exp(np.log(factors).mean())


def _error(tokens, kernel, lowest, highest):
    """Returns the relative error of a product in 8 bits, averaged over tokens, which have very different lengths.

    Args:
        tokens: Some values of the input, (T, D)
        kernel: (D, M)
        lowest: Smallest values of the channels, (D,)
        highest: Largest values of the channels, (D,)
    """
    lowest, highest = min(lowest.min(), 0), max(highest.max(), 0)
    scale = (highest - lowest) / 255 or 1.0
    zero = np.rint(-lowest / scale)
    scales = np.abs(kernel).max(axis=0) / 127
    scales[scales == 0] = 1
    rounded = (np.clip(np.rint(tokens / scale) + zero, 0, 255) - zero) * scale
    products = tokens @ kernel
    errors = np.square(rounded @ (np.rint(kernel / scales) * scales) - products).sum(axis=1)
    lengths = np.square(products).sum(axis=1)
    # Tokens that are almost zero do not determine the average.
    return np.sqrt(np.mean(errors / (lengths + 1e-3 * lengths.mean() + 1e-30)))


def _inputs(model, names, batches):
    """Computes inputs of products. Returns {name: (smallest values (D,), largest values (D,), some tokens (T, D))}."""
    import onnx
    import onnxruntime

    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    observed.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(observed.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    limit = -(-_MAX_TOKENS // sum(map(len, batches)))
    lowest, highest, tokens = {}, {}, {name: [] for name in names}
    for image in each_image(batches):
        for name, values in zip(names, session.run(names, {"images": image}), strict=True):
            values = values.reshape(-1, values.shape[-1])
            lowest[name] = np.minimum(lowest.get(name, np.inf), values.min(axis=0))
            highest[name] = np.maximum(highest.get(name, -np.inf), values.max(axis=0))
            tokens[name].append(values[rng.permutation(len(values))[:limit]])
    return {name: (lowest[name], highest[name], np.concatenate(tokens[name])) for name in names}
