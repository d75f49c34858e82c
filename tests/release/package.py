"""Builds the package, checks its files, and uses it in a new environment: `python -m tests.release.package`."""

import email
import html.parser
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

from tests.release import ROOT, SETUP, git

DIST = ROOT / "dist"
# The files of an sdist beside the package.
SOURCES = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"}
SOURCES |= {"setup.py"}
# Where setuptools lists the files of an sdist: in the sdist, and in the checkout.
EGG_INFO = "keras_vit_applications.egg-info"
SMOKE_TEST = pathlib.Path(__file__).with_name("smoke.py")


def differences(name, files, expected):
    """One line for each file that an archive lacks, and for each that does not belong there."""
    lacking = [f"{name} does not contain {file}. Add it in setup.cfg or MANIFEST.in." for file in expected - files]
    foreign = [
        f"{name} contains {file}. Exclude it in setup.cfg or MANIFEST.in. If it is new, add it to git. If it no longer "
        f"exists, remove build/ and {EGG_INFO}/."
        for file in files - expected
    ]
    return sorted(lacking) + sorted(foreign)


def wheel_problems(wheel, package):
    """Compares the files of a wheel with `package`, the files of keras_vit, and the licence."""
    with zipfile.ZipFile(wheel) as archive:
        files = {file.rpartition(".dist-info/")[2] for file in archive.namelist()}
    generated = {"METADATA", "RECORD", "WHEEL", "top_level.txt"}
    return differences(wheel.name, files - generated, package | {"licenses/LICENSE"})


def sdist_problems(sdist, package):
    """Compares the files of an sdist with `package`, the files of keras_vit, and `SOURCES`."""
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    generated = {file for file in files if file == "PKG-INFO" or file.startswith(f"{EGG_INFO}/")}
    return differences(sdist.name, files - generated, package | SOURCES)


class _Links(html.parser.HTMLParser):
    """Collects the targets of links and images that are relative."""

    def __init__(self):
        super().__init__()
        self.relative = []

    def handle_starttag(self, tag, attributes):
        targets = [value for name, value in attributes if name in {"href", "src", "srcset"} and value]
        self.relative += [
            target for target in targets if not target.startswith(("https://", "http://", "mailto:", "#"))
        ]


def readme_problems(page):
    """One line for each link that works in the repository only. `page` is the description in HTML."""
    links = _Links()
    links.feed(page)
    return [
        f"The description of the package has the relative link {target}. In README.md, write it as [text]({target}) "
        f"or ![text]({target}); setup.py replaces these."
        for target in links.relative
    ]


def _description(wheel):
    """The README in a wheel as HTML, as package indexes show it."""
    from readme_renderer import markdown

    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [file for file in archive.namelist() if file.endswith(".dist-info/METADATA")]
        message = email.message_from_bytes(archive.read(metadata))
    return markdown.render(message.get_payload(decode=True).decode())


def _run(*command, **options):
    """Runs a command without PYTHONPATH, which would add the checkout to every environment."""
    print("+", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if subprocess.run(command, env=environment, **options).returncode:
        sys.exit(f"This command failed: {' '.join(map(str, command))}")


def build():
    """Builds into an empty `dist`, the wheel from the sdist. Returns the paths (sdist, wheel)."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", str(DIST), cwd=ROOT, stdout=subprocess.DEVNULL)
    [sdist], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def install_and_use(sdist, wheel):
    """Runs the smoke test with the wheel in an empty environment, then with the sdist in its place."""
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", "environment", cwd=folder)
        python = pathlib.Path(folder, "environment/bin/python")
        install = python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
        for arguments in ([f"{wheel}[tensorflow]"], ["--force-reinstall", "--no-deps", sdist]):
            _run(*install, *arguments, cwd=folder)
            with tempfile.TemporaryDirectory() as empty:
                _run(python, "-I", SMOKE_TEST, SETUP["read_version"](), cwd=empty)


def main():
    sdist, wheel = build()
    _run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    package = set(git("ls-files", "keras_vit"))
    problems = sdist_problems(sdist, package) + wheel_problems(wheel, package) + readme_problems(_description(wheel))
    if problems:
        sys.exit("\n".join(problems))
    install_and_use(sdist, wheel)
    print(f"{sdist.name} and {wheel.name} can be installed and used. They are in {DIST}.")


if __name__ == "__main__":
    main()
