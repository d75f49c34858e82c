"""The tables of models and of their published weights contain the right numbers."""

import re

import pytest

from benchmarks import model_weights, models
from keras_vit.weights.catalogue import ENTRIES, get_entry
from tests.models.baselines.attention_resnets_test import COUNTS


def _cells(table):
    """The rows of a table in Markdown as lists of cells, without the line below the head."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert all(len(row) == len(head) for row in rows)
    return [head, *rows]


@pytest.mark.slow
def test_rows():
    head, row = _cells(models.transformers({"Ti/16": "ViTTi16"}))
    assert head == ["variant", "function", "layers", "width", "MLP", "heads", "parameters", "GMACs"]
    assert row == ["Ti/16", "`ViTTi16`", "12", "192", "768", "3", "5.72 M", "1.25"]
    head, row = _cells(models.convolutional(models.keras_vit, ["VTResNet18"]))
    assert head == ["function", "units per stage", "width", "parameters", "GMACs", "in the paper"]
    assert row == ["`VTResNet18`", "2-2-2", "64", "11.67 M", "1.57", "11.7 M, 1.569"]


# {function: largest relative difference from the paper, if it is above that of the others} (docs/paper_map.md).
DIFFERENCES = {
    "`CBAMResNet34`": 0.05,
    **dict.fromkeys(("`LRNet18`", "`LRNet50`", "`StandAloneResNet50`", "`SAN19Patchwise`"), 0.07),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", models.TABLES)
def test_tables_agree_with_the_papers(name):
    head, *rows = _cells(models.TABLES[name]())
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        most = DIFFERENCES.get(cells.get("function"), 0)
        assert float(cells["GMACs"].replace(",", "")) > 0
        if parameters := re.match(r"([\d.]+) M", cells.get("in the paper", "")):
            found = float(cells["parameters"].removesuffix(" M"))
            assert found == pytest.approx(float(parameters[1]), rel=max(0.03, most))
        if macs := re.search(r"^[\d.]+$|(?<=, )[\d.]+$", cells.get("in the paper", "")):
            assert float(cells["GMACs"]) == pytest.approx(float(macs[0]), rel=max(0.04, most))


@pytest.mark.slow
def test_models_of_files():
    """timm has the same number of parameters for DINOv2-g with registers."""
    _, *rows = _cells(models.files("2104.14294"))
    assert [row[:3] for row in rows][:2] == [["S/8", "`ViTS8`", "224"], ["S/16", "`ViTS16`", "224"]]
    assert [row[-2:] for row in rows][:2] == [["21.67 M", "22.41"], ["21.67 M", "4.60"]]
    parameters, _ = models._cost_of_entry(get_entry("g-swiglu/14@dinov2-reg4"))
    assert parameters == f"{1_136_483_840 / 1e6:,.2f} M"
    # S/16 of MoCo v3 has more heads than `ViTS16`, so `ViTS16` cannot build it.
    _, *rows = _cells(models.files("2104.02057"))
    assert [(row[1], row[5]) for row in rows] == [("`from_pretrained`", "12"), ("`ViTB16`", "12")]


# Parameters that timm 1.0.31 counts. For EoMT, transformers 5.24 counts them, for Depth Anything 3 the owners' code.
PARAMETERS = {
    "S/16@dinov3-lvd1689m": 21_586_944,
    "Ti/14@eva02-in22k-in1k-336": 5_756_584,
    "B/16@eva02-clip-merged2b-224": 86_263_040,
    "Ti/16@pe-core-384": 6_141_056,
    "Ti/16@pe-spatial-512": 5_683_200,
    "S/16@rope-in1k": 21_984_232,
    "So150m2/16@sbb-reg1-e200-in12k-in1k-256": 136_059_560,
    "S/16@dinov3-lvd1689m-qkvb": 21_596_160,
    "S+/16@dinov3-lvd1689m": 28_683_264,
    "B/16@dinov3-lvd1689m": 85_641_216,
    "L/16@dinov3-lvd1689m": 303_079_424,
    "H+/16@dinov3-lvd1689m": 840_509_440,
    "H+/16@dinov3-lvd1689m-qkvb": 840_591_360,
    "7B/16@dinov3-lvd1689m": 6_716_030_976,
    "Ti/16@eupe-lvd1689m": 5_489_664,
    "S/14@eva02-in22k-in1k-336": 22_129_000,
    "B/14@eva02-in22k-224": 85_758_720,
    "L/14@eva02-in22k-in1k-448": 305_080_232,
    "L/14@eva02-clip-merged2b-336": 304_432_832,
    "E/14@eva02-clip-laion2b-224": 4_350_556_928,
    "g/14@eva-clip-in1k-224": 1_012_555_112,
    "g/14@eva-clip-laion400m-224": 1_012_588_928,
    "L/14@pe-core-336": 317_152_256,
    "G-pe/14@pe-core-448": 1_882_033_920,
    "L/14@pe-lang-448": 291_415_040,
    "G-pe/14@pe-spatial-448": 1_851_887_104,
    "B/16@rope-mixed-in1k": 86_444_008,
    "So150m/16@sbb-reg4-e250-in12k-in1k-256": 134_131_560,
    "mediumd/16@sbb-reg4-in12k-in1k-256": 64_109_032,
    "L/14@internvit-dist": 304_012_288,
    "H/16@ijepa-in1k-448": 631_668_480,
    "So400m/14@tipsv2": 413_391_600,
    "L/16@eomt-coco-panoptic-640": 316_695_686,
    "L/14@depth-anything-3-mono": 334_171_394,
}


@pytest.mark.slow
def test_parameters_of_files():
    with models.shapes_only():
        found = {name: models.build_entry(get_entry(name)).count_params() for name in PARAMETERS}
    assert found == PARAMETERS


def test_names_of_models_of_files():
    names = ["S/16@rope-in1k", "S/16@rope-mixed-ape-in1k", "L/14@pe-lang-448", "M/16@sbb-rope-reg1-in1k-256"]
    assert [models._name_with_additions(get_entry(name)) for name in names] == [
        *("S/16", "S/16, mixed, ape", "L/14, Lang", "M/16, 1 register, rotary")
    ]


def test_entries_of_papers():
    """S+/16 is not a hybrid, despite the `+` in its name. Weights without a paper are found by their family."""
    assert "S+/16@dinov3-lvd1689m" in [entry.name for entry in model_weights.entries_of(["2508.10104"])]
    assert not model_weights.entries_of(["2508.10104"], "stem")
    assert {entry.paper for entry in model_weights.entries_of(["timm"])} == {None}
    assert next(iter(model_weights.entries_of(["2010.11929"], "stem"))).variant == "R26+B/32"


def test_printed_numbers_of_baselines():
    printed = {name: models.PRINTED[name].partition(",")[0] for name in COUNTS}
    assert printed == {name: f"{row[2]} M" for name, row in COUNTS.items()} | {"CBAMResNet34": "22.9 M"}  # A misprint.


def test_copies_share_a_row():
    entries = model_weights.entries_of(["2304.07193", "2309.16588"])
    entries = [entry for entry in entries if entry.variant == "L/14"]
    _, *rows = _cells(model_weights.table(entries))
    assert [row[0] for row in rows] == ["`L/14@dinov2`", "`L/14@dinov2-reg4`"]
    assert rows[0][1:] == [
        *("518", "none", "86.30", "DINOv2 README, linear probe", "Apache-2.0"),
        "`-original`, `-huggingface`",
    ]


def test_projections_are_no_classes():
    head, row = _cells(model_weights.table([ENTRIES["B/16@pe-core-224"]]))
    assert row[head.index("classes")] == "1024 (projection)"


def test_models_with_an_output_for_each_pixel():
    """They have no top-1 accuracy. Those of DINOv2's paper are in a table of their own."""
    head, *rows = _cells(model_weights.table(model_weights.entries_of(["2304.07193"], "dense")))
    assert head == ["name", "pixels", "classes", "licence"]
    assert len(rows) == 40
    classes = {row[0].partition("@")[2].strip("`"): row[2] for row in rows}
    assert (classes["dinov2-voc2012-ms"], classes["dinov2-nyu-dpt"]) == ("21 (class_map)", "depth")


def test_files_with_other_contents_have_their_own_rows():
    """Google's file has a classifier for 21,843 classes. Its copy in the layout of transformers has none."""
    names = ["B/16@i21k", "B/16@i21k-huggingface"]
    _, *rows = _cells(model_weights.table([ENTRIES[name] for name in names]))
    assert [(row[0].strip("`"), row[2]) for row in rows] == [(names[0], "21843"), (names[1], "none")]
