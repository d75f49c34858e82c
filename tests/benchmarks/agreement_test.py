"""The benchmark computes the agreement between models correctly."""

import numpy as np
import pytest

from benchmarks import agreement

pytestmark = pytest.mark.slow


def test_agreement():
    expected = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    actual = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]])
    same, moved, largest = agreement.agreement(expected, actual)
    assert same == 0.75
    assert moved == pytest.approx((0.1 + 0.2 + 0.0 + 0.1) / 4)
    assert largest == pytest.approx(0.2)
