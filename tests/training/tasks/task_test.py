"""What a task says about itself."""

import numpy as np
import pytest

from training.errors import InputError
from training.recipe.assignments import override
from training.recipes import load
from training.tasks import TASKS, require_task
from training.tasks.task import Metric


def test_the_best_value_of_an_error_is_the_lowest():
    error, share = Metric("mae", "mean absolute error", is_share=False, is_higher_better=False), Metric("iou", "IoU")
    assert (error.best([3.0, 1.0, 2.0]), share.best([0.3, 0.1]), error.best([])) == (1.0, 0.3, None)
    assert (error.text(12.3456), error.text(12.3456, 1), share.text(0.12345)) == ("12.35", "12.3", "12.35%")


def test_a_command_refuses_a_task_that_it_does_not_accept():
    recipe = override(load("digits"), ["task=pretraining"])
    require_task(recipe, "fewshot")
    with pytest.raises(InputError, match=r"evaluate is for task=classification or .*contrastive\. .*: train, fewshot"):
        require_task(recipe, "evaluate")
    assert all(task.metric.name and task.commands for task in TASKS.values())


def test_labels_as_text():
    recipe = load("digits")
    names = ("ant", "bee", "cat")
    texts = {
        ("classification", 1): "bee",
        ("classification", (0, 2)): "ant or cat",
        ("multilabel", (1, 0, 1)): "ant, cat",
        ("multilabel", (0, 0, 0)): "no label",
        ("regression", (1.0, 2.5, 1234.56)): "ant 1, bee 2.5, cat 1235",
    }
    for (name, label), text in texts.items():
        assert TASKS[name](recipe).label_text(np.array(label, float if name == "regression" else int), names) == text
