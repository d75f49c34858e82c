"""The devices and processes that a run is distributed over.

Call `start` before any computation, because TensorFlow and JAX cannot change their devices afterwards.
"""

import contextlib
import os
from collections.abc import Callable

import keras
import numpy as np
import pydantic_core
import tensorflow as tf

from keras_vit.graph import all_layers
from training.engine.layouts import check_divisible, layout_map
from training.engine.models import without_weights
from training.errors import InputError

if keras.backend.backend() == "jax":
    import jax
    from jax.experimental import multihost_utils

_JAX_PROCESSES = tuple(f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"))


def start(recipe):
    """Prepares the devices that a recipe requests. Call it after the seed is set and before any computation.

    Args:
        recipe: `training.recipe.config.Recipe`

    Returns:
        An `Engine`.

    Raises:
        InputError: If this machine, backend or environment does not support what the recipe requests.
    """
    kind = recipe.distribution.kind
    _check_backend(kind)
    _check_environment(kind)
    engine = _ENGINES[kind](recipe.distribution)
    if kind != "none" and engine.num_devices == 1:
        raise InputError(
            f"distribution.kind={kind} needs more than one device, but there is only one. Choose "
            f"distribution.kind=none. Without an accelerator, the CPU can be split into parts: distribution.devices=2."
        )
    _check_batch(recipe.fit, engine)
    _check_precision(recipe.fit.precision)
    engine.check_model(recipe)
    return engine


class Engine:
    """Trains a model on one device in one process. Subclasses for several devices or processes override its methods.

    Attributes:
        backends: Names of the backends that support the engine.
        num_devices: Number of devices of all processes together.
        num_replicas: Number of copies of the model, each on a device or a group of devices. Each batch is divided among
            the copies.
        num_processes: Number of processes.
        process_index: Index of this process, from 0.
    """

    backends: tuple[str, ...] = ("tensorflow", "jax")
    num_devices = 1
    num_replicas = 1
    num_processes = 1
    process_index = 0

    def __init__(self, distribution):
        pass

    @property
    def is_chief(self):
        """Whether this is the process that writes files and prints messages."""
        return self.process_index == 0

    def scope(self):
        """The context in which models, optimizers and metrics must be created."""
        return contextlib.nullcontext()

    def prepare(self, model):
        """Changes a model so that it computes the same on several devices as on one. Call it before the first step."""

    def distribute(self, make_dataset, batch_size):
        """Distributes batches over the devices, for `fit` and `evaluate`.

        Args:
            make_dataset: Function `(index, count, size)` that returns a `tf.data.Dataset`. Every batch is divided into
                `count` equal parts. The data set contains part number `index` of each batch. Each of its elements has
                `size` images. All parts have the same number of elements.
            batch_size: Number of images in a batch, on all devices together.

        Returns:
            The batches, as an argument of `fit`.
        """
        return make_dataset(0, 1, batch_size)

    def check_model(self, recipe):
        """Raises an InputError if the model of a recipe cannot be divided among the devices."""

    def any_process(self, flag):
        """Whether `flag` is set in any process. All processes must call this method at the same step."""
        return bool(flag)

    def barrier(self):
        """Waits until all processes have called this method."""
        self.any_process(False)

    def release(self):
        """Ends the distribution. Models that are built afterwards use one device of this process."""

    def end(self):
        """Waits for all other processes, because they would end if this process exited. Call this method last."""

    def to_host(self, variables):
        """The full values of Keras variables as NumPy arrays. All processes must pass the same variables."""
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    def assign(self, variables, arrays):
        """Sets Keras variables to full values on all devices. All processes must pass the same values."""
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


class _TensorFlowEngine(Engine):
    """Base class for the strategies of `tf.distribute`."""

    backends = ("tensorflow",)

    def __init__(self, strategy):
        self.strategy = strategy
        self.num_devices = self.num_replicas = strategy.num_replicas_in_sync

    def scope(self):
        return self.strategy.scope()

    def prepare(self, model):
        for layer in all_layers(model):
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.synchronized = True  # Its statistics are those of the batch of all devices.

    def distribute(self, make_dataset, batch_size):
        def make_share(context):
            size = batch_size // self.num_replicas
            return make_dataset(context.input_pipeline_id, context.num_input_pipelines, size)

        # `experimental_distribute_dataset` is not used, because it would split and shard the batches a second time.
        return self.strategy.distribute_datasets_from_function(make_share)


class _Mirrored(_TensorFlowEngine):
    """The GPUs of one machine, or parts of its CPU, each with a copy of the model (`MirroredStrategy`)."""

    def __init__(self, distribution):
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        if kind == "CPU" and distribution.devices is not None:
            # This fails if TensorFlow has already computed something. `_first_devices` then reports missing devices.
            with contextlib.suppress(RuntimeError):
                parts = [tf.config.LogicalDeviceConfiguration()] * distribution.devices
                tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
        devices = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices(kind)]
        # On the CPU, the default collective operations would leave a state that disturbs the next strategy.
        operations = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        super().__init__(tf.distribute.MirroredStrategy(_first_devices(devices, distribution.devices), operations))


