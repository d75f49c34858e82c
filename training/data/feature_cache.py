"""Features of a frozen encoder, computed once and kept on disk. Shapes: N examples, V views, T tokens, D hidden.

The features of an example are the inputs of a head: tokens (T, D) of some encoder blocks. A folder contains an array of
N V rows for each of them and for each label, and a file that says how many rows are complete. If the computation is
interrupted, it continues there. Tokens are stored in float16. While a process computes features, the folder is locked.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time

import filelock
import numpy as np
import tensorflow as tf

from keras_vit.atomic_files import replace_file_atomically
from training.data.pipeline import ArraySource
from training.data.sources import BatchShard
from training.errors import InputError

_LOCK = "computing.lock"
_PROGRESS = "progress.json"
_SECONDS_BETWEEN_SAVES = 20
_TOO_LARGE = 6e4  # The largest float16 is 65,504.


def fingerprint(facts):
    """A name for features that depend on `facts`, which must be of JSON types."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def cached_features(folder, source, make_example, compute, batch_size, num_views, limit, title, kept=()):
    """Computes the features of a source unless they are kept already.

    Args:
        folder: Path of the folder of these features. Its name is a `fingerprint`.
        source: Source of the examples, one of `training.data.sources`.
        make_example: TensorFlow function of an example and its number from 0 to N V - 1, an int64 scalar. It returns an
            image and its label, which can be a dictionary.
        compute: Function of images (B, H, W, C) that returns {name: tokens (B, T, D)}.
        batch_size: Number of images that are computed at a time.
        num_views: Number V of views of each example.
        limit: Maximum size in bytes of `folder` and the folders beside it. The ones whose last use is oldest are
            removed.
        title: What the examples are called when the progress is printed.
        kept: Folders beside it that are not removed.

    Returns:
        `training.data.pipeline.ArraySource`. An example has the features as `image`, and the label as `label`.

    Raises:
        InputError: If the features do not fit into the limit or on the disk.
    """
    first = next(_examples(source, make_example, num_views, 0).take(1).batch(1).as_numpy_iterator())
    template = {"image": {name: x.astype("float16") for name, x in compute(first[0]).items()}, "label": first[1]}
    rows = [np.asarray(x)[0] for x in tf.nest.flatten(template)]
    count = source.size * num_views
    size = count * sum(row.nbytes for row in rows)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        os.utime(folder)  # The folder is in use now.
        _make_room(folder, size, limit, kept)
        arrays = [_array(folder / f"{i}.npy", (count, *row.shape), row.dtype) for i, row in enumerate(rows)]
        done = _read_progress(folder)
        if done < count:
            print(f"Computing the features of {count:,} {title} ({_in_words(size)}), kept in {folder}", flush=True)
            batches = _examples(source, make_example, num_views, done).batch(batch_size)
            _fill(folder, arrays, batches, compute, done, count)
    specs = [tf.TensorSpec(row.shape, row.dtype) for row in rows]
    return ArraySource(arrays, tf.nest.pack_sequence_as(template, specs), num_views)


def _examples(source, make_example, num_views, done):
    """A `tf.data.Dataset` of the examples of all views, in order, without the first `done` of them."""
    first_view, skipped = divmod(done, source.size)

    @tf.autograph.experimental.do_not_convert  # Converting takes a second.
    def view(number):
        # Each view reads the source in order.
        skip = tf.where(number == first_view, tf.constant(skipped, tf.int64), 0)
        keys = source.epoch(tf.constant(0, tf.int64), BatchShard(batch_size=1), skip)
        return keys.map(
            lambda position, key: make_example(source.read(key), number * source.size + position), tf.data.AUTOTUNE
        )

    return tf.data.Dataset.range(first_view, num_views).flat_map(view)


def _fill(folder, arrays, batches, compute, done, count):
    began = saved = time.monotonic()
    start = done

    def save():
        for array in arrays:
            array.flush()
        with replace_file_atomically(folder / _PROGRESS) as unfinished:
            unfinished.write_text(json.dumps({"rows": done}))

    try:
        for images, labels in batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            features = compute(images)
            if (largest := max(np.abs(x).max() for x in features.values())) > _TOO_LARGE:
                raise InputError(f"Features of the encoder reach {largest:.3g}, which is too large to keep in float16.")
            values = tf.nest.flatten({"image": features, "label": labels})
            for array, rows in zip(arrays, values, strict=True):
                array[done : done + len(images)] = rows
            done += len(images)
            now = time.monotonic()
            if now - saved > _SECONDS_BETWEEN_SAVES or done == count:
                save()
                left = (now - began) / (done - start) * (count - done)
                print(f"  {done:,} of {count:,}, {left / 60:.1f} minutes left", flush=True)
                saved = now
    finally:  # Also after Ctrl-C.
        save()


def _array(path, shape, dtype):
    """Opens or creates an array that is mapped from a file."""
    if path.is_file():
        return np.lib.format.open_memmap(path, "r+")
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


def _read_progress(folder):
    path = folder / _PROGRESS
    return json.loads(path.read_text())["rows"] if path.is_file() else 0


@contextlib.contextmanager
def _locked(folder):
    """Waits until no other process computes the features of a folder, and locks it."""
    lock = filelock.FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"Waiting for another process that computes the features in {folder}", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_locked(folder):
    try:
        with filelock.FileLock(folder / _LOCK, timeout=0):
            return False
    except filelock.Timeout:
        return True


def _make_room(folder, size, limit, kept):
    """Removes features beside `folder` until all features need at most `limit` bytes."""
    needed = size + sum(map(_num_bytes, kept))
    if needed > limit:
        raise InputError(
            f"The features need {_in_words(needed)}, but data.cache_limit is {_in_words(limit)}. Choose fewer "
            f"data.views, smaller images, or a higher data.cache_limit. With model.train_encoder=true, no features are "
            f"kept."
        )
    others = [path for path in folder.parent.glob("*/") if path not in (folder, *kept)]
    removable = sorted((path for path in others if not _is_locked(path)), key=lambda path: path.stat().st_mtime)
    while removable and needed + sum(map(_num_bytes, others)) > limit:
        print(f"Removing older features: {removable[0]}")
        others.remove(removable[0])
        shutil.rmtree(removable.pop(0))
    free = shutil.disk_usage(folder).free
    if size - _num_bytes(folder) > free:
        raise InputError(f"The features need {_in_words(size)}, but only {_in_words(free)} are free for {folder}.")


def _num_bytes(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def _in_words(num_bytes):
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"
