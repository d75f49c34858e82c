import math

import keras
import numpy as np
import pytest

from keras_vit.pretraining.masking import PatchCorruption
from tests.test_case import MIXED_POLICIES, random_inputs, to_numpy


def corrupt(layer, patches):
    corrupted, mask = layer(patches)
    return to_numpy(corrupted), to_numpy(mask)


@pytest.mark.parametrize(
    ("grid", "rate", "number"), [((3, 3), 0.5, 4), ((5, 3), 0.15, 2), ((5, 2), 0.7, 7), ((2, 5), 0.1, 1)]
)
def test_every_image_has_the_same_number_of_corrupted_patches(grid, rate, number):
    layer = PatchCorruption(rate, seed=3)
    [patches] = random_inputs((*grid, 4), batch=9)
    _, first = corrupt(layer, patches)
    _, second = corrupt(layer, patches)
    assert first.shape == layer.compute_output_shape(patches.shape)[1] == (9, math.prod(grid))
    assert set(np.unique(first)) == {0, 1}
    assert (first.sum(axis=1) == number).all()
    assert (second.sum(axis=1) == number).all()
    assert len(np.unique(first, axis=0)) > 1
    assert (first != second).any()


def test_what_corrupted_patches_become():
    """The counts of 10^5 corrupted patches are within four binomial standard deviations of 80, 10 and 10 %."""
    batch, rows, columns = 500, 20, 20
    place, image = np.meshgrid(np.arange(rows * columns), np.arange(batch))  # Patches contain their position and image.
    patches = np.stack([place, image], axis=-1).reshape(batch, rows, columns, 2).astype("float32")
    layer = PatchCorruption(0.5, seed=1)
    layer.build(patches.shape)
    layer.mask_embedding.assign([-1.0, -1.0])
    corrupted, mask = corrupt(layer, patches)
    corrupted, is_corrupted = corrupted.reshape(batch, -1, 2), mask == 1
    draws = is_corrupted.sum()
    assert draws == 100_000
    np.testing.assert_array_equal(corrupted[~is_corrupted], np.stack([place, image], -1)[~is_corrupted])
    is_masked = (corrupted == -1).all(axis=-1)
    steps = (corrupted[..., 0] - place) % (rows * columns)
    is_other = ~is_masked & (steps != 0)
    is_kept = is_corrupted & ~is_masked & ~is_other
    for chosen, share in ((is_masked, 0.8), (is_other, 0.1), (is_kept, 0.1)):
        assert abs(chosen.sum() - draws * share) < 4 * math.sqrt(draws * share * (1 - share))
    assert (corrupted[..., 1] == image)[is_other].all()  # The replacement is from the same image.
    assert len(np.unique(steps[is_other])) == rows * columns - 1  # All other patches of the image occur.
    # The choice is uniform: the mean of the steps 1 to N - 1 is within four of its standard deviations.
    deviation = math.sqrt(((rows * columns - 1) ** 2 - 1) / 12 / is_other.sum())
    assert abs(steps[is_other].mean() - rows * columns / 2) < 4 * deviation


def test_a_seed_decides():
    [patches] = random_inputs((4, 5, 3))
    outputs = []
    for seed in (7, 7, 8):
        layer = PatchCorruption(0.4, seed=seed)
        layer.build(patches.shape)
        layer.mask_embedding.assign([0.5, 1.0, 2.0])
        outputs.append(corrupt(layer, patches)[0])
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert (outputs[0] != outputs[2]).any()


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_mixed_precision(policy):
    layer = PatchCorruption(0.5, dtype=policy)
    corrupted, mask = layer(random_inputs((2, 3, 4))[0])
    assert keras.backend.standardize_dtype(corrupted.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(mask.dtype) == "float32"


def test_config_and_shapes():
    layer = PatchCorruption(0.25, seed=5)
    config = PatchCorruption.from_config(layer.get_config()).get_config()
    assert (config["rate"], config["seed"]) == (0.25, 5)
    patches, mask = layer(keras.KerasTensor((None, None, 3, 4)))
    assert (patches.shape, mask.shape) == ((None, None, 3, 4), (None, None))


def test_refusals():
    for rate in (0, 1):
        with pytest.raises(ValueError, match=r"rate must be between 0 and 1, both excluded. Received: "):
            PatchCorruption(rate)
    for grid, rate in (((1, 1), 0.9), ((1, 3), 0.3)):
        with pytest.raises(ValueError, match=r"There must be at least two patches, .* Received: rate="):
            PatchCorruption(rate)(np.zeros((2, *grid, 4), "float32"))
