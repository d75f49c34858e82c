"""A SavedModel without superfluous nodes computes the same."""

import numpy as np
import tensorflow as tf

from keras_vit.export.smaller_graph import remove_nodes
from tests.export.exports import meta_graph


def _functions(folder):
    return meta_graph(folder).graph_def.library.function


def _num_constants(folder):
    return sum(node.op == "Const" for function in _functions(folder) for node in function.node_def)


def _remove_nodes(folder, function, inputs):
    """Saves a function, removes nodes, and compares the outputs. Returns the number of constants before."""
    tf.saved_model.save(tf.Module(), str(folder), signatures=function.get_concrete_function())
    expected = [tf.saved_model.load(str(folder)).signatures["serving_default"](x=rows) for rows in inputs]
    before = _num_constants(folder)
    remove_nodes(folder)
    loaded = tf.saved_model.load(str(folder)).signatures["serving_default"]
    for rows, outputs in zip(inputs, expected, strict=True):
        for name, output in loaded(x=rows).items():
            np.testing.assert_array_equal(output, outputs[name])
    return before


def test_equal_constants_are_merged(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def serve(x):
        y = x * tf.constant([2.0, 3.0, 5.0]) + tf.constant([2.0, 3.0, 5.0])
        with tf.control_dependencies([tf.constant(7.0), tf.constant(7.0)]):
            y = tf.identity(y)
        y = tf.cond(tf.reduce_any(y > 30), lambda: y + 2.0 - 2.0 * y, lambda: 2.0 * y)
        # A float and an integer with the same bits, and a constant that is returned twice.
        integer = tf.cast(tf.constant(1), tf.float32) + tf.constant(np.array(1, "int32").view("float32"))
        return {"y": y + integer, "one": tf.constant([4.0, 9.0]), "other": tf.constant([4.0, 9.0])}

    images = tf.constant([[1.0, -4.0, 6.0], [9.0, 2.0, 0.5]])
    before = _remove_nodes(tmp_path, serve, [images, images[:1]])
    assert _num_constants(tmp_path) <= before - 4  # [2, 3, 5], 7 and [4, 9], and 2 in a branch.
    assert not (tmp_path / "fingerprint.pb").exists()
    for function in _functions(tmp_path):
        values = [node.attr["value"].SerializeToString() for node in function.node_def if node.op == "Const"]
        assert len(set(values)) == len(values)


def test_reshaped_tensors(tmp_path):
    """Each of two layers reshapes its input and its bias, as `Dense` does."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 4])], autograph=False)
    def serve(x):
        reshaped = tf.reshape(tf.reshape(x, [-1, 4]), [-1, 3, 4])
        for bias in ([1.0, -2.0, 5.0, 0.5], [3.0, 2.0, 7.0, -1.0]):
            rows = tf.reshape(reshaped, [-1, 4]) + tf.reshape(tf.constant(bias), [1, -1])
            reshaped = tf.reshape(2.0 * rows + tf.reshape(reshaped, [-1, 4]), [-1, 3, 4])
        return {"y": reshaped, "z": tf.reshape(tf.reshape(reshaped, tf.reverse(tf.shape(x), [0])), [-1])}

    _remove_nodes(tmp_path, serve, [tf.random.stateless_normal([count, 3, 4], [2, 5]) for count in (0, 1, 5)])
    [function] = [function for function in _functions(tmp_path) if "serve" in function.signature.name]
    sources = {node.name: node.op for node in function.node_def}
    reshapes = [node for node in function.node_def if node.op == "Reshape"]
    assert len(reshapes) == 4  # The rows of each layer, and each output.
    assert not any(sources.get(node.input[0].partition(":")[0]) == "Const" for node in reshapes)
