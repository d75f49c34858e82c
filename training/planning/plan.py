"""Estimates what a run needs on a number of devices, without these devices.

The step of `training.engine.step` is traced with shapes only, distributed over simulated devices on this machine's CPU,
and compiled. It is never executed, so neither the model nor a batch is held in memory.
"""

import collections
import dataclasses
import math
import re

import keras
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_vit
from keras_vit.checks import did_you_mean
from training.data.dataset import Dataset
from training.data.sets.tfds import find_label
from training.data.sources import IndexedSource
from training.engine import distribution
from training.engine.fitting import Fitting, seed
from training.engine.memory import activations
from training.engine.models import without_weights
from training.errors import InputError
from training.planning.plan_report import Memory, Plan
from training.recipe.images import BUILT_IN, IN_DIRECTORY
from training.tasks import TASKS, require_task

if keras.backend.backend() == "jax":
    import jax

# Numbers of training images. TFDS knows the number only for a data set that it has prepared.
_TRAIN_IMAGES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenet2012": 1_281_167,
    "oxford_flowers102": 1_020,
    "oxford_iiit_pet": 3_680,
}
# These options make compilation faster and preserve rematerialisation. By default, XLA for CPUs removes the barrier
# between the computation of a block and its recomputation, and then the recomputation itself. XLA for GPUs and TPUs
# keeps both.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "cse_barrier_expander"}
_COLLECTIVE = re.compile(
    r"= (?P<results>.+?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_ARRAY = re.compile(r"\b(?:bf|[fsu])(?P<bits>\d+)\[(?P<shape>[\d,]*)\]")


def plan(recipe, images=None, classes=None):
    """Estimates what a run needs.

    Args:
        recipe: `training.recipe.config.Recipe` with a kind of distribution that JAX supports.
        images: Number of training images. `None`: the number in the data set if it is on this machine, otherwise the
            number in `_TRAIN_IMAGES`.
        classes: Number of classes. `None`: the number of classes of the data set.

    Returns:
        A `Plan`.

    Raises:
        InputError: If the model or the batch cannot be split over the devices, or the data set is unknown.
    """
    require_task(recipe, "plan")
    recipe = without_weights(recipe)
    dataset, images_origin = _dataset(recipe, images, classes)
    seed(recipe)
    try:
        return _plan(recipe, dataset, images_origin, distribution.start(recipe))
    finally:
        keras.distribution.set_distribution(None)  # `start` may fail after it has set a distribution.


def _plan(recipe, dataset, images_origin, engine):
    fittings = []
    # The initial values are traced, not computed. The variables have shapes and layouts, but no values.
    jax.eval_shape(lambda: fittings.append(Fitting(TASKS[recipe.task](recipe), dataset, engine)))
    [fitting] = fittings
    trained = fitting.trained
    weights = trained.trainable_variables, trained.non_trainable_variables
    groups = (*weights, trained.optimizer.variables, trained.metrics_variables)
    state = tuple([_abstract_variable(variable) for variable in variables] for variables in groups)
    compiled = _compile(trained, state, _abstract_batch(recipe, fitting.model))
    memory, parts = compiled.memory_analysis(), recipe.fit.accumulation_steps
    trainable, _, optimizer, _ = map(_shard_bytes, state)
    with keras.StatelessScope():  # Needed because the variables have no values.
        profile = keras_vit.profile(fitting.model)
    return Plan(
        recipe=recipe,
        num_devices=engine.num_devices,
        num_replicas=engine.num_replicas,
        images=dataset.splits["train"].size,
        images_origin=images_origin,
        steps=fitting.total_steps,
        parameters=profile.parameters,
        macs=profile.macs,
        memory=Memory(
            weights=_shard_bytes([_abstract_variable(weight) for weight in trained.weights]),
            optimizer=optimizer,
            gradients=trainable,
            activations=activations(recipe, fitting.model, engine),
            arguments=memory.argument_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
        ),
        # XLA counts only one iteration of the loop over the parts of a batch.
        flops=compiled.cost_analysis()["flops"] * parts,
        collectives=count_collectives(compiled.as_text(), parts),
    )


def count_collectives(program, parts):
    """Counts the operations of a step that exchange data between devices.

    Args:
        program: Compiled program of a device, in XLA's text format.
        parts: Number of parts of a batch. The program has a loop over these parts.

    Returns:
        {kind: (number of operations, bytes of their results)}
    """
    collectives = collections.defaultdict(lambda: (0, 0))
    is_entry = False
    for line in program.splitlines():
        if line.endswith("{"):
            is_entry = line.startswith("ENTRY")
        match = _COLLECTIVE.search(line)
        if match:
            times = 1 if is_entry else parts  # The program's only loop is the one over the parts.
            sizes = (
                math.prod(map(int, filter(None, array["shape"].split(",")))) * int(array["bits"])
                for array in _ARRAY.finditer(match["results"])
            )
            count, size = collectives[match["kind"]]
            collectives[match["kind"]] = count + times, size + times * (sum(sizes) // 8)
    return dict(collectives)


def with_devices(recipe, devices):
    """The recipe for training on `devices` devices, counted over all machines.

    TensorFlow's kinds of distribution are replaced by JAX's data_parallel, which needs the same memory and FLOPs.
    """
    kind = recipe.distribution.kind
    if kind not in ("data_parallel", "model_parallel"):
        kind, devices = ("data_parallel", devices) if devices > 1 else ("none", None)
    options = dataclasses.replace(recipe.distribution, kind=kind, devices=devices)
    return dataclasses.replace(recipe, distribution=options)


def _dataset(recipe, images, classes):
    """Returns a data set with only sizes and class names, and the origin of the number of images as text."""
    data, task = recipe.data, TASKS[recipe.task](recipe)
    names = None if classes is None else range(classes)
    images_origin = "given"
    if images is None or names is None:
        is_here = data.dataset in BUILT_IN and data.dataset not in IN_DIRECTORY
        if data.directory is not None or is_here or (data.dataset not in IN_DIRECTORY and _builder(data).is_prepared()):
            dataset = task.load()
            names = names or dataset.class_names
            if images is None:
                images, images_origin = dataset.source("train").size, f"from {data.dataset} on this machine"
        elif data.dataset in IN_DIRECTORY:
            raise InputError(f"data.dataset={data.dataset} needs data.directory, or --images=N and --classes=N.")
        else:
            names = names or find_label(_builder(data), data.label).class_names
            if not names:
                raise InputError(
                    f"The classes of {data.dataset} are unknown until it is downloaded. Give --classes=N (classes)."
                )
            if images is None:
                if data.dataset not in _TRAIN_IMAGES or data.train_split is not None:
                    raise InputError(
                        f"{data.dataset} is not prepared on this machine. Give --images=N (training images)."
                    )
                total = _TRAIN_IMAGES[data.dataset]
                images = data.train_images or total - round(data.validation_fraction * total)
                images_origin = f"assumed from the {total:,} images of {data.dataset}, which is not on this machine"
    # Regression reads its values.
    source = IndexedSource(images, lambda index: {task.annotation: tf.zeros([len(names)])})
    return Dataset(tuple(map(str, names)), {"train": source}), images_origin


def _builder(data):
    try:
        return tfds.builder(data.dataset, data_dir=data.tfds_directory)
    except (ValueError, tfds.core.registered.DatasetNotFoundError):
        hint = did_you_mean(data.dataset, _TRAIN_IMAGES)
        raise InputError(f"data.dataset={data.dataset} is unknown.{hint} Give --images=N and --classes=N.") from None


def _abstract_variable(variable):
    layout = keras.distribution.distribution() and keras.distribution.distribution().get_variable_layout(variable)
    return _abstract_array(variable.shape, variable.dtype, layout)


def _abstract_array(shape, dtype, layout):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout and layout.backend_layout)


def _abstract_batch(recipe, model):
    """Shapes and layouts of a batch: images, labels and sample weights."""
    size, current = recipe.fit.batch_size, keras.distribution.distribution()
    shapes = (size, *model.input_shape[1:]), (size, *model.output_shape[1:]), (size,)
    return tuple(_abstract_array(shape, "float32", current and current.get_data_layout(shape)) for shape in shapes)


def _compile(trained, state, batch):
    """Compiles the step as Keras's `fit` does: the new state overwrites the old state and has the same layout."""
    layouts = None
    if keras.distribution.distribution() is not None:
        layouts = None, jax.tree.map(lambda array: array.sharding, state)
    step = jax.jit(trained.train_step, donate_argnums=0, out_shardings=layouts)
    return step.lower(state, batch).compile(compiler_options=_COMPILER_OPTIONS)


def _shard_bytes(arrays):
    """Bytes of arrays on one device."""
    shapes = (array.sharding.shard_shape(array.shape) if array.sharding else array.shape for array in arrays)
    return sum(math.prod(shape) * array.dtype.itemsize for shape, array in zip(shapes, arrays, strict=True))
