"""Values in papers' tables that can be recomputed equal the printed ones."""

import statistics

import pytest

from tests.models.bit_resnet_test import PUBLISHED as BIT_RESNETS
from tests.models.variants_test import HYBRIDS, VARIANTS
from training.planning.plan_report import training_flops
from training.reports import published

# Images per epoch of JFT-300M, from arXiv 2010.11929, section 4.1.
JFT_IMAGES = 303e6
# {name of a model in Table 6: multiply-accumulates per image, in billions, as counted in tests/models}.
GMACS = {
    **{f"ViT-{variant}": sizes[224][-1] for (variant, _), (_, sizes) in VARIANTS.items()},
    **{variant.replace("R50+", "R50x1+ViT-"): gmacs for (variant, _), (*_, gmacs) in HYBRIDS.items()},
    **{function.replace("BiT", ""): gmacs for function, (*_, gmacs) in BIT_RESNETS.items()},
}
# The paper prints whole numbers, so 55 is within 0.9 %. All ResNets are counted 3 to 4 % higher than printed.
TOLERANCES = {"ViT-B/32": 0.025, "R50x1+ViT-B/32": 0.017, "R50x1+ViT-L/32": 0.005}
TOLERANCES |= {name: 0.05 for name in GMACS if name.startswith("ResNet")}


def test_compute_of_table_6():
    for row in published.read("vit_table6").rows:
        name, epochs = row["model"], row["epochs"]
        # The paper prints 859 for 7 epochs, which is more than half of the 1668 for 14 epochs of the same model.
        tolerance = 0.03 if (name, epochs) == ("R50x1+ViT-L/16", 7) else TOLERANCES.get(name, 0.003)
        exaflops = training_flops(1e9 * GMACS[name], JFT_IMAGES * epochs) / 1e18
        assert exaflops == pytest.approx(row["exaflops"], rel=tolerance), name


def test_table_2_has_the_means_of_table_9():
    printed = {row["model"]: row for row in published.read("vit_table2").rows}
    assert list(printed) == ["ViT-H/14 (JFT)", "ViT-L/16 (JFT)", "ViT-L/16 (I21k)", "BiT-L", "Noisy Student"]
    assert list(printed["BiT-L"].values()) == ["BiT-L", *[None] * 7, 9900]
    for row in published.read("vit_table9").rows:
        # The means are over 19 tasks. The numbers in Table 9 have only one decimal.
        assert row["mean"] == pytest.approx(printed[row["model"]]["VTAB"], abs=0.051)


def test_means_of_tables_7_and_9():
    for table, num_rows, num_scores, tolerance in (("vit_table7", 4, 5, 0.0051), ("vit_table9", 3, 19, 0.051)):
        rows = published.read(table).rows
        assert len(rows) == num_rows
        for row in rows:
            scores = [value for column, value in row.items() if column not in ("model", "optimizer", "mean")]
            assert len(scores) == num_scores
            assert statistics.mean(scores) == pytest.approx(row["mean"], abs=tolerance)


def test_tables_say_where_they_are_from_and_what_is_not_printed():
    table = published.read("vit_table8")
    assert table.source.startswith("Dosovitskiy et al., arXiv 2010.11929v2, Table 8:")
    assert table.rows[0] == {"positions": "none", "stem": 0.61382, "every layer": None, "every layer shared": None}
    assert published.read("vit_table5").rows[0]["H/14"] is None
