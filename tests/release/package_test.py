"""The checks of the package find what is wrong with it."""

import tarfile
import zipfile

import pytest

from tests.release import package

PACKAGE = {"keras_vit/__init__.py", "keras_vit/label_spaces/imagenet1k_classes.csv"}
INFORMATION = {f"keras_vit_applications-1.2.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
LICENCE = "keras_vit_applications-1.2.dist-info/licenses/LICENSE"


def _wheel(folder, files):
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return path


def _sdist(folder, files):
    path = folder / "package.tar.gz"
    with tarfile.open(path, "w") as archive:
        for file in files:
            archive.addfile(tarfile.TarInfo(f"keras_vit_applications-1.2/{file}"))
    return path


def _first_words(problems):
    return [problem.partition(". ")[0] for problem in problems]


def test_files_of_a_wheel(tmp_path):
    complete = PACKAGE | INFORMATION | {LICENCE}
    assert not package.wheel_problems(_wheel(tmp_path, complete), PACKAGE)
    wrong = complete - {"keras_vit/label_spaces/imagenet1k_classes.csv", LICENCE} | {"training/__init__.py"}
    assert _first_words(package.wheel_problems(_wheel(tmp_path, wrong), PACKAGE)) == [
        "package.whl does not contain keras_vit/label_spaces/imagenet1k_classes.csv",
        "package.whl does not contain licenses/LICENSE",
        "package.whl contains training/__init__.py",
    ]


def test_files_of_an_sdist(tmp_path):
    complete = PACKAGE | package.SOURCES | {"PKG-INFO", "keras_vit_applications.egg-info/SOURCES.txt"}
    assert not package.sdist_problems(_sdist(tmp_path, complete), PACKAGE)
    wrong = complete - {"setup.py"} | {"tests/test_case.py"}
    assert _first_words(package.sdist_problems(_sdist(tmp_path, wrong), PACKAGE)) == [
        "package.tar.gz does not contain setup.py",
        "package.tar.gz contains tests/test_case.py",
    ]


@pytest.mark.parametrize(
    ("page", "relative"),
    [
        ('<a href="https://example.org/a">a</a> <a href="#models">b</a>', []),
        ('<a href="docs/serving.md">a</a>', ["docs/serving.md"]),
        ('<picture><source srcset="dark.png"><img src="light.png"></picture>', ["dark.png", "light.png"]),
    ],
)
def test_relative_links_of_the_description(page, relative):
    problems = package.readme_problems(page)
    assert len(problems) == len(relative)
    assert all(f"relative link {target}." in problem for target, problem in zip(relative, problems, strict=True))
