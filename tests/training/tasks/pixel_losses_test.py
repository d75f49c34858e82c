"""Loss and mean IoU equal sums in NumPy. Void pixels and padding do not count."""

import keras
import numpy as np
import pytest
import scipy.special
from sklearn.metrics import jaccard_score

from training.data.masks import VOID
from training.tasks.masks import SegmentsMeanIoU
from training.tasks.pixel_losses import MeanIoU, PixelCrossEntropy

B, H, W, C = 4, 3, 5, 6


def batch(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, 2, 4, VOID], (B, H, W)).astype("uint8")  # Classes 3 and 5 are never true.
    logits = rng.normal(size=(B, H, W, C)).astype("float32")
    logits[..., 5] = -10  # Class 5 is never predicted.
    return labels, logits


def test_loss_is_the_mean_over_the_known_pixels_of_an_image():
    labels, logits = batch(0)
    labels[1] = VOID
    expected = np.zeros(B)
    for i in (0, 2, 3):
        known = labels[i] != VOID
        log_probabilities = scipy.special.log_softmax(logits[i][known], axis=-1)
        expected[i] = -log_probabilities[np.arange(known.sum()), labels[i][known]].mean()
    losses = keras.ops.convert_to_numpy(PixelCrossEntropy()(labels, logits))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    changed = np.where((labels == VOID)[..., None], logits[..., ::-1], logits)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(PixelCrossEntropy()(labels, changed)), losses)


def test_mean_iou_is_that_of_all_pixels_of_all_batches():
    metric, true, predicted = MeanIoU(C), [], []
    for seed, weights in ((1, [1, 1, 1, 0]), (2, [1, 0, 0.5, 0])):
        labels, logits = batch(seed)
        metric.update_state(labels, logits, sample_weight=np.array(weights, "float32"))
        known = (labels != VOID) & (np.array(weights) > 0)[:, None, None]
        true.append(labels[known])
        predicted.append(logits.argmax(-1)[known])
    true, predicted = np.concatenate(true), np.concatenate(predicted)
    occurring = np.union1d(true, predicted)
    assert occurring.tolist() == [0, 1, 2, 3, 4]
    assert float(metric.result()) == pytest.approx(jaccard_score(true, predicted, average="macro"), rel=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.mark.parametrize(("has_background", "expected"), [(False, 1 / 3), (True, 1 / 8)])
def test_mean_iou_of_segments(has_background, expected):
    """Of 300 classes, class 255 is not void. Ignored objects are void, and pixels without an object may be."""
    labels = {"segments": np.array([[[1, 2, 3, 0]]]), "classes": np.array([[255, 7, -1]])}
    masks = np.array([[[[9, -9], [-9, 9], [9, -9], [9, -9]]]], "float32")  # Class 255, but class 8 in the second pixel.
    outputs = {"masks": masks, "objects": 99 * np.eye(301, dtype="float32")[[[255, 8]]]}
    metric = SegmentsMeanIoU(300, 2, has_background)
    metric.update_state(labels, outputs)
    assert float(metric.result()) == pytest.approx(expected)


def test_a_metric_has_a_config():
    again = MeanIoU.from_config(MeanIoU(C, name="quality").get_config())
    assert (again.name, again.num_classes) == ("quality", C)
