"""Tests that every layer and equation must pass: `run_layer_test`, `run_parity_test`.

The tests use unequal and unusual sizes, so that swapped axes cannot pass.
"""

import contextlib
import inspect
import json
import math
import unittest.mock
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from tests.differentiation import DIFFERENTIATE

TOLERANCE = 1e-5
"""Tolerance of float32 results against float64 references."""

TENSORFLOW = keras.backend.backend() == "tensorflow"
counted_once = pytest.mark.skipif(not TENSORFLOW, reason="counts are the same on every backend")
"""Marks tests that count models of published sizes, which are slow to build."""
MIXED_POLICY = "mixed_float16" if TENSORFLOW else "mixed_bfloat16"
"""Policy for the tests of every layer. On CPUs, only TensorFlow multiplies in float16."""
MIXED_POLICIES = [
    pytest.param(
        "mixed_float16", marks=pytest.mark.skipif(not TENSORFLOW, reason="float16 products need TensorFlow on a CPU")
    ),
    "mixed_bfloat16",
]


def on_each_backend(chosen, cases):
    """Cases of `parametrize`. Those in `chosen` run on JAX too: their code depends on the backend."""
    assert set(chosen) <= set(cases)
    return [pytest.param(case, marks=pytest.mark.each_backend if case in chosen else ()) for case in cases]


def rest_slow(cases):
    """Cases of `parametrize`. All but the first are slow tests, because a bug mostly breaks all cases."""
    first, *rest = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in rest)]


def slow_except(chosen, names):
    """Names as cases of `parametrize`. Names that are not chosen are slow tests."""
    assert set(chosen) <= set(names)
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.slow) for name in names]


def assert_close(actual, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=tolerance, atol=tolerance)


def to_numpy(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")))


class WithoutBatch(tuple):
    """Shape of an array that has no batch axis."""


def batched(shape, batch):
    """The shape of a batch of arrays."""
    return tuple(shape) if isinstance(shape, WithoutBatch) else (batch, *shape)


def random_inputs(*shapes, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=batched(shape, batch)).astype("float32") for shape in shapes]


def norm_shapes(name, channels):
    """{path within the layer: shape} of the weights of an inner batch norm."""
    return {f"{name}/{part}": (channels,) for part in ("gamma", "beta", "moving_mean", "moving_variance")}


@contextlib.contextmanager
def without_values():
    """Models built in this context have shapes but no values: no memory is allocated."""
    with keras.StatelessScope(initialize_variables=False):
        yield
        # Otherwise, Keras would initialise the variables at the end of the next scope.
        keras.utils.clear_session(free_memory=False)


def built(layer, shape=(7, 12)):
    """Builds a layer for inputs of this shape (without the batch) and returns it."""
    layer.build((None, *shape))
    return layer


