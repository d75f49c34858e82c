"""A bad image does not change the answers to the rest of its batch, and memory stays bounded."""

import numpy as np
import pytest

from tests.export.exports import LABELS, TOP_K
from tests.serving.expected import assert_outputs, expected_outputs
from tests.serving.hostile_images import hostile_images
from tests.serving.program import prediction_log
from tests.serving.recorded_requests import GOOD, OF_FILES, OF_PIXELS, PIXELS, TIMES, bad_images

MAX_KIB = 220 * 1024
"""Maximum memory beyond the model and the requests; about 140 MB are used. A single forward pass with 1,200 images
would need about 300 MB, mostly for the attention weights of 97 x 97 tokens in 3 heads. The pixels of the PNG bomb alone
would need 2.7 GB."""


@pytest.fixture
def answers(served):
    return served[0]


def _assert_only_refused(outputs, undisturbed, rows, message=""):
    """Asserts that these rows are marked invalid and that the others equal the undisturbed answer bit for bit."""
    assert undisturbed["valid"].all()
    refused = {"valid": False, "classes": -1, "labels": b""}
    for name, array in outputs.items():
        np.testing.assert_array_equal(array[rows], np.full_like(array[rows], refused.get(name, 0)), f"{message} {name}")
        others = np.delete(array, rows, 0), np.delete(undisturbed[name], rows, 0)
        np.testing.assert_array_equal(*others, f"{message} {name}")


@pytest.mark.parametrize("signature", OF_FILES)
def test_neighbours_of_a_bad_image_are_answered_as_ever(signature, answers):
    for name in bad_images(signature):
        _assert_only_refused(answers[signature, name], answers[signature, "undisturbed"], [2], name)


def test_good_and_bad_requests_merged_into_one_batch(answers):
    count = len(hostile_images())
    _assert_only_refused(answers["by turns"], answers["only good"], list(range(1, 2 * count, 2)))
    first = {name: array[:count] for name, array in answers["only good"].items()}
    _assert_only_refused(answers["only bad"], first, list(range(count)))


def test_pixels_that_are_not_finite(answers):
    _assert_only_refused(answers["not finite"], answers["predict_pixels_float", "some"], [1, 3])


@pytest.mark.parametrize("signature", [*OF_FILES, *OF_PIXELS])
def test_no_images(signature, answers):
    """A request without images gets empty outputs with the usual shapes and types."""
    some = answers[signature, "undisturbed" if signature in OF_FILES else "some"]
    shapes = {name: ((0, *array.shape[1:]), array.dtype) for name, array in some.items()}
    assert {name: (array.shape, array.dtype) for name, array in answers[signature, "none"].items()} == shapes


@pytest.mark.parametrize(
    ("name", "signature", "inputs"),
    [("many", "serving_default", {"image_bytes": GOOD[:4]}), ("many pixels", "predict_pixels", {"images": PIXELS[:4]})],
)
def test_thousands_of_images_in_one_request(name, signature, inputs, answers, pets):
    expected = expected_outputs(pets[0], LABELS, TOP_K, prediction_log(signature, **inputs))
    parts = {output: array.reshape(TIMES, 5, *array.shape[1:]) for output, array in answers[name].items()}
    for times in (0, TIMES // 2 + 1, TIMES - 1):
        assert_outputs({output: array[times, :4] for output, array in parts.items()}, expected)
    if name == "many":
        assert not parts["valid"][:, 4].any()


def test_memory(served):
    *_, report = served
    assert report["peak_kib"] - report["loaded_kib"] < MAX_KIB
