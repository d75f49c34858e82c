"""ONNX files. Keras's exporter writes them, through tf2onnx."""

import contextlib
import gc

import numpy as np

from keras_vit.export.formats.exporting import export_for_runtime


def write(model, file, precision):
    """Writes a model as a float32 file. Keras must run on TensorFlow.

    Args:
        model: An `exporting.FromPixels`.
        file: Path of the file.
        precision: `"float32"`
    """
    # Below opset 18, tf2onnx converts a mean over the last axis to a pooling, so ONNX Runtime does not recognise the
    # LayerNorm that contains the mean.
    with _copies_are_freed():
        export_for_runtime(model, file, "onnx", opset_version=18)
    _divide_in_gelus(file)


def open_file(file):
    """Returns a function from images to the model's outputs, {name: array}."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(zip(names, session.run(names, {"images": images}), strict=True))


@contextlib.contextmanager
def _copies_are_freed():
    """Frees the copies of the graph, with all weights, that tf2onnx makes for each of its optimizations.

    The copies are parts of reference cycles. Python frees such objects only after many new ones were made. With the
    copies, a B/16 took 23 GB of memory instead of 9 GB.
    """
    from tf2onnx.optimizer.optimizer_base import GraphOptimizerBase

    optimize = GraphOptimizerBase.optimize

    def collect_and_optimize(self, graph, iteration):
        gc.collect()
        return optimize(self, graph, iteration)

    GraphOptimizerBase.optimize = collect_and_optimize
    gc.freeze()  # Only new objects are examined, which is fast.
    try:
        yield
    finally:
        gc.unfreeze()
        GraphOptimizerBase.optimize = optimize


def _divide_in_gelus(file):
    """Replaces `erf(x * sqrt(1/2))` by `erf(x / sqrt(2))`. ONNX Runtime only recognises GELUs with the division."""
    import onnx

    model = onnx.load(file)
    producers = {output: node for node in model.graph.node for output in node.output}
    numbers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer if not tensor.dims}
    divisor = onnx.numpy_helper.from_array(np.asarray(np.sqrt(2.0), "float32"), "square_root_of_2")
    changed = False
    for erf in [node for node in model.graph.node if node.op_type == "Erf"]:
        producer = producers.get(erf.input[0])
        factors = [] if producer is None or producer.op_type != "Mul" else list(producer.input)
        halves = [name for name in factors if name in numbers and abs(numbers[name] - np.sqrt(0.5)) < 1e-6]
        if producer is not None and len(halves) == 1:
            (values,) = [name for name in factors if name not in halves]
            producer.op_type, producer.input[:], changed = "Div", [values, divisor.name], True
    if changed:
        model.graph.initializer.append(divisor)
        remove_unused_constants(model.graph)
        onnx.save(model, file)


def remove_unused_constants(graph):
    """Removes the constants that no operator of an ONNX graph uses."""
    used = {name for node in graph.node for name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(constants)
