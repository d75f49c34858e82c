import types

import keras
import numpy as np
import pytest

from keras_vit.layers import Dropout, DropPath, MlpBlock
from keras_vit.layers.ops.fixed_seed import FixedSeed
from keras_vit.layers.ops.repeated_draws import RepeatedDraws
from tests.test_case import random_inputs, randomize, to_numpy

pytestmark = pytest.mark.each_backend  # Only TensorFlow has a seed for each replica.


def test_is_the_next_seed_however_often_it_is_asked():
    generator, same = (keras.random.SeedGenerator(5) for _ in range(2))
    drawn = FixedSeed(generator)
    first, second = (to_numpy(same.next()) for _ in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(to_numpy(drawn.next()), first)
    np.testing.assert_array_equal(to_numpy(generator.next()), second)
    uniform = [to_numpy(keras.random.uniform((9,), seed=drawn)) for _ in range(2)]
    np.testing.assert_array_equal(*uniform)


@pytest.mark.parametrize("layer", [Dropout(0.5, seed=3), DropPath(0.5, seed=3), MlpBlock(20, dropout_rate=0.5)])
def test_a_call_can_be_made_again(layer):
    """A repeated call draws the same numbers, and the generators advance once, as if drawn outside of the call."""
    [tokens] = random_inputs((7, 12), batch=16)
    layer.build(tokens.shape)
    randomize(layer)
    state = [variable for variable in layer.variables if "seed" in variable.path]
    start = [keras.ops.convert_to_numpy(variable.value) for variable in state]
    outside = [to_numpy(layer(tokens, training=True)) for _ in range(2)]
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    for expected in outside:
        draws = RepeatedDraws()
        for _ in range(2):
            # Layers without a seed use PyTorch's generator, which advances from call to call.
            keras.utils.set_random_seed(0)
            with draws.replay():
                again = to_numpy(layer(tokens, training=True))
            if keras.backend.backend() != "torch" or hasattr(layer, "seed"):
                np.testing.assert_array_equal(again, expected)
        draws.advance()
    assert not np.array_equal(*outside)


def _check_masks(first, second):
    """Half of the 128 values of two calls are kept, give or take 5.7. Two independent masks agree in half of them."""
    assert all(abs((mask > 0).sum() - 64) < 4 * 5.7 for mask in (first, second))
    assert abs((first == second).sum() - 64) < 4 * 5.7
    assert not np.array_equal(first[:64], first[64:])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs tf.distribute")
def test_replicas_draw_seeds_of_their_own(monkeypatch):
    import tensorflow as tf

    def mask(kind, replica, num_replicas=2):
        context = types.SimpleNamespace(num_replicas_in_sync=num_replicas, replica_id_in_sync_group=replica)
        monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
        layer = kind(0.5, seed=3)
        return np.concatenate([to_numpy(layer(np.ones((64, 1)), training=True)).ravel() for _ in range(2)])

    for kind in (Dropout, DropPath):
        _check_masks(mask(kind, 0), mask(kind, 1))
        np.testing.assert_array_equal(mask(kind, 1), mask(kind, 1))
        alone = mask(kind, 0, num_replicas=1)
        monkeypatch.undo()
        layer = kind(0.5, seed=3)
        expected = [to_numpy(layer(np.ones((64, 1)), training=True)).ravel() for _ in range(2)]
        np.testing.assert_array_equal(alone, np.concatenate(expected))
