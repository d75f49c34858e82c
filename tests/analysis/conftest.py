"""Models that many tests share. No test changes them."""

import pytest

from tests.analysis.nested import NESTED
from tests.models.tiny import tiny_model
from tests.test_case import randomize, slow_except


@pytest.fixture(scope="session")
def model():
    """A ViT with a class token and random weights."""
    return randomize(tiny_model(name="model"))


@pytest.fixture(scope="session")
def inner():
    """A model without a classifier, which other models nest."""
    return randomize(tiny_model(include_top=False, name="inner"))


@pytest.fixture(scope="session", params=slow_except(["twice nested", "extended"], list(NESTED)))
def nested(inner, request):
    """(kind of nesting, model around `inner`, function from the outer model's images to the inputs of `inner`)"""
    return request.param, *NESTED[request.param](inner)
