"""Makes batches from a data set. Shapes: H W C image, B batch.

The batch of a step depends only on the recipe and the number of the step, not on the number of devices. A resumed run
therefore has the same batches as an uninterrupted run.
"""

import contextlib
import dataclasses
import itertools

import numpy as np
import psutil
import tensorflow as tf

from training.data.sources import PADDING, BatchShard, IndexedSource
from training.errors import InputError

_MEMORY_SHARE = 0.8  # Fraction of the available memory that cached images may use.
_SAMPLE = 1000  # Number of encoded images from which their mean size is estimated.
_ROWS = 64  # Number of images that are copied into memory at a time.


def num_steps_per_epoch(dataset, recipe):
    """The number of steps in a pass over the training images. The last batch may contain padding."""
    return BatchShard(recipe.fit.batch_size).num_batches(dataset.splits["train"].size)


def training_batches(source, augmentation, read_label, recipe):
    """Builds the batches of the training images for a distribution engine.

    Args:
        source: Source of the training images, one of `training.data.sources`.
        augmentation: `training.data.augment.Augmentation`
        read_label: Function of a decoded sample that returns its label for the batch.
        recipe: `training.recipe.config.Recipe`

    Returns:
        A function that takes a `range` of steps and returns a function `make_dataset(index, count, size)` for
        `training.engine.distribution.Engine.distribute`. `make_dataset` returns a `tf.data.Dataset` of images (B, H, W,
        C) with pixels from 0 to 255, labels in the format of the task, and weights (B,). The weight of padding is 0.
        Images and labels can be dictionaries.
    """
    decode = augmentation.decode
    if recipe.data.cache:
        source, decode = _in_memory(source, decode), dict

    def read(epoch, position, key):
        seed = tf.stack([tf.constant(recipe.seed, tf.int64), epoch * source.size + position])
        sample = augmentation.change(decode(source.read(key)), seed)
        return sample["image"], read_label(sample), _weight(position)

    def mix(step, batch):
        seed = tf.stack([tf.constant(recipe.seed, tf.int64) + 1, step])
        images, labels, weights = batch
        num_real = tf.cast(tf.reduce_sum(weights), tf.int32)  # Padding is at the end.
        return *augmentation.mix(images, labels, seed, num_real), weights

    def for_steps(steps):
        def make_dataset(index, count, size):
            shard = BatchShard(recipe.fit.batch_size, index, count)
            return _training_share(source, shard, size, steps, recipe.seed, read, mix)

        return make_dataset

    return for_steps


