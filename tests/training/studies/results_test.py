"""The rows of studies, their files, and what follows from them."""

import math

import pytest
import scipy.stats

from training import recipes
from training.errors import InputError
from training.recipe.assignments import override
from training.studies.results import Row, digest, measured_panel, read_rows, summaries, table, write_rows
from training.studies.study import Comparison
from training.studies.verdicts import decide, interval


def row(series, point, seed, score, **fields):
    numbers = {"validation": 0.5, "parameters": 1234, "gmacs": 0.0056, "flops": 7e17, "learning_rate": 1e-3}
    numbers |= {"train_images": 100, "test_images": 360, "seconds": 8.5}
    texts = {"run": f"{series}{point}{seed}", "date": "2026-11-29", "commit": "01234567", "processor": "p, 1 core"}
    texts |= {"keras": "3.15", "tensorflow": "2.21"}
    return Row(series, point, seed, score, **(numbers | texts | fields))


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = [row("a, b", "1", 0, 0.25, measures={"5-shot": 0.5}), row("a", "ü", 1, 0.5, measures={"5-shot": 0.25})]
    write_rows(tmp_path / "new" / "a.csv", rows)
    assert read_rows(tmp_path / "new" / "a.csv") == rows
    assert read_rows(tmp_path / "absent.csv") == []
    for text in ("series,point\na,b\n", "\0", (tmp_path / "new" / "a.csv").read_text().replace("360", "many")):
        (tmp_path / "damaged.csv").write_text(text)
        with pytest.raises(InputError, match=r"damaged\.csv is not a file with the results of a study: .*Move it away"):
            read_rows(tmp_path / "damaged.csv")


def test_validation_may_be_absent(tmp_path):
    write_rows(tmp_path / "a.csv", [row("a", "b", 0, 0.25, validation=math.nan)])
    assert math.isnan(read_rows(tmp_path / "a.csv")[0].validation)


def test_a_recipe_is_identified_by_the_values_that_it_sets():
    recipe = recipes.load("digits")
    assert digest(recipe) == digest(override(recipe, ["name=other", "augment.flip=false"]))
    others = ["seed=1", "augment.flip=true", "fit.epochs=3", "model.config.num_layers=1"]
    assert len({digest(recipe), *(digest(override(recipe, [change])) for change in others)}) == 5
    tuned = [override(recipe, ["model.config=none", f"model.weights={folder}/model.keras"]) for folder in "ab"]
    assert digest(tuned[0], "parent") == digest(tuned[1], "parent") != digest(tuned[0], "other")


def test_summaries_are_of_all_seeds_of_a_point():
    rows = [row("one", "a", seed, score) for seed, score in enumerate((0.1, 0.3, 0.5))]
    one, two = summaries([*rows, row("two", "c", 0, 0.2)])
    assert one.mean() == pytest.approx(0.3)
    assert one.interval() == pytest.approx(scipy.stats.t.interval(0.95, 2, 0.3, 0.2 / 3**0.5))
    assert (two.first.point, two.interval()) == ("c", None)
    lines = table([*rows, row("two", "c", 0, 0.2)]).splitlines()
    assert lines[1].split() == ["one", "a", "1,234", "0.0056", "7e+17", "100", "30.00%", "-19.68%", "to", "79.68%"]
    assert lines[2].split()[-1] == "20.00%"
    assert "interval" not in table(rows[:1])  # One seed gives no interval.


def test_a_figure_says_what_its_values_are_worth():
    one = summaries([row("one", "a", 0, 0.2), row("two", "c", 0, 0.3)])
    # 360 images, of which a quarter is right.
    said = "Measured on 360 test images. The 95 % interval of an accuracy of 25% is 21 to 30 %."
    assert measured_panel(one, "flops", "", "").note == said
    assert measured_panel(one, "flops", "", "", "Printed.").note == f"{said} Printed."
    three = summaries([row("one", "a", seed, 0.2 + 0.01 * seed) for seed in range(3)])
    panel = measured_panel(three, "flops", "", "")
    assert panel.note == "Mean over 3 seeds with its 95 % interval (t distribution); 360 test images."
    [value] = panel.series["one"]
    assert (value.y, value.high - value.y) == pytest.approx((21, 2.484), abs=1e-3)


@pytest.mark.parametrize(
    ("differences", "expected", "word"),
    [
        ((0.02, 0.03, 0.025), "shows", "shows"),
        ((-0.02, -0.03, -0.025), "shows", "reversed"),
        ((0.001, -0.001, 0.0), "shows", "tie"),
        ((0.02, -0.02, 0.01), "shows", "undecided"),
        ((0.004, 0.005, 0.0045), "shows", "shows"),
        ((0.004, 0.005, 0.0045), "tie", "tie"),
        ((0.02, 0.03, 0.025), "tie", "shows"),
        ((0.02,), "shows", "not run"),
    ],
)
def test_verdicts(differences, expected, word):
    rows = [row("a", "x", seed, 0.5 + value) for seed, value in enumerate(differences)]
    rows += [row("b", "y", seed, 0.5) for seed in range(4)]
    verdict = decide(Comparison("", ("a", "x"), ("b", "y"), expected=expected), rows)
    assert (verdict.word, verdict.seeds) == (word, len(differences))
    if len(differences) > 1:
        assert verdict.bounds == pytest.approx(interval(differences))


def test_the_best_point_of_a_series_is_chosen_by_validation():
    rows = [row("a", f"{i}", seed, 0.1 * i, validation=0.5 - 0.1 * i) for i in range(3) for seed in range(2)]
    rows += [row("b", "y", seed, 0.3) for seed in range(2)]
    verdict = decide(Comparison("", ("a", None), ("b", "y")), rows)
    assert verdict.points == (("a", "0"), ("b", "y"))
    assert (verdict.word, verdict.difference) == ("reversed", pytest.approx(-0.3))
    assert decide(Comparison("", ("c", None), ("b", "y")), rows).word == "not run"
