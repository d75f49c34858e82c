"""The checks of the changelog and of the address find mistakes."""

import pytest

from tests.release.readiness import address_problem, changelog_problem


def _changelog(heading):
    return f"# Changelog\n\n## {heading}\n\n* A change.\n\n## 0.9.0 (2026-01-31)\n"


def test_the_first_section_is_the_version():
    assert changelog_problem(_changelog("1.2.0 (2026-12-01)"), "1.2.0") is None


@pytest.mark.parametrize("heading", ["1.2.0 (unreleased)", "1.2.0", "1.3.0 (2026-12-01)", "1x2.0 (2026-12-01)"])
def test_other_first_sections(heading):
    assert f'"{heading}"' in changelog_problem(_changelog(heading), "1.2.0")


@pytest.mark.parametrize("address", ["", "https://github.com/someone/keras_vit"])
def test_addresses(address):
    assert address_problem(address) is None


@pytest.mark.parametrize("address", ['"https://github.com/a/b"', "https://github.com/a/b/tree/main", "github.com/a/b"])
def test_wrong_addresses(address):
    assert f"url in setup.cfg is {address}." in address_problem(address)
