"""Whatever a client sends, its neighbours in the same batch do not notice, and memory stays bounded."""

import numpy as np
import pytest

from tests.pictures import encoded, noise, picture
from tests.serving.conftest import LABELS, TOP_K
from tests.serving.expected import expected_outputs
from tests.serving.hostile_images import hostile_images
from tests.serving.program import prediction_log, replay
from tests.serving.signatures_test import OF_FILES, OF_PIXELS, assert_outputs

GOOD = [
    encoded(noise(24, 40), "JPEG"),
    encoded(picture(50, 31), "PNG"),
    encoded(picture(30, 20), "GIF"),
    encoded(noise(17, 28), "BMP"),
    encoded(picture(16, 24, "L"), "PNG"),
]
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 16, 24, 3)).astype("uint8")
TIMES = 2000
MAX_KIB = 400 * 1024
"""Beyond the model and the requests; about half of it is taken. 10,000 images that pass through the model at once took
1.5 GB, most of it for the attention weights, 97 x 97 tokens in 3 heads. The pixels of the PNG bomb alone are 2.7 GB."""


def _requests():
    """{what is asked: request}"""
    third = {"undisturbed": GOOD[2]} | hostile_images()
    requests = {
        (signature, name): prediction_log(signature, image_bytes=[*GOOD[:2], content, *GOOD[3:]])
        for signature in OF_FILES
        for name, content in third.items()
    }
    bad = list(hostile_images().values())
    good = [GOOD[i % len(GOOD)] for i in range(len(bad))]
    merged = {
        "by turns": [content for pair in zip(good, bad, strict=True) for content in pair],
        "only good": [content for content in good for _ in range(2)],
        "only bad": bad,
        "many": [*GOOD[:4], b"no image"] * TIMES,
    }
    requests |= {name: prediction_log("serving_default", image_bytes=files) for name, files in merged.items()}
    requests |= {(name, "none"): prediction_log(name, image_bytes=np.zeros([0], "S1")) for name in OF_FILES}
    for name, dtype in OF_PIXELS.items():
        requests[name, "some"] = prediction_log(name, images=PIXELS.astype(dtype))
        requests[name, "none"] = prediction_log(name, images=PIXELS[:0].astype(dtype))
    return requests | {"many pixels": prediction_log("predict_pixels", images=np.tile(PIXELS, (TIMES, 1, 1, 1)))}


@pytest.fixture(scope="module")
def answers(program, exported, tmp_path_factory):
    """The outputs for each of the requests, and how much memory it took to answer them."""
    requests = _requests()
    outputs, report = replay(program, exported[1], requests.values(), tmp_path_factory.mktemp("abuse"))
    taken = report["peak_kib"] - report["loaded_kib"]
    return dict(zip(requests, outputs, strict=True)) | {"memory": taken}


def _assert_only_refused(outputs, undisturbed, rows, message=""):
    """These rows say that there was no image; the others are those of the other answer, to the last bit."""
    assert undisturbed["valid"].all()
    refused = {"valid": False, "classes": -1, "labels": b""}
    for name, array in outputs.items():
        np.testing.assert_array_equal(array[rows], np.full_like(array[rows], refused.get(name, 0)), f"{message} {name}")
        others = np.delete(array, rows, 0), np.delete(undisturbed[name], rows, 0)
        np.testing.assert_array_equal(*others, f"{message} {name}")


@pytest.mark.parametrize("signature", OF_FILES)
def test_neighbours_of_a_bad_image_are_answered_as_ever(signature, answers):
    for name in hostile_images():
        _assert_only_refused(answers[signature, name], answers[signature, "undisturbed"], [2], name)


def test_good_and_bad_requests_merged_into_one_batch(answers):
    count = len(hostile_images())
    _assert_only_refused(answers["by turns"], answers["only good"], list(range(1, 2 * count, 2)))
    first = {name: array[:count] for name, array in answers["only good"].items()}
    _assert_only_refused(answers["only bad"], first, list(range(count)))


@pytest.mark.parametrize("signature", [*OF_FILES, *OF_PIXELS])
def test_no_images(signature, answers):
    """Empty outputs, of the shapes and types that others have."""
    some = answers[signature, "undisturbed" if signature in OF_FILES else "some"]
    shapes = {name: ((0, *array.shape[1:]), array.dtype) for name, array in some.items()}
    assert {name: (array.shape, array.dtype) for name, array in answers[signature, "none"].items()} == shapes


@pytest.mark.parametrize(
    ("name", "signature", "inputs"),
    [
        ("many", "serving_default", {"image_bytes": GOOD[:4]}),
        ("many pixels", "predict_pixels", {"images": PIXELS[:4]}),
    ],
)
def test_ten_thousand_images_in_one_request(name, signature, inputs, answers, exported):
    expected = expected_outputs(exported[0], LABELS, TOP_K, prediction_log(signature, **inputs))
    parts = {output: array.reshape(TIMES, 5, *array.shape[1:]) for output, array in answers[name].items()}
    for times in (0, 1001, TIMES - 1):
        assert_outputs({output: array[times, :4] for output, array in parts.items()}, expected)
    if name == "many":
        assert not parts["valid"][:, 4].any()


def test_memory(answers):
    assert answers["memory"] < MAX_KIB
