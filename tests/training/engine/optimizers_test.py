"""Optimizer steps against NumPy and closed forms. `distribution_test.py` tests steps on two replicas."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests.models.tiny import CONFIG, SHAPE, STEM, tiny_model
from tests.test_case import TENSORFLOW, assert_close, to_numpy, without_values
from training import recipes
from training.engine.optimizers import build_optimizer, layer_scales
from training.recipe.assignments import override

# The schedule's learning rates for the first steps.
RATES = (0.04, 0.07, 0.1)
STEPS = ["fit.epochs=none", "fit.steps=20"]
RAMP = [*STEPS, "optimizer.learning_rate=0.1", "schedule.warmup=2 steps", "schedule.start=0.04"]
PLAIN = ["optimizer.kind=sgd", "optimizer.learning_rate=1", "optimizer.momentum=0", "optimizer.weight_decay=0"]
PLAIN += [*STEPS, "schedule.decay=constant", "schedule.warmup=0%"]


def make_recipe(*assignments):
    return override(recipes.load("digits"), assignments)


def build_model():
    """One layer of each group, with the layer names of a Vision Transformer."""
    layers = [
        keras.layers.Dense(4, name="patch_embedding"),
        keras.layers.Dense(5, name="encoder_block_0"),
        keras.layers.LayerNormalization(name="encoder_norm"),
        keras.layers.Dense(3, name="predictions"),
    ]
    model = keras.Sequential([keras.Input((2,)), *layers])
    generator = np.random.default_rng(0)
    model.set_weights([generator.normal(size=weight.shape) for weight in model.weights])
    return model


def draw_gradients(model, count=3):
    """No gradient is near zero, because Adam's epsilon would matter there."""
    generator = np.random.default_rng(1)
    signs = [generator.choice([-1, 1], weight.shape) for weight in model.weights]
    return [[(sign * generator.uniform(0.5, 2, sign.shape)).astype("float32") for sign in signs] for _ in range(count)]


def apply(optimizer, gradients, model):
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables)


def apply_compiled(optimizer, gradients, model):
    """Several steps in a compiled function. `step_test.py` compiles with XLA on TensorFlow."""
    if TENSORFLOW:
        step = tf.function(lambda arrays: optimizer.apply(arrays, model.trainable_variables))
        for arrays in gradients:
            step([tf.constant(array) for array in arrays])
        return
    import jax

    step = jax.jit(optimizer.stateless_apply)
    groups = optimizer.variables, model.trainable_variables
    for arrays in gradients:
        state, weights = ([variable.value for variable in group] for group in groups)
        weights, state = step(state, arrays, weights)
        for group, values in zip(groups, (state, weights), strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)


def copy_of(optimizer, model):
    """An optimizer for a model, from the configuration of another."""
    copy = keras.optimizers.deserialize(json.loads(json.dumps(keras.optimizers.serialize(optimizer))))
    copy.build(model.trainable_variables)
    return copy


def adamw(gradients, rates, beta_2=0.999, epsilon=1e-8):
    """Steps of Algorithm 2 of arXiv 1711.05101, except for the weight decay.

    Keras's epsilon is the epsilon-hat at the end of section 2 of arXiv 1412.6980.
    """
    first = second = 0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = 0.9 * first + 0.1 * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        corrected = epsilon / np.sqrt(1 - beta_2**step)
        yield rate * first / (1 - 0.9**step) / (np.sqrt(second / (1 - beta_2**step)) + corrected)


