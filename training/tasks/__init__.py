"""The tasks that a run can learn (`recipe.task`): one module per task, each with a class `Task`.

A `Task` defines the labels, the loss, the metric, the evaluation and the report. Everything else of a run is the same
for all tasks.
"""

from training.errors import InputError
from training.tasks import classification, segmentation

TASKS: dict[str, type[classification.Task | segmentation.Task]] = {
    "classification": classification.Task,
    "segmentation": segmentation.Task,
}
"""{name: class}. A `Task` is constructed from the recipe once, at the start of a run."""


def require_classification(recipe, command):
    """Raises an InputError if a recipe has another task, for commands that support classifiers only."""
    if recipe.task != "classification":
        raise InputError(
            f"{command} is for models that classify whole images. Received: task={recipe.task}. Accepted for "
            f"other tasks: train, evaluate, predict and export."
        )
