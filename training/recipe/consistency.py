"""Checks that the sections of a recipe are consistent with each other. Each section checks its own fields."""

import dataclasses

from keras_vit.models import SEGMENTERS

_SEGMENTATION_ONLY = ("scale_range", "color_jitter")  # Augmentations that only segmentation supports.
_SEGMENTATION_FIELDS = ("flip", *_SEGMENTATION_ONLY)


def refuse_unused(section, names, condition):
    """Raises a ValueError if one of the named fields is set. `condition` states when these fields are used."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        default = field.default.default  # type: ignore[union-attr]
        if field.name in names and value != default:
            full_name = f"{type(section).__name__.lower()}.{field.name}"
            default_text = "none" if default is None else repr(default)
            raise ValueError(f"{full_name} is only used {condition}. Leave it at {default_text}. Received: {value!r}")


def check_recipe(recipe):
    """Raises a ValueError unless the sections of a recipe are consistent."""
    if recipe.distillation.teacher is not None and recipe.fit.loss != "softmax":
        raise ValueError(
            f"distillation.teacher needs fit.loss=softmax, because the teacher's probabilities are a softmax over "
            f"all classes. Received: fit.loss={recipe.fit.loss}"
        )
    _check_task(recipe)
    if recipe.model.function is not None:
        function = recipe.model.function
        if recipe.fit.rematerialize:
            raise ValueError(
                f"fit.rematerialize recomputes encoder blocks, but {function} has none. To save memory, set "
                f"fit.accumulation_steps. Batch norms then compute their statistics for each part of a batch separately"
            )
        if recipe.distribution.kind == "model_parallel":
            raise ValueError(
                f"distribution.kind=model_parallel splits the heads of a Vision Transformer, but {function} is not a "
                f"Vision Transformer. Choose data_parallel"
            )
    if recipe.schedule.end > recipe.optimizer.learning_rate:
        raise ValueError(
            f"schedule.end must not be above optimizer.learning_rate. Received: {recipe.schedule.end} and "
            f"{recipe.optimizer.learning_rate}"
        )


def _check_task(recipe):
    is_segmenter = recipe.model.function in SEGMENTERS
    if is_segmenter != (recipe.task == "segmentation"):
        raise ValueError(
            f"task=segmentation needs model.function={' or '.join(SEGMENTERS)}, and other tasks need another model. "
            f"Received: task={recipe.task} and model.function={recipe.model.function or 'none'}"
        )
    if recipe.task != "pretraining":
        unused = [field.name for field in dataclasses.fields(recipe.pretraining)]
        refuse_unused(recipe.pretraining, unused, "with task=pretraining")
    if not is_segmenter:
        refuse_unused(recipe.data, ["mask"], "with task=segmentation")
        refuse_unused(recipe.augment, _SEGMENTATION_ONLY, "with task=segmentation")
    if recipe.task == "classification":
        return
    condition = "with task=classification"
    refuse_unused(recipe.fit, ["loss", "label_smoothing"], condition)
    refuse_unused(recipe.distillation, ["teacher"], condition)
    if recipe.task == "pretraining":
        if recipe.model.function is not None:
            raise ValueError(
                f"task=pretraining trains a Vision Transformer. Set model.config or model.weights. Received: "
                f"model.function={recipe.model.function}"
            )
        if recipe.distribution.kind == "model_parallel":
            raise ValueError(
                "distribution.kind=model_parallel does not split the layers that predict patches. Choose data_parallel"
            )
        refuse_unused(recipe.augment, ["mixup", "cutmix"], "with task=classification")
        return
    refuse_unused(recipe.model, ["resize"], condition)
    refuse_unused(recipe.data, ["label", "classes", "max_failures"], condition)
    unused = [field.name for field in dataclasses.fields(recipe.augment) if field.name not in _SEGMENTATION_FIELDS]
    refuse_unused(recipe.augment, unused, condition)
