"""Losses and the metric of depth equal their equations in NumPy."""

import numpy as np
import pytest

from tests.differentiation import value_and_gradients
from tests.test_case import assert_close
from training.tasks.depth_losses import AbsRel, ScaleShiftInvariantLoss, SiLogLoss

B, H, W = 4, 13, 10


def batch():
    """Depths and outputs. Of image 1, no depth is known. The predictions of image 2 are constant."""
    rng = np.random.default_rng(0)
    labels, outputs = rng.uniform(0.5, 9, (2, B, H, W, 1)).astype("float32")
    labels[rng.random(labels.shape) < 0.3] = 0
    labels[1], outputs[2] = 0, 3.0
    return labels, outputs


def known_values(labels, outputs):
    """{image: (depths, outputs) of its known pixels, in float64}"""
    labels, outputs = labels.astype("float64"), outputs.astype("float64")
    return {i: (labels[i][labels[i] > 0], outputs[i][labels[i] > 0]) for i in range(B) if labels[i].any()}


@pytest.mark.parametrize("focus", [0.5, 0.85, 1.0])
def test_silog_equals_its_equation(focus):
    labels, outputs = batch()
    expected = np.zeros(B)
    for i, (depths, predictions) in known_values(labels, outputs).items():
        d = np.log(predictions / depths)
        expected[i] = np.sqrt((d**2).mean() - focus * d.mean() ** 2)
    assert_close(SiLogLoss(focus)(labels, outputs), expected)


def aligned(values, known):
    shift = np.median(values[known])
    return (values - shift) / np.abs(values[known] - shift).mean()


def midas_loss(depths, predictions):
    """Equations 5 to 7 and 11 of arXiv 1907.01341 for an image (H, W), with float64."""
    known = depths > 0
    errors = aligned(predictions, known) - aligned(1 / np.where(known, depths, 1.0), known)
    sizes = np.sort(np.abs(errors[known]))
    loss = sizes[: int(0.8 * len(sizes))].sum() / (2 * len(sizes))
    for step in (1, 2, 4, 8):
        r = np.where(known, errors, np.nan)[::step, ::step]
        total = sum(np.nansum(abs(np.diff(r, axis=axis))) for axis in (0, 1))
        loss += 0.5 * total / max(np.isfinite(r).sum(), 1)
    return loss


def test_midas_loss_equals_its_equations():
    labels, outputs = batch()
    outputs[2, 0] = 1.0  # Constant predictions have no scale.
    pairs = zip(labels[..., 0].astype("float64"), outputs[..., 0].astype("float64"), strict=True)
    expected = [midas_loss(depths, predictions) if depths.any() else 0 for depths, predictions in pairs]
    assert_close(ScaleShiftInvariantLoss()(labels, outputs), expected)
    outputs[0] = 3 * outputs[0] + 7
    assert_close(ScaleShiftInvariantLoss()(labels, outputs), expected)


@pytest.mark.each_backend
@pytest.mark.parametrize("objective", [SiLogLoss(), ScaleShiftInvariantLoss()])
def test_gradients_are_finite_and_reach_known_pixels_only(objective):
    labels, outputs = batch()
    outputs[3] = np.where(labels[3] > 0, labels[3], 5.0) if isinstance(objective, SiLogLoss) else outputs[3]
    losses, [gradients] = value_and_gradients(lambda outputs: objective(labels, outputs), outputs)
    assert np.isfinite(losses).all()
    assert np.isfinite(gradients).all()
    assert losses[1] == 0
    assert not gradients[labels == 0].any()
    assert gradients[0][labels[0] > 0].all()


def test_abs_rel_is_the_mean_over_images():
    (labels, outputs), metric, weights = batch(), AbsRel(), np.array([1, 1, 0.5, 0.25], "float32")
    for rows in (slice(0, 2), slice(2, 4)):
        metric.update_state(labels[rows], outputs[rows], sample_weight=weights[rows])
    pairs = known_values(labels, outputs)
    errors = [(abs(predictions - depths) / depths).mean() for depths, predictions in pairs.values()]
    expected = np.average(errors, weights=weights[[*pairs]])
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


def test_inverse_depths_are_aligned():
    """Depths of more than 3 become 3."""
    labels, outputs = batch()
    outputs[[0, 3]] = 5 - 0.1 * outputs[[0, 3]] - 2 / np.maximum(labels[[0, 3]], 0.5)
    errors, num_far = [], []
    for depths, predictions in known_values(labels, outputs).values():
        scale, shift = np.polyfit(predictions, 1 / depths, 1) if predictions.std() else (0, (1 / depths).mean())
        found = scale * predictions + shift
        errors.append((abs(1 / np.maximum(found, 1 / 3) - depths) / depths).mean())
        num_far.append((found < 1 / 3).sum())
    assert 0 < num_far[0] < H * W / 2
    metric = AbsRel(max_depth=3.0)
    metric.update_state(labels, outputs)
    assert float(metric.result()) == pytest.approx(np.mean(errors), rel=1e-5)
