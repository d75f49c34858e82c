"""The tasks that a run can learn (`recipe.task`): one module per task, each with a class `Task`.

A `training.tasks.task.Task` defines the labels, loss, metric, evaluation and report of a run. Everything else is the
same for all tasks.
"""

from training.errors import InputError
from training.tasks import (
    classification,
    contrastive,
    depth,
    masks,
    multilabel,
    pretraining,
    regression,
    segmentation,
    task,
)

TASKS: dict[str, type[task.Task]] = {
    "classification": classification.Task,
    "multilabel": multilabel.Task,
    "regression": regression.Task,
    "segmentation": segmentation.Task,
    "instance_segmentation": masks.Instances,
    "panoptic_segmentation": masks.Panoptic,
    "depth": depth.Task,
    "contrastive": contrastive.Task,
    "pretraining": pretraining.Task,
}
"""{value of `recipe.task`: class}. A run constructs its `Task` from its recipe."""


def require_task(recipe, command):
    """Raises an InputError unless a command accepts the task of a recipe."""
    available = TASKS[recipe.task].commands
    if command not in available:
        accepted = " or ".join(name for name, each in TASKS.items() if command in each.commands)
        raise InputError(
            f"{command} is for task={accepted}. Received: task={recipe.task}, for which these commands are available: "
            f"{', '.join(('train', *available))}."
        )
