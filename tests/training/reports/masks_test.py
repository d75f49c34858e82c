"""Reports of objects and of depth show the results."""

import types

import numpy as np
import pytest

from training.evaluation.depth import ERRORS, Depth
from training.evaluation.masks import Instances, Matches, Panoptic
from training.reports import depth, masks, overlays
from training.reports.figures import depth_scale, plot_color_bars
from training.reports.overlays import legend, object_colors, overlay_objects, palette

NAMES = ("person", "<car>")
SEGMENTS = np.repeat(np.repeat([[0, 1, 2], [0, 3, 3]], 4, axis=0), 5, axis=1)
PICTURE = (0.75, np.full((8, 15, 3), 100.0), (SEGMENTS, np.array([0, 1, -1])), (0 * SEGMENTS, np.array([])))


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Writes a report without the parts that all reports have; returns its text."""
    origin = dict.fromkeys(("kind", "heading", "title", "note", "origin"), "")
    for module in (masks, depth):
        for name, part in (("origin", origin), ("curves", ""), ("cost_numbers", [])):
            monkeypatch.setattr(module, name, lambda *_, part=part: part)
    run = types.SimpleNamespace(figures=tmp_path, report=tmp_path / "report.html")

    def write(function, evaluation):
        function(run, None, None, evaluation, None, None)
        return run.report.read_text(encoding="utf-8")

    return write


@pytest.mark.parametrize(("kind", "last"), [(Instances, {"50 %": np.linspace(1, 0, 101)}), (Panoptic, 0.123)])
def test_report_of_objects(report, kind, last):
    matches = Matches(2)
    matches.counts[:] = [[4, 1, 2], [0, 2, 1], [0, 5, 0]]
    scores = np.array([[0.5, 0.75, 0.25], [np.nan] * 3])
    groups, pictures = {"all": scores[0], "some": scores[1]}, {7: PICTURE}
    evaluation = kind(scores, groups, matches, NAMES, (8, 15), 12, pictures, pictures, last)
    page = report(masks.write_masks_report, evaluation)
    assert "find 6 of them (60.0%), take 1 for another class, and miss 3. 5 predictions are false" in page
    assert "<tr><th scope=row>person<td>7<td>2<td>50.0%<td>75.0%<td>25.0%<td>&lt;car&gt;" in page
    assert "<tr><th scope=row>some<td>none<td>none<td>none" in page
    assert page.count("image 7, quality 25%") == 2
    assert ("precision by recall" in page, "<dd>12.30%</dd>" in page) == (kind is Instances, kind is Panoptic)


def test_report_of_depth(report):
    true = np.where(SEGMENTS > 0, 2.0 + SEGMENTS, 0)
    means = dict(zip(ERRORS, np.arange(1, 7) / 10, strict=True))
    pictures = {7: (0.25, PICTURE[1], true, true + 1.0)}
    evaluation = Depth({"aligned": means}, 12, (8, 15), "m", (2.5, 0.75), np.arange(80), pictures, pictures)
    page = report(depth.write_depth_report, evaluation)
    assert "depth (aligned) is wrong by 10.00%" in page
    assert "<tr><th scope=row>aligned<td>10.00%<td>0.2 m<td>0.3000<td>40.00%<td>50.00%<td>60.00%" in page
    assert "<tr><th scope=row>best constant, 2.5 m<td>75.00%<td>" in page
    assert page.count('alt="relative error"') == page.count("image 7, AbsRel 25.0%") == 2


def test_objects_have_colours_and_outlines(monkeypatch):
    drawn = overlay_objects(PICTURE[1], SEGMENTS, PICTURE[2][1], len(NAMES))
    expected = [[100] * 3, *(0.55 * palette(3)[[1, 2, 255]] + 45)]
    np.testing.assert_allclose(drawn[[0, 1, 1, 6], [0, 7, 12, 12]], expected, rtol=0, atol=1)
    assert (drawn[[0, 2, 4], [5, 10, 12]] == 255).all()
    monkeypatch.setattr(overlays, "MAX_CLASSES", 7)
    np.testing.assert_array_equal(*(object_colors(classes, 20) for classes in ([6, 7, 17], [0, 1, 5])))
    assert legend(NAMES, palette(2)[:2]).height > legend((), palette(2)[:0]).height


def test_colours_of_depth():
    scale = depth_scale(1, 16)
    near, middle, unknown = scale.to_rgba(np.array([1.0, 4.0, np.nan])).tolist()
    np.testing.assert_allclose(middle, scale.cmap(0.5))
    assert sum(near) > sum(middle) != sum(unknown)
    ticks = plot_color_bars({"depth (m)": scale}).axes[0].get_xticks()
    assert [tick for tick in ticks if 1 <= tick <= 16] == [1, 2, 5, 10]
