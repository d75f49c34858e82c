"""Merges equal constants of a SavedModel. TensorFlow is imported inside the functions only."""

import pathlib


def merge_constants(folder):
    """Stores equal constants in a function of a SavedModel's graph only once.

    TensorFlow makes a new constant for each shape, axis and number in an operation. Two of five nodes of an exported
    graph are constants. A program that loads the SavedModel creates each node and optimises the graph before the first
    answer, so fewer nodes take less time. The outputs stay the same.

    Args:
        folder: Folder of a SavedModel. `fingerprint.pb` is removed, because it contains a checksum of the old file.
            TensorFlow only uses it for statistics.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    file = pathlib.Path(folder) / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for graph in saved.meta_graphs:
        for function in graph.graph_def.library.function:
            _merge(function)
    file.write_bytes(saved.SerializeToString())
    (file.parent / "fingerprint.pb").unlink(missing_ok=True)


def _merge(function):
    """Merges the equal constants of a `FunctionDef`."""
    first, replaced = {}, {}
    for node in function.node_def:
        if node.op == "Const" and not node.input:
            value = node.device, node.attr["value"].SerializeToString()
            if first.setdefault(value, node.name) != node.name:
                replaced[node.name] = first[value]

    def renamed(reference):
        """Renames a reference to a tensor, `name:output:index`, or to an operation, `^name`."""
        name = reference.removeprefix("^").partition(":")[0]
        return reference.replace(name, replaced.get(name, name), 1)

    kept = [node for node in function.node_def if node.name not in replaced]
    for node in kept:
        node.input[:] = map(renamed, node.input)
    for name, reference in function.ret.items():
        function.ret[name] = renamed(reference)
    remaining = type(function)(node_def=kept)
    del function.node_def[:]
    function.node_def.extend(remaining.node_def)
