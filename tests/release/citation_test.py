"""CITATION.cff has the fields that the format requires, and agrees with the metadata."""

import configparser

import yaml

from tests.release import ROOT


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert "version" not in citation  # Its only place is keras_vit/__init__.py.
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert citation["license"] == settings["metadata"]["license"]
    assert [reference["url"] for reference in citation["references"]] == [
        "https://arxiv.org/abs/2010.11929",
        "https://arxiv.org/abs/2006.03677",
    ]
    assert all({"type", "title", "authors"} <= reference.keys() for reference in citation["references"])