def orthogonalized(matrix):
    """Five Newton-Schulz steps (https://kellerjordan.github.io/posts/muon), scaled as in arXiv 2502.16982, eq. 4."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return 0.2 * np.sqrt(max(matrix.shape)) * x


def test_muon_steps_of_attention_kernels_equal_numpys():
    """Queries, keys and values have a row for each input and a column for each output, and so has the projection."""
    model = tiny_model()
    before = model.get_weights()
    gradients = draw_gradients(model, 2)
    recipe = make_recipe(*RAMP, "optimizer.kind=muon", "optimizer.clip_norm=none", "optimizer.weight_decay=0.2")
    optimizer = build_optimizer(recipe, model, 1)
    for step in gradients:
        apply(optimizer, step, model)
    trained = set()
    for weight, old, *steps in zip(model.weights, before, *gradients, strict=True):
        is_hidden = weight.name == "kernel" and weight.path.startswith("encoder_block")
        expected = old.astype("float64")
        momentum = 0
        updates = adamw([step.astype("float64") for step in steps], RATES[:2])
        for rate, step, update in zip(RATES, steps, updates, strict=False):
            if is_hidden:
                momentum = 0.9 * momentum + step
                rows = len(step) if weight.path.split("/")[-2] in ("query", "key", "value") else -1
                columns = -1 if rows > 0 else step.shape[-1]
                update = rate * orthogonalized(np.reshape(step + 0.9 * momentum, (rows, columns)))
                trained.add(weight.path.split("/")[-2])
            expected = expected * (1 - 0.2 * rate * (weight.name == "kernel")) - np.reshape(update, old.shape)
        assert_close(weight, expected)
    assert trained == {"query", "key", "value", "output", "hidden"}


def test_muon_steps_of_convolutions_equal_numpys():
    """A kernel has a row for each position and input, and a column for each output. A stem is trained with AdamW."""
    layers = [keras.layers.Conv2D(3, (2, 3), name="stem_conv_1"), keras.layers.Conv2D(4, (1, 2), name="conv_1")]
    model = keras.Sequential([keras.Input((5, 7, 2)), *layers])
    [step], before = draw_gradients(model, 1), model.get_weights()
    recipe = make_recipe(*RAMP, "optimizer.kind=muon", "optimizer.clip_norm=none", "optimizer.weight_decay=0")
    apply(build_optimizer(recipe, model, 1), step, model)
    stem, hidden = (gradient.astype("float64") for gradient in (step[0], step[2]))
    assert_close(layers[0].kernel, before[0] - next(adamw([stem], RATES[:1])))
    update = RATES[0] * orthogonalized(hidden.reshape(1 * 2 * 3, 4))
    assert_close(layers[1].kernel, before[2] - update.reshape(hidden.shape))


def sgd(gradients, rates):
    velocity = 0
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = 0.9 * velocity + rate * gradient
        yield velocity


def rmsprop(gradients, rates, rho=0.9, epsilon=1e-8):
    """The last formula in the documentation of TensorFlow 1's RMSPropOptimizer, but the squares start at zero."""
    squares = velocity = 0
    for gradient, rate in zip(gradients, rates, strict=True):
        squares = rho * squares + (1 - rho) * gradient**2
        velocity = 0.9 * velocity + rate * gradient / np.sqrt(squares + epsilon)
        yield velocity