def randomize(layer, seed=1, scale=0.3):
    """Sets all weights to random values, including those that start at zero or one. Returns the layer."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        values = rng.normal(scale=scale, size=weight.shape)
        weight.assign(1 + np.abs(values) if weight.name == "moving_variance" else values)
    return layer


def random_model(model, scale=0.45):
    """A ResNet-based model with random weights and norms, such that the outputs depend on the images."""
    randomize(model, scale=scale)
    for weight in model.weights:
        if weight.name == "moving_variance" and weight.path.startswith("st"):
            weight.assign(0.3 * weight)
    return model


def parts(layer):
    """A layer and all inner layers. Keras has no public function for this."""
    return layer._flatten_layers()


def canonical_weights(layer):
    """{canonical path: float64 array} of a model, or {path within the layer: array} of a layer."""
    prefix = "" if isinstance(layer, keras.Model) else f"{layer.name}/"
    assert all(weight.path.startswith(prefix) for weight in layer.weights)
    return {w.path.removeprefix(prefix): np.asarray(ops.convert_to_numpy(w.value), "float64") for w in layer.weights}


def first(outputs):
    """The first of several outputs or shapes, or the only one."""
    is_one = not isinstance(outputs, (tuple, list)) or isinstance(outputs[0], (int, type(None)))
    return outputs if is_one else outputs[0]


def compute(layer, inputs):
    """First output of a layer or model for arrays.

    JAX compiles the call as a whole, because compiling operation by operation takes longer.
    """
    if keras.backend.backend() != "jax":
        return to_numpy(first(layer(*inputs)))
    import jax

    state = [
        [variable.value for variable in part] for part in (layer.trainable_variables, layer.non_trainable_variables)
    ]
    return to_numpy(jax.jit(lambda *values: first(layer.stateless_call(*values)[0]))(*state, *inputs))


def gradients(layer, inputs):
    """{path: gradient} of a weighted mean of the outputs; `None` for an unconnected weight."""
    return output_and_gradients(layer, inputs)[1]


def output_and_gradients(layer, inputs):
    """The first output, and {path: gradient} as in `gradients`, from one forward and backward pass."""

    def loss(outputs):
        output = first(outputs)
        weights = np.random.default_rng(2).normal(size=tuple(output.shape))
        return ops.mean(ops.cast(output, "float32") * ops.convert_to_tensor(weights, "float32")), output

    arguments = [ops.convert_to_tensor(x) for x in inputs]
    output, found = DIFFERENTIATE[keras.backend.backend()](layer, arguments, loss)
    paths = [variable.path for variable in layer.trainable_variables]
    found = {path: g if g is None else to_numpy(g) for path, g in zip(paths, found, strict=True)}
    return to_numpy(output), found


def check_gradients(layer, inputs, cancelled=(), rotated=False):
    """Every weight has a finite, nonzero gradient, or a zero gradient if the softmax of an attention cancels it.

    Args:
        layer: A layer or model.
        inputs: Arrays.
        cancelled: Path endings of additional weights that are cancelled.
        rotated: Whether keys are rotated by different angles, so that the softmax does not cancel their biases.
    """
    _check_found(gradients(layer, inputs), cancelled, rotated)


def _check_found(found, cancelled, rotated):
    for path, gradient in found.items():
        assert gradient is not None, f"{path} is not connected"
        assert np.isfinite(gradient).all(), path
        largest = np.abs(gradient).max()
        if (_is_cancelled(path, found) and not rotated) or path.endswith(tuple(cancelled)):
            assert largest < 1e-6, path
        else:
            assert largest > 1e-5, f"the gradient of {path} is zero"


def _is_cancelled(path, paths):
    """Whether a weight is added equally to all keys: biases of keys, positions or logits, or the beta of their norm."""
    return path.endswith(("key_norm/beta", "logit_norm/beta", "logit/bias", "position/bias")) or (
        path.endswith("key/bias") and path.removesuffix("key/bias") + "key_norm/beta" not in paths
    )


def run_layer_test(
    layer_class,
    arguments,
    input_shapes,
    output_shape,
    weight_shapes,
    folder,
    scale=0.3,
    cancelled=(),
    rotated=False,
    output_dtype=None,
):
    """Checks everything that every layer must do. If there are several outputs, only the first is checked.

    Files, configs and quantization do not depend on the backend, so they are checked on TensorFlow only.

    Args:
        layer_class: The class.
        arguments: All its arguments, with non-default values. For a layer, a function that makes it.
        input_shapes: Shapes of the inputs, without the batch. If an input has no batch axis, a `WithoutBatch`.
        output_shape: Shape of the output, without the batch, or a `WithoutBatch`.
        weight_shapes: {path within the layer: shape} of all weights.
        folder: Folder for files.
        scale: Scale of the random weights. If many weights are multiplied, small weights make the gradients vanish.
        cancelled: As in `check_gradients`.
        rotated: As in `check_gradients`.
        output_dtype: Type of the output under a mixed precision policy. `None`: the type of the computations.
    """
    inputs = random_inputs(*input_shapes)
    given = _with_layers(arguments)
    layer = layer_class(**given, name="tested")
    symbolic = [keras.Input(batch_shape=batched(shape, None)) for shape in input_shapes]
    model = keras.Model(symbolic, first(layer(*symbolic)), name=f"with_{layer_class.__name__}")
    assert {path: array.shape for path, array in canonical_weights(layer).items()} == weight_shapes
    assert layer.count_params() == sum(map(math.prod, weight_shapes.values()))
    randomize(layer, scale=scale)
    output, found = output_and_gradients(layer, inputs)
    _check_shapes(layer, model, input_shapes, output, output_shape)
    _check_found(found, cancelled, rotated)
    if TENSORFLOW:
        _check_config(layer, given)
        _check_reload(model, inputs, output, folder)
        _check_moving_statistics(layer, inputs)
        _check_quantization(model, layer, inputs)
    given = _with_layers(arguments, dtype=MIXED_POLICY)
    _check_mixed_precision(layer_class(**given, dtype=MIXED_POLICY, name="tested"), inputs, output_dtype)


def _with_layers(arguments, **options):
    return {name: value(**options) if callable(value) else value for name, value in arguments.items()}


def _check_shapes(layer, model, input_shapes, output, output_shape):
    assert model.output_shape == batched(output_shape, None)
    assert output.shape == batched(output_shape, 2)
    computed = first(layer.compute_output_shape(*(batched(shape, None) for shape in input_shapes)))
    assert tuple(computed) == batched(output_shape, None)
    symbolic = first(layer(*(keras.KerasTensor(batched(shape, 3)) for shape in input_shapes)))
    assert tuple(symbolic.shape) == batched(output_shape, 3)
    if TENSORFLOW:  # Other backends would compile again.
        assert tuple(first(layer(*random_inputs(*input_shapes, batch=3))).shape) == batched(output_shape, 3)


def _check_config(layer, arguments):
    """The config contains the arguments of the class, and a layer made from it has the same config."""
    layer_class, config = type(layer), layer.get_config()
    own_keys = set(config) - set(keras.layers.Layer().get_config())
    own_arguments = set()
    if layer_class.__init__ is not keras.layers.Layer.__init__:
        own_arguments = set(inspect.signature(layer_class.__init__).parameters) - {"self", "kwargs"}
    assert own_keys == own_arguments
    assert own_arguments == set(arguments), "the test must pass each argument of the layer, with an unusual value"
    for key, value in arguments.items():
        is_layer = isinstance(value, keras.Layer)
        assert config[key]["config"] == value.get_config() if is_layer else config[key] == value
    copy = layer_class.from_config(json.loads(json.dumps(config)))
    assert json.dumps(copy.get_config()) == json.dumps(config)


def _check_reload(model, inputs, output, folder):
    """A `.keras` file loads without a list of classes, and the layer in it, made from its config, has the same outputs.

    reloading_test.py loads all classes in a fresh process.
    """
    path = folder / f"{model.name}.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(compute(loaded, [inputs]), output)


def _check_moving_statistics(layer, inputs):
    """In training, every inner BatchNorm updates its statistics."""
    moving = [weight for weight in layer.non_trainable_weights if weight.name.startswith("moving_")]
    if moving:
        before = [to_numpy(weight) for weight in moving]
        layer(*inputs, training=True)
        for weight, array in zip(moving, before, strict=True):
            assert not np.array_equal(to_numpy(weight), array), weight.path


def quantize(part, mode, **options):
    """Quantizes a model or layer, without collecting garbage for each kernel. Each collection could take a second."""
    with warnings.catch_warnings(), unittest.mock.patch("gc.collect"):
        warnings.simplefilter("ignore")  # Keras warns about each unquantized layer.
        part.quantize(mode, **options)


def _check_quantization(model, layer, inputs):
    """The config contains the quantization, so a saved file keeps it."""
    quantize(model, "int8")
    modes = [part.quantization_mode for part in parts(layer)]
    if "int8" not in modes:
        return
    copy = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
    assert copy.get_config() == json.loads(json.dumps(layer.get_config()))
    _build(copy, inputs)
    assert [part.quantization_mode for part in parts(copy)] == modes
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(compute(copy, inputs), compute(layer, inputs))


def _build(layer, inputs):
    """Builds a layer by calling it (symbolically where eager operations compile) and returns the first output."""
    return first(layer(*(inputs if TENSORFLOW else (keras.KerasTensor(x.shape) for x in inputs))))


def _check_mixed_precision(layer, inputs, output_dtype=None):
    assert keras.backend.standardize_dtype(_build(layer, inputs).dtype) == (output_dtype or layer.compute_dtype)
    assert {part.dtype_policy.name for part in parts(layer)} == {MIXED_POLICY}
    assert all(weight.dtype == "float32" for weight in layer.weights)
    if keras.backend.backend() != "jax":  # On JAX, the types are known without compiling.
        output, found = output_and_gradients(randomize(layer), inputs)
        assert all(np.isfinite(array).all() for array in (output, *found.values()))


def run_parity_test(layer, reference, inputs, tolerance=TOLERANCE, fill=randomize):
    """A layer or model that `fill` randomizes equals `reference(*inputs, weights)` in NumPy, float64."""
    if not layer.built:
        _build(layer, inputs)
    fill(layer)
    expected = reference(*(np.asarray(x, "float64") for x in inputs), canonical_weights(layer))
    actual = compute(layer, inputs)
    assert actual.shape == expected.shape
    assert_close(actual, expected, tolerance)


def run_twin_test(ours, theirs, inputs, tolerance=TOLERANCE):
    """A layer has weights of the same number, shapes and types as a Keras layer, and the same outputs."""
    for layer in (ours, theirs):
        layer.build(inputs.shape)
    randomize(ours)
    theirs.set_weights(ours.get_weights())
    assert [weight.dtype for weight in ours.weights] == [weight.dtype for weight in theirs.weights]
    assert_close(ours(inputs), to_numpy(theirs(inputs)), tolerance)


def run_mixed_precision_test(build, policy, shape, scale=0.45):
    """A 16-bit model returns float32. Its error is small relative to the effect of the images on the outputs.

    Args:
        build: Function that makes the model.
        policy: One of `MIXED_POLICIES`.
        shape: Shape of an image.
        scale: Scale of the random weights. The images must affect the outputs, and activations must stay small.
    """
    keras.config.set_dtype_policy(policy)
    try:
        model = random_model(build(), scale)
    finally:
        keras.config.set_dtype_policy("float32")
    assert all(weight.dtype == "float32" for weight in model.weights)
    [images] = random_inputs(shape)
    outputs = model(images)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    exact = random_model(build(), scale)
    expected, without = to_numpy(exact(images)), to_numpy(exact(0 * images))
    effect = np.abs(expected - without).max()
    assert effect > 0.05 * np.abs(expected).max()
    assert np.abs(to_numpy(outputs) - expected).max() < 0.2 * effect  # bfloat16 rounds to 2^-9 in each layer.