def _training_share(source, shard, size, steps, seed, read, mix):
    """A `tf.data.Dataset` with the part of each batch in `steps` that one process reads.

    `read(epoch, position, key)` returns one example. `mix(step, batch)` mixes the examples of such a shard.
    """
    steps_per_epoch = shard.num_batches(source.size)
    first_epoch, skipped = divmod(steps.start, steps_per_epoch)

    # `flat_map` calls `batches_of`, which shuffles. In deterministic mode, TensorFlow therefore runs `flat_map` and all
    # later operations sequentially. The operations inside `batches_of` still run in parallel, so images are read and
    # batched there.
    @tf.autograph.experimental.do_not_convert  # AutoGraph would warn about functions of TFDS.
    def batches_of(epoch):
        first, end = epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch
        numbers = tf.data.Dataset.range(tf.maximum(first, steps.start), tf.minimum(end, steps.stop))
        skip = tf.where(epoch == first_epoch, skipped * shard.share, 0)
        with _graph_seed(1):  # If the global seed is 0, `shuffle` does not accept a tensor as its seed.
            keys = source.epoch(epoch, shard, tf.cast(skip, tf.int64), seed)
        images = keys.map(lambda position, key: read(epoch, position, key), tf.data.AUTOTUNE)
        batches = tf.data.Dataset.zip(numbers, images.batch(shard.share, drop_remainder=True))
        return _elements(batches.map(mix, tf.data.AUTOTUNE), shard, size)

    epochs = tf.data.Dataset.range(first_epoch, -(-steps.stop // steps_per_epoch))
    return epochs.flat_map(batches_of).prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def _graph_seed(seed):
    """Temporarily sets the global seed for the operations of the function that is being traced."""
    before = tf.compat.v1.get_default_graph().seed
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(before)


def evaluation_batches(source, decode, read_label, batch_size, cache=False):
    """Builds the batches of a split for a distribution engine. Each image is read once, in order, and not augmented.

    Args:
        source: Source of the split, one of `training.data.sources`.
        decode: Function from `training.data.samples.sample_decoder`.
        read_label: Function of a decoded sample that returns its label for the batch.
        batch_size: Number of images in a batch, on all devices together.
        cache: Whether to cache the batches in memory. A cache is useful if the batches are read repeatedly.

    Returns:
        A function `make_dataset(index, count, size)`, as in `training_batches`.
    """

    def make_dataset(index, count, size):
        shard = BatchShard(batch_size, index, count)

        @tf.autograph.experimental.do_not_convert  # Converting takes a second.
        def read(position, key):
            sample = decode(source.read(key))
            return sample["image"], read_label(sample), _weight(position)

        keys = source.epoch(tf.constant(0, tf.int64), shard, tf.constant(0, tf.int64))
        batches = keys.map(read, tf.data.AUTOTUNE).batch(shard.share, drop_remainder=True)
        if cache:
            num_images = shard.num_batches(source.size) * shard.share
            _check_memory(num_images, sum(map(_num_bytes, tf.nest.flatten(batches.element_spec))) / shard.share)
            batches = batches.cache()
        return _elements(batches, shard, size)

    return make_dataset


def read_once(source, decode, read_label, batch_size):
    """Reads a split once, in order, on one device.

    Args:
        source, decode, read_label, batch_size: As in `evaluation_batches`.

    Yields:
        Batches of images (B, H, W, C), labels (B, ...), and booleans (B,) that are `False` for padding.
    """
    batches = evaluation_batches(source, decode, read_label, batch_size)(0, 1, batch_size)
    for images, labels, weights in batches.as_numpy_iterator():
        yield images, labels, weights > 0


def read_splits(dataset, splits, decode, read_label, batch_size):
    """Reads one split or several, one after the other, as `read_once` does.

    Args:
        dataset: `training.data.dataset.Dataset`
        splits: Name of the split, or a list of names.
        decode, read_label, batch_size: As in `evaluation_batches`.

    Returns:
        The number of images, and an iterator over batches as in `read_once`.
    """
    sources = [dataset.splits[split] for split in ([splits] if isinstance(splits, str) else splits)]
    batches = (read_once(source, decode, read_label, batch_size) for source in sources)
    return sum(source.size for source in sources), itertools.chain.from_iterable(batches)


def _weight(position):
    return tf.cast(position != PADDING, tf.float32)


def _elements(batches, shard, size):
    """Splits the batches of a process, which have `shard.share` images, into elements of `size` images."""
    if size != shard.share:
        batches = batches.rebatch(size, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _in_memory(source, decode):
    """A source that keeps the decoded samples of `source` in memory until the process ends."""
    examples = source.in_order().map(tf.autograph.experimental.do_not_convert(decode), tf.data.AUTOTUNE)
    structure = examples.element_spec
    specs = tf.nest.flatten(structure)
    if varying := [name for name, spec in structure.items() if not spec.shape.is_fully_defined()]:
        raise InputError(
            f"data.cache=true needs annotations of one size. The size of {', '.join(varying)} may differ from image to "
            f"image, because an image has several right classes or none, or is cropped later. Set data.cache=false."
        )
    _check_memory(source.size, sum(_mean_length(examples, i) for i in range(len(specs))))
    # The arrays are filled batch by batch. Encoded images are stored in them as bytes objects.
    arrays = [np.empty([source.size, *spec.shape], spec.dtype.as_numpy_dtype) for spec in specs]
    count = 0
    for batch in examples.batch(_ROWS).as_numpy_iterator():
        new = tf.nest.flatten(batch)
        rows = slice(count, count := count + len(new[0]))
        for array, values in zip(arrays, new, strict=True):
            array[rows] = values
    return ArraySource(arrays, structure)


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """Examples in NumPy arrays, in memory or mapped from files. The keys of an epoch are the examples.

    Each array has the rows of all examples, `num_views` times: epoch e reads the rows of view e modulo `num_views`.

    The arrays are not TensorFlow variables, because in deterministic mode, functions that read variables run
    sequentially. Many examples are read in one call of Python. Only one thread at a time can run Python, so a call for
    each example would slow down the thread that starts the training steps.
    """

    arrays: list[np.ndarray]
    structure: dict
    num_views: int = 1

    @property
    def size(self):
        return len(self.arrays[0]) // self.num_views

    @staticmethod
    def read(example):
        return example

    def epoch(self, epoch, shard, skip, seed=None):
        """Same as `IndexedSource.epoch`."""
        keys = IndexedSource(self.size, read=self.read).epoch(epoch, shard, skip, seed)
        first = epoch % self.num_views * self.size
        rows = keys.batch(_ROWS).map(lambda positions, keys: self._rows(positions, keys + first), tf.data.AUTOTUNE)
        return rows.unbatch()

    def _rows(self, positions, indices):
        arrays = self.arrays
        types = [tf.as_dtype(array.dtype) for array in arrays]  # The type of bytes objects becomes tf.string.
        rows = tf.numpy_function(lambda rows: [array[rows] for array in arrays], [indices], types, stateful=False)
        rows = map(tf.ensure_shape, rows, [(None, *array.shape[1:]) for array in arrays])
        return positions, tf.nest.pack_sequence_as(self.structure, list(rows))


def _num_bytes(spec):
    return spec.shape.num_elements() * spec.dtype.size


def _mean_length(examples, component):
    """Mean number of bytes of one tensor of the flattened examples. If it is encoded, a sample is used."""
    spec = tf.nest.flatten(examples.element_spec)[component]
    if spec.dtype != tf.string:
        return _num_bytes(spec)
    sample = examples.take(_SAMPLE)
    lengths = sample.map(lambda example: tf.strings.length(tf.nest.flatten(example)[component])).batch(_SAMPLE)
    return float(tf.reduce_mean(tf.cast(lengths.get_single_element(), tf.float32)))


def _check_memory(count, size):
    """Checks that `count` images of `size` bytes fit into memory."""
    needed, available = count * size, _MEMORY_SHARE * psutil.virtual_memory().available
    if needed > available:
        raise InputError(
            f"data.cache=true would keep {count:,} images of {size / 1e3:,.1f} kB in memory: {needed / 1e9:.1f} GB. "
            f"At most {available / 1e9:.1f} GB are available for it. Set data.cache=false."
        )
