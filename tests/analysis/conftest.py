"""Models that many tests look into, and none changes."""

import pytest

from tests.analysis.nested import NESTED
from tests.models.tiny import tiny_model
from tests.test_case import randomize


@pytest.fixture(scope="session")
def model():
    """A ViT with a class token and random weights."""
    return randomize(tiny_model(name="model"))


@pytest.fixture(scope="session")
def inner():
    """The model without a classifier that others are built around."""
    return randomize(tiny_model(include_top=False, name="inner"))


@pytest.fixture(scope="session", params=NESTED)
def nested(inner, request):
    """(kind of nesting, model around `inner`, function from its images to those that `inner` sees)"""
    return request.param, *NESTED[request.param](inner)
