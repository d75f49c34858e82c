"""The tasks that a run can learn (`recipe.task`): one module per task, each with a class `Task`.

A `Task` defines the labels, loss, metric, evaluation and report of a run. Everything else is the same for all tasks.
"""

from training.errors import InputError
from training.tasks import classification, pretraining, segmentation

TASKS: dict[str, type[classification.Task]] = {
    "classification": classification.Task,
    "segmentation": segmentation.Task,
    "pretraining": pretraining.Task,
}
"""{value of `recipe.task`: class}. A run constructs its `Task` from its recipe."""


_COMMANDS = {"segmentation": "train, evaluate, predict, export", "pretraining": "train, fewshot, explain, duplicates"}


def require_task(recipe, command, *accepted):
    """Raises an InputError unless the task is one of those that a command accepts."""
    if recipe.task not in accepted:
        raise InputError(
            f"{command} is for task={' or '.join(accepted)}. Received: task={recipe.task}, for which these commands "
            f"are available: {_COMMANDS.get(recipe.task, 'all')}."
        )
