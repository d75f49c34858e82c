"""Checks that the sections of a recipe are consistent with each other. Each section checks its own fields."""

import dataclasses
from typing import Any

from keras_vit.models import SEGMENTERS


@dataclasses.dataclass(frozen=True)
class _AllExcept:
    """The fields of a section that a task uses: all except the named ones."""

    names: tuple[str, ...]

    def __contains__(self, name):
        return name not in self.names


_PIXELS = ("mask", "depth", "depth_scale")
_MIXING = ("mixup", "cutmix")
_POLICIES = ("randaugment_ops", "randaugment_magnitude", "autoaugment")
_NO_LABELS = {"fit": _AllExcept(("loss", "label_smoothing")), "distillation": ()}
TASK_FIELDS: dict[str, dict[str, Any]] = {
    "classification": {"pretraining": (), "data": _AllExcept(_PIXELS)},
    "multilabel": {
        "pretraining": (),
        "distillation": (),
        "fit": _AllExcept(("loss",)),
        "data": _AllExcept(_PIXELS),
        "augment": _AllExcept(_MIXING),
    },
    "regression": {
        **_NO_LABELS,
        "pretraining": (),
        "data": _AllExcept(_PIXELS),
        "augment": _AllExcept(_MIXING),
    },
    "segmentation": {
        **_NO_LABELS,
        "pretraining": (),
        "model": _AllExcept(("resize",)),
        "data": _AllExcept(("label", "classes", "depth", "depth_scale")),
        # The operations of the policies, and erasing, do not change masks.
        "augment": _AllExcept((*_MIXING, *_POLICIES, "library", "erasing")),
    },
    "pretraining": {
        **_NO_LABELS,
        "data": _AllExcept(_PIXELS),
        "augment": _AllExcept(_MIXING),
    },
}
"""{task: {section: the fields of the section that the task uses}}. Sections that are not listed are used as a whole."""


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
    if recipe.task == "pretraining" and recipe.model.function is not None:
        raise ValueError(
            f"task=pretraining trains a Vision Transformer. Set model.config or model.weights. Received: "
            f"model.function={recipe.model.function}"
        )
    if recipe.task == "pretraining" and recipe.distribution.kind == "model_parallel":
        raise ValueError(
            "distribution.kind=model_parallel does not split the layers that predict patches. Choose data_parallel"
        )
    for section_name, used in TASK_FIELDS[recipe.task].items():
        section = getattr(recipe, section_name)
        for field in dataclasses.fields(section):
            if field.name not in used:
                tasks = (task for task, fields in TASK_FIELDS.items() if _is_used(fields, section_name, field.name))
                refuse_unused(section, [field.name], f"with task={' or '.join(tasks)}")


def _is_used(fields, section_name, name):
    return section_name not in fields or name in fields[section_name]
