"""The tasks that a run can learn (`recipe.task`): one module per task, each with a class `Task`.

A `Task` defines the labels, loss, metric, evaluation and report of a run. Everything else is the same for all tasks.
"""

from training.errors import InputError
from training.tasks import classification, segmentation

TASKS: dict[str, type[classification.Task | segmentation.Task]] = {
    "classification": classification.Task,
    "segmentation": segmentation.Task,
}
"""{value of `recipe.task`: class}. A run constructs its `Task` from its recipe."""


def require_classification(recipe, command):
    """Raises an InputError unless the task is classification. Called by commands that support only classifiers."""
    if recipe.task != "classification":
        raise InputError(
            f"{command} is for models that classify whole images. Received: task={recipe.task}. Accepted for "
            f"other tasks: train, evaluate, predict and export."
        )
