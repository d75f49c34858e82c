import pytest

from keras_vit.weights.formats.settings import check_supported, output_of_problem


@pytest.mark.parametrize(
    ("problem", "classes", "kind"),
    [
        (None, 3, "classes"),
        ("single_label_classification", 3, "classes"),
        pytest.param(
            *("multi_label_classification", 3, "labels"),
            marks=pytest.mark.combination(
                "transformers: problem_type=multi_label_classification", "the classifier ends in a sigmoid"
            ),
        ),
        pytest.param(
            *("regression", 3, "values"),
            marks=pytest.mark.combination(
                "transformers: problem_type=regression", "the outputs are values, without an activation"
            ),
        ),
        (None, 1, "labels"),
    ],
)
def test_output(problem, classes, kind):
    assert output_of_problem({"problem_type": problem}, classes).kind == kind


def test_unknown_kind_of_problem():
    with pytest.raises(ValueError, match=r"problem_type='ranking'\. Accepted: 'single_label_classification', 'multi"):
        output_of_problem({"problem_type": "ranking"}, 3)


def test_setting_with_the_name_of_a_table_entry_is_unknown():
    ignored = check_supported("config.json", {"any_value": 2, "depth": 3}, {"any_value": ["depth"]})
    assert ignored == {"any_value": "2 in config.json is unknown and has no effect"}