@pytest.mark.each_backend
@pytest.mark.parametrize(
    ("assignments", "steps", "layer_decay"),
    [
        (["optimizer.kind=adamw"], adamw, 1.0),
        (
            ["optimizer.kind=adamw", "optimizer.square_momentum=0.95", "optimizer.epsilon=0.3"],
            lambda *arguments: adamw(*arguments, beta_2=0.95, epsilon=0.3),
            0.6,
        ),
        (["optimizer.kind=sgd"], sgd, 0.6),
        (["optimizer.kind=rmsprop"], rmsprop, 0.6),
        (
            ["optimizer.kind=rmsprop", "optimizer.square_momentum=0.8", "optimizer.epsilon=0.3"],
            lambda *arguments: rmsprop(*arguments, rho=0.8, epsilon=0.3),
            0.6,
        ),
    ],
)
def test_three_steps_equal_numpys(assignments, steps, layer_decay):
    """A layer's scale applies to step and decay, as with torch's parameter groups. Only kernels decay.

    The steps are those of a copy from the configuration.
    """
    changes = ["optimizer.clip_norm=none", "optimizer.weight_decay=0.2", f"optimizer.layer_decay={layer_decay}"]
    model = build_model()
    before, gradients = model.get_weights(), draw_gradients(model)
    optimizer = build_optimizer(make_recipe(*RAMP, *changes, *assignments), model, 1)
    copy = copy_of(optimizer, model)
    assert type(copy) is type(optimizer)
    for step in gradients:
        apply(copy, step, model)
    scales = {"patch_embedding": layer_decay**2, "encoder_block_0": layer_decay, "encoder_norm": 1, "predictions": 1}
    layers = [layer.name for layer in model.layers for _ in layer.weights]
    for i, weight in enumerate(model.weights):
        rates = [rate * scales[layers[i]] for rate in RATES]
        expected = before[i].astype("float64")
        for rate, step in zip(rates, steps([step[i].astype("float64") for step in gradients], rates), strict=True):
            expected = expected * (1 - 0.2 * rate * (weight.name == "kernel")) - step
        assert_close(weight, expected)
    assert {weight.name for weight in model.weights} == {"kernel", "bias", "gamma", "beta"}
    assert all(weight.path.startswith(model.name) for weight in model.weights)  # The prefix does not prevent matches.


@pytest.mark.each_backend
@pytest.mark.parametrize(("size", "expected"), [(10.0, 1.0), (0.01, None)])
def test_clipping_scales_the_norm_of_all_gradients(size, expected):
    model = build_model()
    before = model.get_weights()
    [gradients] = draw_gradients(model, 1)
    gradients = [size * gradient for gradient in gradients]
    norm = np.sqrt(sum((gradient.astype("float64") ** 2).sum() for gradient in gradients))
    assert norm < 1 or expected
    apply(build_optimizer(make_recipe(*PLAIN), model, 1), gradients, model)
    for old, new, gradient in zip(before, model.get_weights(), gradients, strict=True):
        assert_close(old - new, gradient / norm * (expected or norm), 1e-6)


@pytest.mark.each_backend
def test_the_moving_average_equals_its_closed_form():
    model = build_model()
    optimizer = build_optimizer(make_recipe(*PLAIN, "optimizer.ema=0.8"), model, 1)
    gradients = draw_gradients(model, 4)
    visited = []
    for step in gradients:
        apply(optimizer, step, model)
        visited.append(model.get_weights())
    optimizer.finalize_variable_values(model.trainable_variables)  # As Keras does at the end of `fit`.
    for weight, last in zip(model.get_weights(), visited[-1], strict=True):
        np.testing.assert_array_equal(weight, last)
    # The average starts with the weights after the first step.
    shares = [0.8**3, 0.2 * 0.8**2, 0.2 * 0.8, 0.2]
    for i, average in enumerate(optimizer.averages):
        assert_close(average, sum(share * weights[i] for share, weights in zip(shares, visited, strict=True)))


BOTTOM = (
    *("stem_conv", "stem_norm", "stem_stage_0_unit_0", "stem_stage_1_unit_0", "patch_embedding", "position_embedding"),
    *("register_tokens", "distillation_token", "class_token", "pre_norm"),
)
GROUPS = dict.fromkeys(BOTTOM, 0) | {"encoder_block_0": 1, "encoder_block_1": 2}
GROUPS |= {"position_embedding_0": 1, "position_embedding_1": 2}
TOP = {"encoder_norm", "pooled_norm", "pooling", "pre_logits", "predictions", "distillation_predictions"}


