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
QUERY_TASKS = ("instance_segmentation", "panoptic_segmentation")
"""Tasks whose models predict masks and classes of queries"""
DENSE_TASKS = ("segmentation", *QUERY_TASKS, "depth")
"""Tasks whose models predict something for each pixel"""
_OF_CLASSES = ("label", "classes")
# The operations of the policies, and erasing, do not change masks and depth.
_DENSE = {
    **_NO_LABELS,
    "text": (),
    "pretraining": (),
    "model": _AllExcept(("resize",)),
    "augment": _AllExcept((*_MIXING, *_POLICIES, "library", "erasing")),
}
TASK_FIELDS: dict[str, dict[str, Any]] = {
    "classification": {"text": (), "pretraining": (), "data": _AllExcept(_PIXELS)},
    "multilabel": {
        "text": (),
        "pretraining": (),
        "distillation": (),
        "fit": _AllExcept(("loss",)),
        "data": _AllExcept(_PIXELS),
        "augment": _AllExcept(_MIXING),
    },
    "regression": {
        "text": (),
        **_NO_LABELS,
        "pretraining": (),
        "data": _AllExcept(_PIXELS),
        "augment": _AllExcept(_MIXING),
    },
    "segmentation": _DENSE | {"data": _AllExcept((*_OF_CLASSES, "depth", "depth_scale"))},
    **dict.fromkeys(QUERY_TASKS, _DENSE | {"data": _AllExcept((*_OF_CLASSES, *_PIXELS))}),
    "depth": _DENSE | {"data": _AllExcept((*_OF_CLASSES, "mask"))},
    "contrastive": {
        "pretraining": (),
        "distillation": (),
        "fit": _AllExcept(("label_smoothing", "accumulation_steps")),
        "optimizer": _AllExcept(("layer_decay",)),
        "data": _AllExcept((*_OF_CLASSES, *_PIXELS)),
        "augment": _AllExcept(_MIXING),
    },
    "pretraining": {
        "text": (),
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
    if not recipe.model.has_frozen_encoder:
        refuse_unused(recipe.data, ["views", "cache_limit"], "with model.encoder and model.train_encoder=false")
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
    model = recipe.model
    is_dense = model.head is not None or model.function in SEGMENTERS or model.weights is not None
    if recipe.task in DENSE_TASKS and not is_dense:
        functions = f", or model.function={' or '.join(SEGMENTERS)}" if recipe.task == "segmentation" else ""
        raise ValueError(
            f"task={recipe.task} needs model.head with model.encoder or model.config{functions}. Received: "
            f"model.head=none and model.function={model.function or 'none'}"
        )
    if recipe.task not in DENSE_TASKS and (model.head is not None or model.function in SEGMENTERS):
        raise ValueError(
            f"model.head and model.function={' or '.join(SEGMENTERS)} are for task={', '.join(DENSE_TASKS)}. Received: "
            f"task={recipe.task}, model.head={model.head or 'none'} and model.function={model.function or 'none'}"
        )
    if model.function in SEGMENTERS and recipe.task != "segmentation":
        raise ValueError(f"model.function={model.function} needs task=segmentation. Received: task={recipe.task}")
    if recipe.task in QUERY_TASKS and model.head not in ("eomt", None):
        raise ValueError(f"task={recipe.task} needs model.head=eomt. Received: model.head={model.head}")
    if recipe.task == "depth" and model.head == "eomt":
        raise ValueError("task=depth needs model.head=dpt or linear. Received: model.head=eomt")
    if recipe.task == "contrastive":
        _check_text(recipe.text, model)
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


def _check_text(text, model):
    has_none = not text.config and text.weights is None and model.weights is None
    if has_none or (text.config and text.weights is not None):
        raise ValueError(
            f"a text encoder is either new, with text.config, or published, with text.weights or model.weights. "
            f"Received: text.config={text.config}, text.weights={text.weights}, model.weights={model.weights}"
        )
    if not text.config:
        return
    if missing := [name for name in _NEEDED_OF_TEXT if text.config.get(name) is None]:
        raise ValueError(f"text.config needs {', '.join(missing)}")
    if given := [name for name in _KNOWN_OF_TEXT if text.config.get(name) is not None]:
        raise ValueError(
            f"text.config.{given[0]} follows from the texts and the image encoder. Leave it out. Received: "
            f"{text.config[given[0]]}"
        )
    refuse_unused(text, ["tokenizer"], "with a published text encoder")


_NEEDED_OF_TEXT = ("context_length", "hidden_dim", "num_layers", "num_heads", "mlp_dim")
_KNOWN_OF_TEXT = ("vocabulary_size", "projection_dim", "end_id", "padding_id")


def _is_used(fields, section_name, name):
    return section_name not in fields or name in fields[section_name]
