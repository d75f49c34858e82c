import pytest

from keras_vit.weights.formats.settings import activation_of_problem, check_supported


@pytest.mark.parametrize(
    ("kind", "classes", "activation"),
    [
        (None, 3, "softmax"),
        ("single_label_classification", 3, "softmax"),
        pytest.param(
            *("multi_label_classification", 3, "sigmoid"),
            marks=pytest.mark.combination(
                "transformers: problem_type=multi_label_classification", "the classifier ends in a sigmoid"
            ),
        ),
        pytest.param(
            *("regression", 3, None),
            marks=pytest.mark.combination("transformers: problem_type=regression", "the classifier has no activation"),
        ),
        (None, 1, "sigmoid"),
    ],
)
def test_activation(kind, classes, activation):
    assert activation_of_problem({"problem_type": kind}, classes) == activation


def test_unknown_kind_of_problem():
    with pytest.raises(ValueError, match=r"problem_type='ranking'\. Accepted: 'single_label_classification', 'multi"):
        activation_of_problem({"problem_type": "ranking"}, 3)


def test_setting_with_the_name_of_a_table_entry_is_unknown():
    ignored = check_supported("config.json", {"any_value": 2, "depth": 3}, {"any_value": ["depth"]})
    assert ignored == {"any_value": "2 in config.json is unknown and has no effect"}
