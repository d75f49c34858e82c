"""The checks of the changelog and of the address find mistakes."""

from tests.release.readiness import address_problem, changelog_problem


def _changelog(heading):
    return f"# Changelog\n\n## {heading}\n\n* A change.\n\n## 0.9.0 (2026-01-31)\n"


def test_the_first_section_is_the_version():
    assert changelog_problem(_changelog("1.2.0 (2026-12-01)"), "1.2.0") is None
    for heading in ("1.2.0 (unreleased)", "1.2.0", "1.3.0 (2026-12-01)", "1x2.0 (2026-12-01)"):
        assert f'"{heading}"' in changelog_problem(_changelog(heading), "1.2.0")


def test_addresses():
    for address in ("", "https://github.com/someone/keras_vit"):
        assert address_problem(address) is None
    for address in ('"https://github.com/a/b"', "https://github.com/a/b/tree/main", "github.com/a/b"):
        assert f"url in setup.cfg is {address}." in address_problem(address)
