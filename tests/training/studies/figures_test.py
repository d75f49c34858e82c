"""The content of the studies' figures."""

import numpy as np
import pytest

from tests.training.studies.results_test import row
from training.studies import papers as studies
from training.studies.figures import Panel, Value, plot_bars, plot_panels
from training.studies.results import summaries


def bars_of(axes):
    """{name: (places, means, lowest, highest)}"""
    found = {}
    for container in axes.containers:
        line, _, [errors] = container
        low, high = np.transpose([segment[:, 1] for segment in errors.get_segments()])
        found[container.get_label()] = tuple(map(list, (line.get_xdata(), line.get_ydata(), low, high)))
    return found


def test_curves_run_from_left_to_right_with_all_seeds():
    values = [Value(30, 0.6, 0.5, 0.65, "B"), Value(3, 0.4, label="A")]
    own = Panel("Measured", "steps", "accuracy", {"mine": values, "other": [Value(9, 0.1)]})
    printed = Panel("Paper", "steps", "accuracy", {"mine": [Value(1, 0.9)]}, note="Printed.")
    figure = plot_panels([own, printed])
    left, right = figure.axes
    np.testing.assert_allclose(bars_of(left)["mine"], [[3, 30], [0.4, 0.6], [0.4, 0.5], [0.4, 0.65]])
    assert [text.get_text() for text in left.texts] == ["A", "B", ""]
    assert (left.get_xscale(), left.get_title("left"), right.get_title("left")) == ("log", "Measured", "Paper")
    assert right.get_xlabel() == "steps\nPrinted."
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["mine", "other"]
    assert right.get_legend() is None
    # A name has the same color in both panels, and another color than other names.
    colours = {(i, c.get_label()): c[0].get_color() for i, axes in enumerate(figure.axes) for c in axes.containers}
    assert colours[0, "mine"] == colours[1, "mine"] != colours[0, "other"]


def test_words_stand_side_by_side():
    panel = Panel("", "kind", "accuracy", {"a": [Value("x", 1), Value("y", 2)], "b": [Value("y", 3)]}, is_log=True)
    [axes] = plot_panels([panel]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y"]
    assert bars_of(axes)["a"][0] == pytest.approx([0, 0.85])  # One bar is centred, two are side by side.
    np.testing.assert_allclose(bars_of(axes)["b"][:2], [[1.15], [3]])
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")


def test_many_words_make_a_panel_wide():
    def width(words):
        return plot_panels([Panel("", "", "", {"a": [Value(word, 1) for word in words]})]).get_size_inches()[0]

    assert width("ab") == width("abcde") == pytest.approx(5.4)
    assert width("abcdefghi") == pytest.approx(9)


def test_bars_of_papers_are_hatched():
    axes = plot_bars("", ["g", "h"], {"mine": ([50.0, None], False), "theirs": ([60.0, 70.0], True)}, "%").axes[0]
    mine, theirs = axes.containers
    assert [bar.get_height() for bar in theirs] == [60, 70]
    assert np.isnan(mine[1].get_height())
    assert (mine[0].get_hatch(), theirs[0].get_hatch()) == (None, "///")
    assert [text.get_text() for text in axes.texts] == ["50.0", "", "60.0", "70.0"]


FIGURES = {  # {study: (points of the rows, series of the paper's panel if the paper prints numbers)}
    "axial": ([("ViT", "patches of 8"), ("Axial-ViT", "patches of 8")], None),
    "data_size": ([("ViT, width 48", "1,000 images"), ("ViT, width 48", "4,000 images")], 5),
    "fine_tuning": ([("fine-tuned", "all images")], None),
    "optimizers": ([("Adam", "0.001"), ("SGD", "0.01")], 2),
    "pooling": ([("class token", "0.001"), ("average pooling", "0.001")], None),
    "positions": ([("stem", "none"), ("stem", "1-D"), ("every layer", "1-D")], 3),
    "pretraining_size": ([("BiT-ResNet", "1,000 images"), ("BiT-ResNet", "5,000 images")], None),
    "resolution": ([("pre-trained", "16 pixels"), ("fine-tuned at 32 pixels", "32 pixels")], None),
    "scaling": ([("ViT", "24/8"), ("ResNet", "32")], 3),
    "self_supervision": ([("from scratch", "none"), ("after supervised pre-training", "labels")], None),
    "shape": ([("base", "base"), ("depth", "8"), ("width", "16")], None),
    "vt_resnet": ([("ResNet", "160 pixels"), ("VT-ResNet", "160 pixels")], None),
    "vt_fpn": ([("VT-FPN", "neck of 64 channels"), ("Panoptic FPN", "neck of 64 channels")], None),
    "tokens": ([("VT-ResNet", "unchanged"), ("VT-ResNet", "32 tokens")], 2),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_holds_what_was_measured_and_what_is_printed(name, tmp_path):
    points, printed = FIGURES[name]
    rows = []
    for i, point in enumerate(points):
        fields = {"gmacs": 0.2 * (i + 1), "flops": 0.1 * (i + 1), "learning_rate": 0.01 * (i + 1)}
        fields["train_images"] = 81 * (i + 1)
        for seed in (0, 1):
            score = 0.5 + 0.1 * i + 0.01 * seed
            rows.append(row(*point, seed, score, measures={"5-shot": score, "25-shot": score}, **fields))
    figure = studies.load(name).figure(summaries(rows), tmp_path)
    own, *others = figure.axes
    if name == "pretraining_size":
        others = others[1:]
    assert own.get_title("left").startswith("Measured")
    drawn = {name: bars[1] for name, bars in bars_of(own).items()}
    for i, (series, _) in enumerate(points):
        if series != "base":
            assert any(value == pytest.approx(50.5 + 10 * i) for value in drawn[series])
    if name == "shape":  # All lines start at the base.
        assert set(drawn) == {"depth", "width"}
        assert {places[0] for places, *_ in bars_of(own).values()} == {1.0}
    assert [len(bars_of(axes)) for axes in others] == ([] if printed is None else [printed])
    if others:
        assert others[0].get_title("left").startswith("The paper's Table")
