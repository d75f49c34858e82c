"""The answers of an export in TensorFlow's C++ session, computed once for all tests."""

import os
import sys

import pytest

from tests.export.exports import export_pets, made_once
from tests.serving import recorded_requests
from tests.serving.program import Clients, read_answers, serve
from tests.test_case import TENSORFLOW

# The names of TensorFlow's libraries and the numbers about memory are those of Linux.
collect_ignore_glob = [] if TENSORFLOW and sys.platform == "linux" else ["*_test.py"]

ROUNDS, REQUESTS_A_ROUND = 6, 40
SECONDS = float(os.environ.get("LOAD_SECONDS", "0")) / ROUNDS
"""Minimum duration of a round. LOAD_SECONDS is the total (30000 for a night); by default only answers are counted."""


@pytest.fixture(scope="session")
def pets(tmp_path_factory):
    """A model with 8 x 12 patches, and the folder of its export."""
    return export_pets(tmp_path_factory)


@pytest.fixture(scope="session")
def requests(pets):
    """{name: request}: all requests to the model."""
    _, folder = pets
    return (
        recorded_requests.warm_up(folder)
        | recorded_requests.of_every_signature()
        | recorded_requests.hostile()
        | recorded_requests.refused()
    )


@pytest.fixture(scope="session")
def served(pets, requests, tmp_path_factory):
    """({name of a request: its outputs}, {name of a failed request: reason}, report of the server)."""
    clients = Clients(list(recorded_requests.of_many_clients()), 8, ROUNDS, REQUESTS_A_ROUND, SECONDS)

    def make(folder):
        serve([pets[1]], requests.values(), folder, clients)

    found = read_answers(made_once(tmp_path_factory, "answers", make))
    names = list(requests)
    errors = {names[index]: message for index, message in found.errors.items()}
    return dict(zip(names, found.outputs, strict=True)), errors, found.report
