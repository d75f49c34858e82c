"""The command measures differences of logits."""

import numpy as np

from benchmarks import numerics
from benchmarks.numerics import prepared


def test_prepared_images():
    [path] = numerics.PHOTOGRAPHS.glob("cat.jpg")
    plain, cropped = prepared([path], 32), prepared([path], 32, crop=40)
    assert plain.shape == cropped.shape == (1, 32, 32, 3)
    assert -1 <= plain.min() < -0.5 < 0.5 < plain.max() <= 1
    assert np.abs(plain - cropped).mean() > 0.05
