"""The devices and processes that a run is spread over.

`start` comes first in a process: devices are fixed once TensorFlow or JAX has computed anything.
"""

import contextlib
import os

import keras
import numpy as np
import pydantic_core
import tensorflow as tf

from training.engine.layouts import check_divisible, layout_map
from training.engine.models import without_weights
from training.errors import InputError

if keras.backend.backend() == "jax":
    import jax
    from jax.experimental import multihost_utils

_BACKENDS = {
    "none": ("tensorflow", "jax"),
    "mirrored": ("tensorflow",),
    "multi_worker": ("tensorflow",),
    "tpu": ("tensorflow",),
    "data_parallel": ("jax",),
    "model_parallel": ("jax",),
}
_JAX_PROCESSES = tuple(f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"))


def start(recipe):
    """Prepares the devices that a recipe asks for. Comes before anything is computed, and after the seed is set.

    Args:
        recipe: `training.recipe.config.Recipe`

    Returns:
        An `Engine`.

    Raises:
        InputError: If this machine, backend or environment cannot do what the recipe asks for.
    """
    kind = recipe.distribution.kind
    _check_backend(kind)
    _check_environment(kind)
    engine = _ENGINES[kind](recipe.distribution)
    if kind != "none" and engine.num_devices == 1:
        raise InputError(
            f"distribution.kind={kind} needs more than one device; there is one. Choose distribution.kind=none, or "
            f"where there is no accelerator the number of parts to split the CPU into: distribution.devices=2."
        )
    _check_batch(recipe.fit, engine)
    _check_precision(recipe.fit.precision)
    engine.check_model(recipe)
    return engine


class Engine:
    """One device of one process; what it does is overridden where there are more.

    Attributes:
        num_devices: Devices of all processes together.
        num_replicas: Parts that each batch is cut into, one for each device, or group of devices, with a whole model.
        num_processes: Processes that take part.
        process_index: Number of this one, from 0.
    """

    num_devices = 1
    num_replicas = 1
    num_processes = 1
    process_index = 0

    def __init__(self, distribution):
        pass

    @property
    def is_chief(self):
        """Whether this process writes what one process has to write."""
        return self.process_index == 0

    def scope(self):
        """The context in which models, optimizers and metrics are made."""
        return contextlib.nullcontext()

    def distribute(self, make_dataset, batch_size):
        """The batches of a step, for `fit` and `evaluate`.

        Args:
            make_dataset: Function `(index, count, size)` to a `tf.data.Dataset`: the share `index` of `count` of the
                images of every batch, in elements of `size` images. All shares have equally many elements.
            batch_size: Images in a batch, on all devices together.

        Returns:
            What `fit` takes.
        """
        return make_dataset(0, 1, batch_size)

    def check_model(self, recipe):
        """Raises an InputError if the devices cannot share the model of a recipe."""

    def any_process(self, flag):
        """Whether `flag` is set in any process. All processes call it, at the same step."""
        return bool(flag)

    def barrier(self):
        """Waits until all processes are here."""
        self.any_process(False)

    def leave(self):
        """What is built from now on is on one device of this process alone."""

    def end(self):
        """Comes last in each process, and waits for the others: they are ended when a peer is gone."""

    def to_host(self, variables):
        """The whole values of Keras variables, as NumPy arrays. All processes call it, with the same variables."""
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    def assign(self, variables, arrays):
        """Sets Keras variables to whole values, on all devices. All processes call it, with the same values."""
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


class _TensorFlowEngine(Engine):
    """What the strategies of `tf.distribute` share."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.num_devices = self.num_replicas = strategy.num_replicas_in_sync

    def scope(self):
        return self.strategy.scope()

    def distribute(self, make_dataset, batch_size):
        def of_process(context):
            size = batch_size // self.num_replicas
            return make_dataset(context.input_pipeline_id, context.num_input_pipelines, size)

        # Not experimental_distribute_dataset, which would cut up and shard what is cut and sharded already.
        return self.strategy.distribute_datasets_from_function(of_process)


class _Mirrored(_TensorFlowEngine):
    """The GPUs of one machine, or parts of its CPU, each with a copy of the model (`MirroredStrategy`)."""

    def __init__(self, distribution):
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        if kind == "CPU" and distribution.devices is not None:
            _split_cpu_for_tensorflow(distribution.devices)
        found = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices(kind)]
        # On the CPU not the default, collectives, whose state outlives the strategy and confuses the next one.
        operations = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        super().__init__(tf.distribute.MirroredStrategy(_first(found, distribution.devices), operations))


class _MultiWorker(_TensorFlowEngine):
    """The GPUs, or else the CPUs, of several machines that TF_CONFIG names (`MultiWorkerMirroredStrategy`)."""

    def __init__(self, distribution):
        addresses, self.process_index = _workers()
        self.num_processes = len(addresses)
        gpus = tf.config.list_physical_devices("GPU")
        if distribution.devices is not None:
            chosen = _first(gpus or tf.config.list_physical_devices("CPU"), distribution.devices)
            if gpus:
                tf.config.set_visible_devices(chosen, "GPU")
        super().__init__(tf.distribute.MultiWorkerMirroredStrategy())

    def any_process(self, flag):
        def count():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(int(bool(flag))))

        with _quietly():
            return bool(self.strategy.experimental_local_results(self.strategy.run(count))[0].numpy())

    def end(self):
        self.barrier()


class _Tpu(_TensorFlowEngine):
    """The TPU that this machine belongs to (`TPUStrategy`). Untested: no TPU was at hand."""

    def __init__(self, distribution):
        if distribution.devices is not None:
            raise InputError(
                "distribution.devices is not read for distribution.kind=tpu, which takes all. Leave it out."
            )
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (ValueError, tf.errors.OpError) as error:
            raise InputError(
                f"distribution.kind=tpu finds no TPU: {error} On a TPU machine set TPU_NAME, or choose another kind."
            ) from error
        super().__init__(tf.distribute.TPUStrategy(resolver))


class _JaxEngine(Engine):
    """What the distributions of `keras.distribution` share."""

    def __init__(self, distribution):
        if distribution.devices is not None:
            # For the CPU alone, and too late once JAX has computed: then what there is is counted below.
            with contextlib.suppress(RuntimeError):
                jax.config.update("jax_num_cpu_devices", distribution.devices)
        if os.environ.get(_JAX_PROCESSES[0]):
            _join_processes()
        self.num_processes, self.process_index = jax.process_count(), jax.process_index()
        of_process = [[d for d in jax.devices() if d.process_index == i] for i in range(self.num_processes)]
        chosen = [device for devices in of_process for device in _first(devices, distribution.devices)]
        self.num_devices = len(chosen)
        self._distribution = self._distribute([f"{device.platform}:{device.id}" for device in chosen], distribution)
        self.num_replicas = self._distribution.num_model_replicas
        keras.distribution.set_distribution(self._distribution)

    def distribute(self, make_dataset, batch_size):
        # Processes that share one copy of the model all read the same share.
        count = min(self.num_processes, self.num_replicas)
        return make_dataset(self._distribution.data_shard_id, count, batch_size // count)

    def any_process(self, flag):
        return bool(np.any(multihost_utils.process_allgather(np.array(bool(flag)))))

    def leave(self):
        keras.distribution.set_distribution(None)

    def end(self):
        if self.num_processes > 1:  # JAX would wait for the others itself, but for five minutes only.
            self.barrier()

    def to_host(self, variables):
        values = [variable.value for variable in variables]
        is_whole = [value.is_fully_addressable or value.is_fully_replicated for value in values]
        return [
            np.asarray(value if whole else multihost_utils.process_allgather(value, tiled=True))
            for value, whole in zip(values, is_whole, strict=True)
        ]

    def assign(self, variables, arrays):
        for variable, array in zip(variables, arrays, strict=True):
            # Part by part: the whole of a sharded variable may not fit on one device.
            array = np.asarray(array, variable.dtype)
            variable.assign(jax.make_array_from_callback(array.shape, variable.value.sharding, array.__getitem__))


class _DataParallel(_JaxEngine):
    """Every device has a copy of the model."""

    def _distribute(self, devices, distribution):
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)


class _ModelParallel(_JaxEngine):
    """Groups of `model_devices` devices share a copy of the model, as `training.engine.layouts` lays it out."""

    def _distribute(self, devices, distribution):
        model_devices = distribution.model_devices
        of_process = len(devices) // self.num_processes
        if len(devices) % model_devices or (of_process % model_devices and model_devices % of_process):
            raise InputError(
                f"distribution.model_devices must divide the {of_process} devices of a process, or be a multiple of "
                f"them that divides all {len(devices)}. Received: {model_devices}"
            )
        self._shard_weights = distribution.shard_weights
        shape = (len(devices) // model_devices, model_devices)
        self._mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
        return keras.distribution.ModelParallel(
            layout_map=layout_map(self._mesh, self._shard_weights), batch_dim_name="batch", auto_shard_dataset=False
        )

    def check_model(self, recipe):
        check_divisible(without_weights(recipe).model.config, self._mesh, self._shard_weights)


_ENGINES = {
    "none": Engine,
    "mirrored": _Mirrored,
    "multi_worker": _MultiWorker,
    "tpu": _Tpu,
    "data_parallel": _DataParallel,
    "model_parallel": _ModelParallel,
}


def _check_backend(kind):
    backend = keras.backend.backend()
    if backend not in _BACKENDS[kind]:
        kinds = [name for name, backends in _BACKENDS.items() if backend in backends]
        raise InputError(
            f"distribution.kind={kind} is of the backend {' or '.join(_BACKENDS[kind])}. Received: {backend}"
            f"{', which has ' + ', '.join(kinds) if kinds else ''}. Set the environment variable "
            f"KERAS_BACKEND={_BACKENDS[kind][0]}."
        )


def _check_environment(kind):
    """Refuses processes that would each train alone without knowing, and variables that are there in part."""
    if "TF_CONFIG" in os.environ and kind != "multi_worker":
        raise InputError(
            f"TF_CONFIG is set, but distribution.kind={kind} does not read it. Choose distribution.kind=multi_worker, "
            f"or unset it."
        )
    there = [name for name in _JAX_PROCESSES if os.environ.get(name)]
    if there and kind not in ("data_parallel", "model_parallel"):
        raise InputError(
            f"{there[0]} is set, but distribution.kind={kind} does not read it. Choose distribution.kind=data_parallel "
            f"or model_parallel, or unset it."
        )
    if there and len(there) < len(_JAX_PROCESSES):
        missing = ", ".join(name for name in _JAX_PROCESSES if name not in there)
        raise InputError(f"{' and '.join(there)} is set, and so must be {missing}.")


def _check_batch(fit, engine):
    parts = engine.num_replicas * fit.accumulation_steps
    if fit.batch_size % parts:
        raise InputError(
            f"fit.batch_size must be a multiple of {parts}: {engine.num_replicas} replicas of the model, times "
            f"fit.accumulation_steps={fit.accumulation_steps}. Received: {fit.batch_size}"
        )


def _check_precision(precision):
    if precision == "mixed_float16" and keras.backend.backend() == "jax" and jax.default_backend() == "cpu":
        raise InputError(
            "JAX has no float16 matrix products on the CPU. Received: fit.precision=mixed_float16; choose "
            "mixed_bfloat16."
        )


def _first(devices, count):
    """The first `count` of this machine's devices, or all."""
    if count is not None and count > len(devices):
        raise InputError(f"distribution.devices must be at most {len(devices)}, what there is. Received: {count}")
    return devices[:count]


def _split_cpu_for_tensorflow(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    # Too late once TensorFlow has computed: then what there is is counted by the caller.
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


@contextlib.contextmanager
def _quietly():
    """Without TensorFlow's advice to compile what it runs, which for sums over processes alone fails."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def _workers():
    """The addresses of all workers in TF_CONFIG, and this one's place among them."""
    accepted = '{"cluster": {"worker": ["host:port", "host:port"]}, "task": {"type": "worker", "index": 0}}'
    try:
        description = pydantic_core.from_json(os.environ["TF_CONFIG"])
        workers, task = description["cluster"]["worker"], description["task"]
        is_valid = list(description["cluster"]) == ["worker"] and task["type"] == "worker" and len(workers) > 1
        index = range(len(workers))[int(task["index"])]
    except (KeyError, ValueError, TypeError, IndexError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"distribution.kind=multi_worker needs the environment variable TF_CONFIG with two workers or more, such "
            f"as {accepted}. Received: {os.environ.get('TF_CONFIG')!r}"
        )
    return workers, index


def _join_processes():
    """Connects the processes; the first one keeps track of all, and ends them when one is gone."""
    addresses, count, index = (os.environ[name] for name in _JAX_PROCESSES)
    if not (count.isdecimal() and index.isdecimal() and int(index) < int(count)):
        raise InputError(
            f"{_JAX_PROCESSES[2]} must be from 0 to {_JAX_PROCESSES[1]} - 1. Received: {index!r} and {count!r}"
        )
    if not jax.distributed.is_initialized():
        keras.distribution.initialize(addresses, int(count), int(index))
