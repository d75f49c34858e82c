"""Computes the outputs of a model for the images of any source.

The images go one way: a reader of `keras_vit.data` yields samples, `predict` computes the outputs of batches of them,
and `write_rows` writes a table.
"""

import collections
import concurrent.futures
import csv
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np

from keras_vit.atomic_files import replace_file_atomically
from keras_vit.graph import has_graph

_IN_FLIGHT = 2
"""Number of batches that are computed at the same time: one is decoded while a device computes the other."""
NOT_DECODED = "is not an image that can be decoded (JPEG, PNG, GIF, BMP or WebP)"


def predict(serve: Callable, samples: Iterable[dict], batch_size: int = 32) -> Iterator[tuple[dict, dict | None]]:
    """Computes the outputs of a model for samples.

    Samples are read, decoded and computed at the same time. At most three batches are in memory.

    Args:
        serve: Function of a list of encoded images that returns {name: array (B, …)}. The array `valid`, bool (B,),
            says which images could be decoded. It is called by several threads.
        samples: Samples of `keras_vit.data.reading.read_samples`.
        batch_size: Number of images in a batch.

    Yields:
        Pairs (sample, outputs), in the order of the samples. The outputs are {name: array (…)}, without `valid`. If an
        image could not be read or decoded, they are `None`, and the sample has `error`, the reason.

    Example:

    The signature of a SavedModel that `keras_vit.export_saved_model` has written decodes the images itself.

    >>> import tensorflow as tf
    >>> from keras_vit.data.reading import read_samples
    >>> from keras_vit.inference import predict
    >>> signature = tf.saved_model.load("served/1").signatures["serving_default"]  # doctest: +SKIP
    >>> def serve(contents):
    ...     return signature(image_bytes=tf.constant(contents))
    >>> for sample, outputs in predict(serve, read_samples("photographs")):  # doctest: +SKIP
    ...     print(sample["path"], outputs["labels"][0])
    """

    def compute(batch):
        contents = [sample["image"] for sample in batch if "error" not in sample]
        outputs = {name: np.asarray(array) for name, array in serve(contents).items()} if contents else {}
        rows = ({name: array[row] for name, array in outputs.items()} for row in range(len(contents)))
        return [_result(sample, rows) for sample in batch]

    samples = iter(samples)
    with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT) as pool:
        running: collections.deque = collections.deque()
        while batch := list(itertools.islice(samples, batch_size)):
            running.append(pool.submit(compute, batch))
            if len(running) > _IN_FLIGHT:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def _result(sample, rows):
    if "error" in sample:
        return sample, None
    outputs = next(rows)
    if not outputs.pop("valid"):
        return sample | {"error": NOT_DECODED}, None
    return sample, outputs


def write_rows(path: str | os.PathLike, columns: list[str], rows: Iterable[dict]) -> None:
    """Writes a table as a file that exists completely or not at all.

    Args:
        path: Path of a `.csv`, `.jsonl` or `.parquet` file. In `.csv` files, lists are joined with semicolons, as
            `keras_vit.data.table` reads them.
        columns: Names of the columns.
        rows: {column: text, number, list or array of these}. Missing columns are empty, and others are not written.

    Raises:
        ImportError: If a Parquet file is written and pyarrow is not installed.
        OSError: If the file cannot be written.
        ValueError: If the suffix of the path is another one.
    """
    path = pathlib.Path(path)
    write = TABLES.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"A table is a file {', '.join(TABLES)}. Received: {path}")
    plain = ({name: _plain(row[name]) for name in columns if name in row} for row in rows)
    with replace_file_atomically(path) as unfinished:
        write(unfinished, columns, plain)


def _plain(value):
    """A value without NumPy's types."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _write_csv(path, columns, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            joined = {name: ";".join(map(str, value)) for name, value in row.items() if isinstance(value, list)}
            writer.writerow(row | joined)


def _write_json_lines(path, columns, rows):
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(path, columns, rows):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{path.name} is a Parquet file, which needs pyarrow: pip install pyarrow") from error
    rows = list(rows)  # The type of a column follows from all of its rows.
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    pyarrow.parquet.write_table(table, path)


TABLES = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
"""{suffix: function that writes a table}"""


def predictor(model: keras.Model, devices: list | None = None) -> Callable:
    """Makes a function that computes the outputs of a model for batches, on all devices of this machine.

    Args:
        model: A Keras model. On several devices, each device gets a copy of its weights.
        devices: Devices to use: names for TensorFlow, `jax.Device`s for JAX. `None`: all GPUs for TensorFlow, all local
            devices for JAX. With torch, and for subclassed models on TensorFlow, the model stays on its device.

    Returns:
        A function of images (B, …), pixels as the model expects them, that returns the outputs as NumPy arrays, in the
        structure of the model's outputs.

    Example:

    >>> import numpy as np
    >>> import keras_vit
    >>> from keras_vit.inference import predictor
    >>> model = keras_vit.ViT("Ti/16", num_layers=1, input_shape=(32, 32, 3), classes=10)
    >>> predictor(model)(np.zeros((3, 32, 32, 3), "float32")).shape
    (3, 10)
    """
    backend = keras.backend.backend()
    if backend == "torch" or (backend == "tensorflow" and not has_graph(model)):
        return model.predict_on_batch
    find, split = _DEVICES[backend]
    devices = find() if devices is None else devices
    if len(devices) < 2:
        return model.predict_on_batch
    compute = split(model, devices)

    def predict_batch(images):
        count = len(images)
        # The devices get equal parts. Padding consists of real images, and is removed at the end.
        size = -(-count // len(devices)) * len(devices)
        outputs = compute(np.resize(images, (size, *images.shape[1:])))
        return keras.tree.map_structure(lambda array: np.asarray(array)[:count], outputs)

    return predict_batch


def _tensorflow_devices():
    import tensorflow as tf

    return [device.name for device in tf.config.list_logical_devices("GPU")]


def _on_tensorflow(model, devices):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())

    @tf.function(autograph=False)
    def compute(parts):
        return strategy.run(lambda part: copy(part, training=False), (parts,))

    def join(array):
        return np.concatenate([part.numpy() for part in strategy.experimental_local_results(array)])

    def predict_batch(images):
        parts = np.split(images, len(devices))
        values = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        return keras.tree.map_structure(join, compute(values))

    return predict_batch


def _jax_devices():
    import jax

    return jax.local_devices()


def _on_jax(model, devices):
    import jax

    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    copied, divided = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("batch",)))
    weights = [
        [jax.device_put(variable.value, copied) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    compute = jax.jit(lambda weights, images: model.stateless_call(*weights, images, training=False)[0])
    return lambda images: compute(weights, jax.device_put(images, divided))


_DEVICES = {"tensorflow": (_tensorflow_devices, _on_tensorflow), "jax": (_jax_devices, _on_jax)}
"""{backend: (function that lists the devices, function that makes a function for several devices)}"""
