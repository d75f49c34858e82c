"""The check of the changelog accepts a dated section of the version only."""

import pytest

from tests.release.readiness import changelog_problem


def _changelog(heading):
    return f"# Changelog\n\n## {heading}\n\n* A change.\n\n## 0.9.0 (2026-01-31)\n"


def test_the_first_section_is_the_version():
    assert changelog_problem(_changelog("1.2.0 (2026-12-01)"), "1.2.0") is None


@pytest.mark.parametrize("heading", ["1.2.0 (unreleased)", "1.2.0", "1.3.0 (2026-12-01)", "1x2.0 (2026-12-01)"])
def test_other_first_sections(heading):
    assert f'"{heading}"' in changelog_problem(_changelog(heading), "1.2.0")
