"""Many clients send requests at once. conftest.py sets their number and the duration."""

from tests.serving.conftest import REQUESTS_A_ROUND, ROUNDS

MAX_GROWTH_KIB = 8 * 1024
"""Without a leak, memory grows by up to 2 MB, also after 12,000 requests. A leak of 64 KB in each of 200 requests adds
8.5 MB in the measured rounds."""


def test_sustained_load(served):
    """Every answer equals the first answer to the same request, bit for bit."""
    *_, report = served
    assert (report["failed_under_load"], report["different"]) == (0, 0), report
    assert report["answered"] >= ROUNDS * REQUESTS_A_ROUND >= 200, report
    rounds = report["after_rounds_kib"]
    # All permanent memory is allocated in the first third of the rounds.
    assert rounds[-1] - rounds[len(rounds) // 3 - 1] < MAX_GROWTH_KIB, report
