"""Rematerialisation changes memory only. Mimetic initial values are those of the paper."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.counting import shapes_only
from tests.models.tiny import SHAPE, tiny_model
from tests.test_case import canonical_weights, random_inputs, randomize, to_numpy

BACKEND = keras.backend.backend()
RATES = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3, "drop_path_rate": 0.4}
PARTS = {"layer_scale": 0.1, "qk_norm": True, "num_register_tokens": 2, "position_embedding": "relative"}
ROTARY = {"rotary": keras_vit.RotaryConfig("mixed"), "pooling": "avg", "block_norm": "post", "mlp_inner_norm": True}
AXIAL = {"axial": True, "pooling": "avg", "position_embedding": "learned_2d", "position_placement": "every_layer"}


def _trained(enabled, policy="float32", nested=False, frozen=None, changes=RATES, steps=1, **compilation):
    """Loss and weights after steps so large that a wrong gradient would show."""
    keras.utils.set_random_seed(0)  # This seeds PyTorch too.
    keras.config.set_dtype_policy(policy)
    try:
        model = randomize(tiny_model(**changes))
    finally:
        keras.config.set_dtype_policy("float32")
    if nested:
        model = keras.Sequential([keras.Input(SHAPE), model])
    keras_vit.rematerialize(model, enabled)
    if frozen:
        keras_vit.freeze(model, frozen)
    model.compile(
        keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compilation
    )
    [images] = random_inputs(SHAPE, batch=4)
    losses = [model.train_on_batch(images[i : i + 2], np.arange(i, i + 2)) for i in range(steps)]
    return losses, model.get_weights()


# On TensorFlow, compiling a step takes longer than running it.
EAGERLY = {"run_eagerly": True} if BACKEND == "tensorflow" else {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        # The second step draws other random numbers.
        {"changes": {**RATES, **PARTS, "num_layers": 1}, "steps": 2, **EAGERLY},
        {"changes": {**RATES, **AXIAL, "num_layers": 1}, **EAGERLY},
        {"changes": {**RATES, **ROTARY}, "nested": True, "frozen": "patch_embedding", **EAGERLY},
        pytest.param(
            {"jit_compile": True, "changes": {**RATES, "num_layers": 1, "drop_path_rate": 0.0}},
            marks=pytest.mark.skipif(BACKEND != "tensorflow", reason="needs a compiler; on JAX, other cases compile"),
        ),
    ],
    ids="-".join,
)
def test_training_is_the_same(arguments):
    (loss, weights), (expected_loss, expected) = (_trained(enabled, **arguments) for enabled in (True, False))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for value, expected_value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_every_block_is_switched_and_inference_is_the_same():
    inner = randomize(tiny_model(name="inner", **RATES))
    model = keras.Sequential([keras.Input(SHAPE), inner, keras.layers.Dense(2)])
    blocks = [inner.get_layer(f"encoder_block_{i}") for i in range(2)]
    [images] = random_inputs(SHAPE)
    expected, config, paths = to_numpy(model(images)), model.to_json(), list(canonical_weights(inner))
    for enabled in (True, False):
        keras_vit.rematerialize(model, enabled)
        assert [block.use_rematerialization for block in blocks] == [enabled] * 2
        np.testing.assert_array_equal(to_numpy(model(images)), expected)
        assert (model.to_json(), list(canonical_weights(inner))) == (config, paths)


def test_refuses_what_has_no_blocks():
    stranger = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()], name="stranger")
    with pytest.raises(ValueError, match="has one Preprocessing layer, but 'stranger' has 0"):
        keras_vit.rematerialize(stranger)
    model = tiny_model()
    headless = keras.Model(model.input, model.get_layer("position_embedding").output, name="headless")
    with pytest.raises(ValueError, match="'headless' has none"):
        keras_vit.rematerialize(headless)


def _deep(enabled, num_layers):
    model = tiny_model(input_shape=(64, 48, 3), num_layers=num_layers)  # 257 tokens, in the last block one.
    keras_vit.rematerialize(model, enabled)
    return model


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="looks at TensorFlow's graph")
def test_tensorflow_computes_each_block_a_second_time():
    import tensorflow as tf

    counts = []
    for enabled, num_layers in ((False, 1), (True, 2)):
        model = _deep(enabled, num_layers)

        def step(images, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(images, training=True))
            return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

        graph = tf.function(step).get_concrete_function(tf.TensorSpec((2, 64, 48, 3))).graph
        counts.append(sum(operation.type == "Softmax" for operation in graph.get_operations()))
    assert counts == [1, 4]


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="needs JAX's compiler")
def test_jax_keeps_less_memory():
    """The memory for the backward pass and the temporary memory of the compiled step shrink."""
    import jax

    kept, temporary = [], []
    for enabled in (False, True):
        model = _deep(enabled, 3)
        weights, others = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
        images = np.zeros((2, 64, 48, 3), "float32")

        def loss(weights, model=model, others=others, images=images):
            return model.stateless_call(weights, others, images, training=True)[0].sum()

        residuals = jax.tree.leaves(jax.eval_shape(lambda weights, loss=loss: jax.vjp(loss, weights)[1], weights))
        kept.append(sum(residual.size * residual.dtype.itemsize for residual in residuals))
        # JAX inserts barriers so that XLA does not merge the two computations. XLA removes them on CPUs, but not on
        # accelerators. Without this pass, it keeps them on CPUs.
        options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
        compiled = jax.jit(jax.grad(loss)).lower(weights).compile(compiler_options=options)
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    # Each block keeps its input (2 x 257 x 12 float32) instead of its activations. The attention weights alone have
    # 2 x 3 x 257 x 257 numbers.
    assert kept[1] < 0.1 * kept[0]
    assert temporary[1] < 0.75 * temporary[0]  # Only one of three blocks at a time.


def products(weights, block):
    """The products of query and key kernels, (K, D, D), and of value and output kernels, (D, D)."""
    query, key, value, output = (
        weights[f"encoder_block_{block}/attention/{name}/kernel"] for name in ("query", "key", "value", "output")
    )
    return np.einsum("dkh,ekh->kde", query, key), np.einsum("dkh,khe->de", value, output)


@pytest.mark.each_backend
def test_products_are_those_of_the_paper():
    """arXiv 2305.09828. The best approximation of a rank is the sum of the largest singular values' parts."""
    model = tiny_model()
    before = canonical_weights(model)
    keras_vit.initialize_attention(model, seed=3)
    weights = canonical_weights(model)
    generator = np.random.default_rng(3)
    for block in range(2):
        queries_keys, values_outputs = products(weights, block)
        for product in queries_keys:
            wanted = 0.7 * generator.normal(scale=12**-0.5, size=(12, 12)) + 0.7 * np.eye(12)
            error = np.linalg.norm(wanted - product)
            np.testing.assert_allclose(error**2, (np.linalg.svd(wanted)[1][4:] ** 2).sum(), rtol=1e-5)
        wanted = 0.4 * generator.normal(scale=12**-0.5, size=(12, 12)) - 0.4 * np.eye(12)
        np.testing.assert_allclose(values_outputs, wanted, atol=1e-6)
    changed = {path for path in before if not np.array_equal(before[path], weights[path])}
    assert changed == {path for path in before if "/attention/" in path and path.endswith("/kernel")}


def test_nested_and_axial_models_are_initialized_and_resnets_are_refused():
    inner = tiny_model(pooling="avg", axial=True, name="inner")
    images = keras.Input(inner.input_shape[1:])
    before = canonical_weights(inner)
    keras_vit.initialize_attention(keras.Model(images, inner(images)), seed=0)
    after = canonical_weights(inner)
    assert sum(not np.array_equal(before[path], after[path]) for path in before) == 2 * 2 * 4
    resnet, _ = shapes_only(lambda: keras_vit.ResNet("R18", stage_depths=(1,), name="resnet_18"))
    with pytest.raises(ValueError, match="attentions of encoder blocks can be initialised, but 'resnet_18' has none"):
        keras_vit.initialize_attention(resnet, seed=0)
    with pytest.raises(ValueError, match=r"seed must be 0 or a positive integer\. Received: -1"):
        keras_vit.initialize_attention(inner, seed=-1)
    with pytest.raises(TypeError, match=r"model must be a model of keras_vit\. Received: 'inner'"):
        keras_vit.initialize_attention("inner", seed=0)
