"""Checks that this commit can be released: `python -m tests.release.readiness`."""

import re
import sys

from tests.release import ROOT, SETUP, git


def changelog_problem(text, version):
    """What is wrong with the first heading of a changelog, or `None`."""
    heading = re.search(r"^## (.*)$", text, re.MULTILINE)[1]
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        return (
            f'The first section of CHANGELOG.md is "{heading}". It must be the section of version {version}, with the '
            f"date of the release: {version} (YYYY-MM-DD)."
        )


def address_problem(address):
    """What is wrong with the address of the project, or `None`."""
    if address and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        return (
            f"url in setup.cfg is {address}. It must be the address of a repository on GitHub, such as "
            "https://github.com/OWNER/keras_vit, because setup.py adds the paths of files to it."
        )


def _problems(version):
    changes = git("status", "--porcelain")
    if changes:
        yield "Some files are not committed. Commit, ignore or remove them:\n" + "\n".join(changes)
    if git("tag", "--list", f"v{version}"):
        yield f"The tag v{version} exists. Write the next version into keras_vit/__init__.py."
    yield changelog_problem((ROOT / "CHANGELOG.md").read_text(), version)
    yield address_problem(SETUP["read_address"]())
    files = "tests/compat/" + version.rpartition(".")[0]
    if not (ROOT / files).is_dir():
        yield f"{files} does not exist. Write the files of this version: python -m tests.compat.writing"


def main():
    version = SETUP["read_version"]()
    problems = list(filter(None, _problems(version)))
    if problems:
        sys.exit("\n".join(problems))
    print(f"Version {version} can be released from this commit.")
    if not SETUP["read_address"]():
        print("Note: the project has no address (url in setup.cfg), so the package will have no links to the project.")


if __name__ == "__main__":
    main()
