"""The links of the metadata, which depend on the address of the project. All other metadata is in setup.cfg."""

import configparser
import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
_RELATIVE = r"\((?![a-z]+:|#)([^)\s]+)\)"
_IMAGE = re.compile(rf"!\[([^\]]*)\]{_RELATIVE}")
_LINK = re.compile(rf"\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]{_RELATIVE}")  # The text of a link may contain an image.
_CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def read_version():
    return re.search(r'^__version__ = "(.+)"$', (ROOT / "keras_vit/__init__.py").read_text(), re.MULTILINE)[1]


def read_address():
    """The address without a final slash, or an empty string if the project has no address."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings["metadata"].get("url", "").rstrip("/")


def project_urls(address, version):
    """{name: address} of the links that a package index shows beside the description."""
    if not address:
        return {}
    return {
        "Source": address,
        "Changelog": f"{address}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def package_readme(text, address, version):
    """The README for a package index, where links relative to the repository do not work.

    They become links to the files of the version's tag. Without an address, only their text remains.
    """
    image, link = r"\1", r"\1"
    if address:
        image, link = rf"![\1]({address}/raw/v{version}/\2)", rf"[\1]({address}/blob/v{version}/\2)"
    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(link, _IMAGE.sub(image, part)) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    project = read_address(), read_version()
    setuptools.setup(
        long_description=package_readme((ROOT / "README.md").read_text("utf-8"), *project),
        project_urls=project_urls(*project),
    )