class _MultiWorker(_TensorFlowEngine):
    """The GPUs of the machines in TF_CONFIG, or their CPUs if there are no GPUs (`MultiWorkerMirroredStrategy`)."""

    def __init__(self, distribution):
        addresses, self.process_index = _workers()
        self.num_processes = len(addresses)
        gpus = tf.config.list_physical_devices("GPU")
        if distribution.devices is not None:
            chosen = _first_devices(gpus or tf.config.list_physical_devices("CPU"), distribution.devices)
            if gpus:
                tf.config.set_visible_devices(chosen, "GPU")
        super().__init__(tf.distribute.MultiWorkerMirroredStrategy())

    def any_process(self, flag):
        def count():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(int(bool(flag))))

        with _without_warnings():
            return bool(self.strategy.experimental_local_results(self.strategy.run(count))[0].numpy())

    def end(self):
        self.barrier()


class _Tpu(_TensorFlowEngine):
    """The TPU that this machine belongs to (`TPUStrategy`). Untested, because no TPU was available."""

    def __init__(self, distribution):
        if distribution.devices is not None:
            raise InputError(
                "distribution.devices is not used with distribution.kind=tpu, which uses all devices. Leave it out."
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
    """Base class for the distributions of `keras.distribution`."""

    backends = ("jax",)
    _distribute: Callable  # Subclasses define this method.

    def __init__(self, distribution):
        if distribution.devices is not None:
            # The CPU can be split only before JAX computes. If devices are missing, `_first_devices` reports them.
            with contextlib.suppress(RuntimeError):
                jax.config.update("jax_num_cpu_devices", distribution.devices)
        if os.environ.get(_JAX_PROCESSES[0]):
            _join_processes()
        self.num_processes, self.process_index = jax.process_count(), jax.process_index()
        by_process = [[d for d in jax.devices() if d.process_index == i] for i in range(self.num_processes)]
        chosen = [device for devices in by_process for device in _first_devices(devices, distribution.devices)]
        self.num_devices = len(chosen)
        self._distribution = self._distribute([f"{device.platform}:{device.id}" for device in chosen], distribution)
        self.num_replicas = self._distribution.num_model_replicas
        keras.distribution.set_distribution(self._distribution)

    def distribute(self, make_dataset, batch_size):
        # Processes that share one copy of the model all read the same part of each batch.
        count = min(self.num_processes, self.num_replicas)
        return make_dataset(self._distribution.data_shard_id, count, batch_size // count)

    def any_process(self, flag):
        return bool(np.any(multihost_utils.process_allgather(np.array(bool(flag)))))

    def release(self):
        keras.distribution.set_distribution(None)

    def end(self):
        if self.num_processes > 1:  # JAX itself waits only five minutes for all other processes.
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
            # The array is assigned shard by shard, because a sharded variable may be too large for one device.
            array = np.asarray(array, variable.dtype)
            variable.assign(jax.make_array_from_callback(array.shape, variable.value.sharding, array.__getitem__))


class _DataParallel(_JaxEngine):
    """Every device has a copy of the model."""

    def _distribute(self, devices, distribution):
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)


class _ModelParallel(_JaxEngine):
    """Each group of `model_devices` devices shares a copy of the model, split by `training.engine.layouts`."""

    def _distribute(self, devices, distribution):
        model_devices = distribution.model_devices
        per_process = len(devices) // self.num_processes
        if len(devices) % model_devices or (per_process % model_devices and model_devices % per_process):
            raise InputError(
                f"distribution.model_devices must divide the {per_process} devices of a process, or be a multiple of "
                f"{per_process} that divides all {len(devices)} devices. Received: {model_devices}"
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
    backend, accepted = keras.backend.backend(), _ENGINES[kind].backends
    if backend not in accepted:
        kinds = [name for name, engine in _ENGINES.items() if backend in engine.backends]
        raise InputError(
            f"distribution.kind={kind} needs the backend {' or '.join(accepted)}. Received: {backend}"
            f"{', which supports ' + ', '.join(kinds) if kinds else ''}. Set the environment variable "
            f"KERAS_BACKEND={accepted[0]}."
        )


def _check_environment(kind):
    """Checks the environment variables that connect processes.

    If some of them were missing, or the kind of distribution did not read them, each process would train alone.
    """
    if "TF_CONFIG" in os.environ and kind != "multi_worker":
        raise InputError(
            f"TF_CONFIG is set, but distribution.kind={kind} does not read it. Choose distribution.kind=multi_worker, "
            f"or unset TF_CONFIG."
        )
    defined = [name for name in _JAX_PROCESSES if os.environ.get(name)]
    if defined and kind not in ("data_parallel", "model_parallel"):
        raise InputError(
            f"{defined[0]} is set, but distribution.kind={kind} does not read it. Choose distribution.kind="
            f"data_parallel or model_parallel, or unset the variable."
        )
    if defined and len(defined) < len(_JAX_PROCESSES):
        missing = ", ".join(name for name in _JAX_PROCESSES if name not in defined)
        raise InputError(f"Set all of the variables {', '.join(_JAX_PROCESSES)}, or none of them. Missing: {missing}")


def _check_batch(fit, engine):
    parts = engine.num_replicas * fit.accumulation_steps
    if fit.batch_size % parts:
        raise InputError(
            f"fit.batch_size must be a multiple of {parts} ({engine.num_replicas} replicas of the model x "
            f"fit.accumulation_steps={fit.accumulation_steps}). Received: {fit.batch_size}"
        )


def _check_precision(precision):
    if precision == "mixed_float16" and keras.backend.backend() == "jax" and jax.default_backend() == "cpu":
        raise InputError(
            "JAX has no float16 matrix products on the CPU. Received: fit.precision=mixed_float16. Choose "
            "mixed_bfloat16."
        )


def _first_devices(devices, count):
    """The first `count` devices, or all if `count` is `None`."""
    if count is not None and count > len(devices):
        raise InputError(f"distribution.devices must be at most {len(devices)} on this machine. Received: {count}")
    return devices[:count]


@contextlib.contextmanager
def _without_warnings():
    """Hides TensorFlow's advice to compile a function. A function that sums over processes cannot be compiled."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def _workers():
    """The addresses of all workers in TF_CONFIG, and the index of this worker."""
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
    """Connects the processes. The first process monitors all processes, and ends all if one is lost."""
    addresses, count, index = (os.environ[name] for name in _JAX_PROCESSES)
    if not (count.isdecimal() and index.isdecimal() and int(index) < int(count)):
        raise InputError(
            f"{_JAX_PROCESSES[2]} must be a number from 0 to {_JAX_PROCESSES[1]} - 1. Received: "
            f"{_JAX_PROCESSES[2]}={index!r}, {_JAX_PROCESSES[1]}={count!r}"
        )
    if not jax.distributed.is_initialized():
        keras.distribution.initialize(addresses, int(count), int(index))
