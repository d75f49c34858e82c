"""Removes nodes from the graph of a SavedModel."""

import math
import pathlib

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def remove_nodes(folder):
    """Removes superfluous constants and `Reshape` nodes from the graph of a SavedModel. The outputs stay the same.

    TensorFlow makes a new constant for each shape, axis and number in an operation, and layers reshape what the layer
    before has just reshaped. A program that loads the SavedModel creates each node and optimises the graph before the
    first answer, so fewer nodes take less time.

    Args:
        folder: Folder of a SavedModel. `fingerprint.pb` is removed, because it contains a checksum of the old file.
            TensorFlow only uses it for statistics.
    """
    file = pathlib.Path(folder) / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for graph in saved.meta_graphs:
        for function in graph.graph_def.library.function:
            _simplify(function)
    file.write_bytes(saved.SerializeToString())
    (file.parent / "fingerprint.pb").unlink(missing_ok=True)


def _simplify(function):
    """Simplifies a `FunctionDef`. TensorFlow writes nodes in the order of their computation.

    * A reshaped constant becomes a constant of the new shape.
    * A `Reshape` of a `Reshape` takes the input of the first one.
    * Of equal constants, and of equal `Reshape` nodes, the first one remains.
    """
    nodes, first, replaced = {}, {}, {}

    def renamed(reference):
        """Renames a reference to a tensor, `name:output:index`, or to an operation, `^name`."""
        name = reference.removeprefix("^").partition(":")[0]
        return reference.replace(name, replaced.get(name, name), 1)

    for node in function.node_def:
        node.input[:] = map(renamed, node.input)
        nodes[node.name] = node
        if node.op == "Reshape":
            _simplify_reshape(node, *(nodes.get(reference.partition(":")[0]) for reference in node.input[:2]))
        if node.op in ("Const", "Reshape"):
            attributes = {name: value.SerializeToString(deterministic=True) for name, value in node.attr.items()}
            key = node.op, node.device, *node.input, *sorted(attributes.items())
            if first.setdefault(key, node.name) != node.name:
                replaced[node.name] = first[key]
    for name, reference in function.ret.items():
        function.ret[name] = renamed(reference)
    _remove_unused(function)


def _simplify_reshape(node, source, shape):
    """Simplifies a `Reshape` node of the output of the node `source`. `source` is `None` for an argument."""
    if source is None or len(node.input) > 2:  # It may have control inputs.
        return
    if source.op == "Reshape" and len(source.input) == 2:
        node.input[0] = source.input[0]
    elif source.op == "Const" and not source.input and shape is not None and shape.op == "Const":
        value, sides = source.attr["value"].tensor, tf.make_ndarray(shape.attr["value"].tensor).tolist()
        count = math.prod(side.size for side in value.tensor_shape.dim)
        if -1 in sides and 0 not in sides:
            sides[sides.index(-1)] = count // -math.prod(sides)
        if count == math.prod(sides):
            _set_constant(node, value, sides)


def _set_constant(node, value, sides):
    """Replaces a node by a constant with the values of the tensor `value` and another shape."""
    device, name = node.device, node.name
    node.Clear()
    node.op, node.device, node.name = "Const", device, name
    node.attr["dtype"].type = value.dtype
    tensor = node.attr["value"].tensor
    tensor.CopyFrom(value)
    del tensor.tensor_shape.dim[:]
    for side in sides:
        tensor.tensor_shape.dim.add().size = side


def _remove_unused(function):
    """Removes the constants and `Reshape` nodes that no other node and no output of a `FunctionDef` uses."""
    references, remaining = [*function.ret.values(), *function.control_ret.values()], []
    used = {reference.removeprefix("^").partition(":")[0] for reference in references}
    for node in reversed(function.node_def):
        if node.name in used or node.op not in ("Const", "Reshape"):
            used.update(reference.removeprefix("^").partition(":")[0] for reference in node.input)
            remaining.append(node)
    remaining = type(function)(node_def=reversed(remaining))
    del function.node_def[:]
    function.node_def.extend(remaining.node_def)
