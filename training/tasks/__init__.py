"""What a run learns, by `recipe.task`: one module for each task, with a class `Task` that owns what differs.

The class of an image, or that of each of its pixels: how labels look, the loss, the metric, the evaluation and what is
written at the end. All else of a run is the same.
"""

from training.errors import InputError
from training.tasks import classification, segmentation

TASKS = {"classification": classification.Task, "segmentation": segmentation.Task}
"""{name: class, which takes the recipe}. A `Task` is made where a run begins, and handed down."""


def require_classification(recipe, command):
    """Raises an InputError if a recipe is of another task, for what makes sense for classifiers only."""
    if recipe.task != "classification":
        raise InputError(
            f"{command} is for models that classify whole images. Received: task={recipe.task}. What such a run has: "
            f"train, evaluate, predict and export."
        )
