"""What the fields of a recipe ask of each other, beyond the checks of a section on its own."""

import dataclasses

from keras_vit.models import SEGMENTERS

_MASKED = ("flip", "scale_range", "color_jitter")  # The random changes that images and their masks undergo together.
_OF_MASKS = ("scale_range", "color_jitter")


def refuse_unread(section, unread, when):
    """Refuses fields that were set and that nobody would read."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        default = field.default.default
        if field.name in unread and value != default:
            name = f"{type(section).__name__.lower()}.{field.name}"
            left = "none" if default is None else repr(default)
            raise ValueError(f"{name} is read {when} only. Received: {value!r}; leave it at {left}")


def check_recipe(recipe):
    """Refuses a recipe whose sections do not go together.

    Raises:
        ValueError: With what was received, and what to do.
    """
    if recipe.distillation.teacher is not None and recipe.fit.loss != "softmax":
        raise ValueError(
            f"distillation.teacher needs fit.loss=softmax: its probabilities are those of one softmax over all "
            f"classes. Received: fit.loss={recipe.fit.loss}"
        )
    _check_task(recipe)
    if recipe.model.function is not None:
        _check_function(recipe)
    if recipe.schedule.end > recipe.optimizer.learning_rate:
        raise ValueError(
            f"schedule.end must not be above optimizer.learning_rate. Received: {recipe.schedule.end} and "
            f"{recipe.optimizer.learning_rate}"
        )


def _check_task(recipe):
    is_segmenter = recipe.model.function in SEGMENTERS
    if is_segmenter != (recipe.task == "segmentation"):
        raise ValueError(
            f"task=segmentation goes with model.function={' or '.join(SEGMENTERS)}, and the other way round. Received: "
            f"task={recipe.task} and model.function={recipe.model.function or 'none'}"
        )
    if not is_segmenter:
        refuse_unread(recipe.data, ["mask"], "with task=segmentation")
        refuse_unread(recipe.augment, _OF_MASKS, "with task=segmentation")
        return
    only = "with task=classification"
    refuse_unread(recipe.model, ["resize"], only)
    refuse_unread(recipe.data, ["label"], only)
    others = [field.name for field in dataclasses.fields(recipe.augment) if field.name not in _MASKED]
    refuse_unread(recipe.augment, others, only)
    refuse_unread(recipe.fit, ["loss", "label_smoothing"], only)
    refuse_unread(recipe.distillation, ["teacher"], only)


def _check_function(recipe):
    function = recipe.model.function
    if recipe.fit.rematerialize:
        raise ValueError(
            f"fit.rematerialize computes encoder blocks again, which {function} does not have; fit.accumulation_steps "
            f"saves memory too, though batch norms then see a part of a batch at a time"
        )
    if recipe.distribution.kind == "model_parallel":
        raise ValueError(
            f"distribution.kind=model_parallel shares the heads of Vision Transformers, which {function} is not; "
            f"choose data_parallel"
        )
