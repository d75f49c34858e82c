"""Every signature in C++ equals Keras, and the warm-up requests are answered."""

import numpy as np

from tests.export.exports import LABELS, TOP_K
from tests.serving.expected import assert_outputs, expected_outputs
from tests.serving.recorded_requests import OF_FILES, OF_PIXELS, REFUSED, of_every_signature


def test_warm_up_and_every_signature(served, pets, requests):
    answers, *_ = served
    warm_up = [name for name in requests if name[0] == "warm-up"]
    signatures = {requests[name].predict_log.request.model_spec.signature_name for name in warm_up}
    assert signatures == {*OF_FILES, *OF_PIXELS}
    for name in [*warm_up, *of_every_signature()]:
        assert_outputs(answers[name], expected_outputs(pets[0], LABELS, TOP_K, requests[name]))
    assert np.ptp(answers["batch", "serving_default"]["probabilities"], axis=0).max() > 0.01  # Outputs differ.


def test_what_no_signature_takes_is_an_error(served):
    _, errors, _ = served
    assert errors.keys() == REFUSED.keys()
    for name, (_, _, message) in REFUSED.items():
        assert errors[name].startswith(message)