def test_every_layer_has_its_group():
    for changes in (
        {"num_register_tokens": 2, "distillation_token": True, "pre_norm": True},
        {"stem": STEM, "patch_size": 1, "pooling": "map", "representation_dim": 7},
        {"pooling": "avg", "norm_placement": "after_pooling"},
        {"position_placement": "every_layer"},
        {"pooling": "avg", "axial": True},
        {"rotary": keras_vit.RotaryConfig("mixed"), "attention_inner_norm": True, "mlp_inner_norm": True},
    ):
        shape = (64, 48, 3) if "stem" in changes else SHAPE
        with without_values():
            model = keras_vit.ViT(CONFIG.replace(**changes), input_shape=shape, classes=5)
        paths = [weight.path for weight in model.trainable_variables]
        names = [path.split("/")[0] for path in paths]
        assert set(names) <= set(GROUPS) | TOP
        assert layer_scales(paths, 0.5) == [0.5 ** (3 - GROUPS.get(name, 3)) for name in names], changes


def test_groups_are_counted_from_the_top_and_by_number():
    paths = [f"encoder_block_{i}/attention/query/kernel" for i in range(12)]
    assert layer_scales(paths, 0.5) == [0.5 ** (12 - i) for i in range(12)]
    frozen_below = [*paths[10:], "predictions/kernel", "my_own_head/kernel"]
    assert layer_scales(frozen_below, 0.5) == [0.25, 0.5, 1, 1]
    assert layer_scales(["encoder_norm/gamma", "predictions/kernel"], 0.5) == [1, 1]


@pytest.mark.slow
@pytest.mark.each_backend
def test_compiled_steps_equal_eager_ones():
    recipe = make_recipe(*RAMP, "optimizer.kind=adamw", "optimizer.layer_decay=0.6", "optimizer.ema=0.8")
    models = [build_model(), build_model()]
    eager = build_optimizer(recipe, models[0], 1)
    copy = copy_of(eager, models[1])
    gradients = draw_gradients(models[0])
    for step in gradients:
        apply(eager, step, models[0])
    apply_compiled(copy, gradients, models[1])
    assert not np.allclose(models[0].weights[0], build_model().weights[0], atol=0.01)
    for ours, theirs in ((models[1].weights, models[0].weights), (copy.averages, eager.averages)):
        for variable, other in zip(ours, theirs, strict=True):
            assert_close(variable, to_numpy(other))


@pytest.mark.each_backend
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_building_again_changes_nothing(precision):
    model = build_model()
    optimizer = build_optimizer(make_recipe(*PLAIN, "optimizer.ema=0.8", f"fit.precision={precision}"), model, 1)
    names = [variable.path for variable in optimizer.variables]
    optimizer.build(model.trainable_variables)
    assert [variable.path for variable in optimizer.variables] == names
    assert len(names) >= len(model.trainable_variables)


@pytest.mark.skipif(not TENSORFLOW, reason="on JAX the scale changes in compiled steps only, and float16 needs a GPU")
def test_with_float16_what_is_clipped_is_not_scaled():
    model = build_model()
    before = model.get_weights()
    optimizer = build_optimizer(make_recipe(*PLAIN, "fit.precision=mixed_float16"), model, 1)
    [gradients] = draw_gradients(model, 1)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    scale = to_numpy(optimizer.scale_loss(1.0))
    apply(optimizer, [scale * gradient / norm / 2 for gradient in gradients], model)
    after = model.get_weights()
    for old, new, gradient in zip(before, after, gradients, strict=True):
        assert_close(old - new, gradient / norm / 2, 1e-6)
    overflowed = [np.full(weight.shape, np.inf, "float32") for weight in after]
    apply(optimizer, overflowed, model)
    for old, new in zip(after, model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)
    assert scale > 1000
    assert to_numpy(optimizer.scale_loss(1.0)) == scale / 2


@pytest.mark.skipif(not TENSORFLOW, reason="of Keras on TensorFlow")
def test_keras_has_the_private_methods_that_are_replaced():
    for method in ("_apply_weight_decay", "_clip_gradients", "_all_reduce_sum_gradients"):
        assert hasattr(keras.optimizers.Optimizer, method), (
            f"Look for what took its place in Keras {keras.__version__}."
        )
