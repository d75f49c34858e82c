"""setup.py derives links from the address of the project."""

import re

import pytest

from tests.release import ROOT, SETUP

ADDRESS = "https://github.com/someone/keras_vit"
README = """
[![licence](https://example.org/badge.svg)](LICENSE) ![ViT](docs/vit.png) [paper](https://arxiv.org/abs/2010.11929)
See [`docs/serving.md`,
page 2](docs/serving.md#curl), [models](#models).
```python
names[0](argument)
```
"""


def _package_readme(text, address):
    return SETUP["package_readme"](text, address, "1.2")


def test_links_of_the_readme_lead_to_the_tag():
    assert (
        _package_readme(README, ADDRESS)
        == f"""
[![licence](https://example.org/badge.svg)]({ADDRESS}/blob/v1.2/LICENSE) \
![ViT]({ADDRESS}/raw/v1.2/docs/vit.png) [paper](https://arxiv.org/abs/2010.11929)
See [`docs/serving.md`,
page 2]({ADDRESS}/blob/v1.2/docs/serving.md#curl), [models](#models).
```python
names[0](argument)
```
"""
    )


def test_links_of_the_readme_become_text_without_an_address():
    assert (
        _package_readme(README, "")
        == """
![licence](https://example.org/badge.svg) ViT [paper](https://arxiv.org/abs/2010.11929)
See `docs/serving.md`,
page 2, [models](#models).
```python
names[0](argument)
```
"""
    )


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_no_link_of_our_readme_is_left(address):
    links = re.findall(r"\]\(([^)]+)\)", _package_readme((ROOT / "README.md").read_text(), address))
    assert all(link.startswith(("https://", "#")) for link in links)


def test_links_of_the_metadata():
    assert SETUP["project_urls"]("", "1.2") == {}
    links = SETUP["project_urls"](ADDRESS, "1.2")
    assert links["Changelog"] == f"{ADDRESS}/blob/v1.2/CHANGELOG.md"
