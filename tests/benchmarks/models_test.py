"""The tables of models and of their published weights contain the right numbers."""

import re

import pytest

from benchmarks import model_weights, models
from keras_vit.weights.catalogue import ENTRIES, get_entry
from tests.models.baselines.resnets_test import COUNTS


def _cells(table):
    """The rows of a table in Markdown as lists of cells, without the line below the head."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert all(len(row) == len(head) for row in rows)
    return [head, *rows]


def test_transformers():
    head, row = _cells(models.transformers({"Ti/16": "ViTTi16"}))
    assert head == ["variant", "function", "layers", "width", "MLP", "heads", "parameters", "GMACs"]
    assert row == ["Ti/16", "`ViTTi16`", "12", "192", "768", "3", "5.72 M", "1.25"]


def test_convolutional():
    head, row = _cells(models.convolutional(models.keras_vit, ["VTResNet18"]))
    assert head == ["function", "units per stage", "width", "parameters", "GMACs", "in the paper"]
    assert row == ["`VTResNet18`", "2-2-2", "64", "11.67 M", "1.57", "11.7 M, 1.569"]


@pytest.mark.slow
@pytest.mark.parametrize("name", models.TABLES)
def test_tables_agree_with_the_papers(name):
    head, *rows = _cells(models.TABLES[name]())
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        assert float(cells["GMACs"].replace(",", "")) > 0
        if parameters := re.match(r"([\d.]+) M", cells.get("in the paper", "")):
            assert float(cells["parameters"].removesuffix(" M")) == pytest.approx(float(parameters[1]), rel=0.03)
        if macs := re.search(r"^[\d.]+$|(?<=, )[\d.]+$", cells.get("in the paper", "")):
            assert float(cells["GMACs"]) == pytest.approx(float(macs[0]), rel=0.04)


def test_models_of_files():
    """timm has the same number of parameters for DINOv2-g with registers."""
    _, *rows = _cells(models.files("2104.14294"))
    assert [row[:3] for row in rows][:2] == [["S/8", "`ViTS8`", "224"], ["S/16", "`ViTS16`", "224"]]
    assert [row[-2:] for row in rows][:2] == [["21.67 M", "22.41"], ["21.67 M", "4.60"]]
    _, parameters, _ = models._cost(lambda: models.build_entry(get_entry("g-swiglu/14@dinov2-reg4")))
    assert parameters == f"{1_136_483_840 / 1e6:,.2f} M"


def test_printed_numbers_of_baselines():
    assert {name: models.PRINTED[name] for name in COUNTS} == {name: f"{row[2]} M" for name, row in COUNTS.items()}


def test_copies_share_a_row():
    entries = [entry for name, entry in ENTRIES.items() if name.startswith("L/14@dinov2")]
    _, *rows = _cells(model_weights.table(entries))
    assert [row[0] for row in rows] == ["`L/14@dinov2`", "`L/14@dinov2-reg4`"]
    assert rows[0][1:] == [
        *("518", "none", "86.30", "DINOv2 README, linear probe", "Apache-2.0"),
        "`-original`, `-huggingface`",
    ]


def test_files_with_other_contents_have_their_own_rows():
    """Google's file has a classifier for 21,843 classes. Its copy in the layout of transformers has none."""
    names = ["B/16@i21k", "B/16@i21k-huggingface"]
    _, *rows = _cells(model_weights.table([ENTRIES[name] for name in names]))
    assert [(row[0].strip("`"), row[2]) for row in rows] == [(names[0], "21843"), (names[1], "none")]
