"""Sources of encoded images. Images are read one by one in any order, or as a stream of records.

An example is a sample (`training.data.samples`) with an encoded image. For both kinds of source, the order of the
images in an epoch depends only on a seed and the number of the epoch. Training can therefore resume at any step.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

PADDING = -1
_MAX_RUNS = 256  # A random subset of a stream consists of about this many runs of consecutive images.


@dataclasses.dataclass(frozen=True)
class BatchShard:
    """Process number `index` of `count` processes. It reads `share` images of each batch of `batch_size` images."""

    batch_size: int
    index: int = 0
    count: int = 1

    @property
    def share(self):
        return self.batch_size // self.count

    def num_batches(self, size):
        """The number of batches in a pass over `size` images. The last batch may contain padding."""
        return -(-size // self.batch_size)

    def range(self, size):
        """The range (first, end) of this process, if `size` images are divided into one range for each process."""
        return self.index * size // self.count, (self.index + 1) * size // self.count


class _Source:
    # Subclasses define these. `map(change)` is a source of the same examples, each changed by a TensorFlow function.
    epoch: Callable
    read: Callable
    map: Callable

    def in_order(self):
        """A `tf.data.Dataset` of all examples once, in order."""
        keys = self.epoch(tf.constant(0, tf.int64), BatchShard(batch_size=1), tf.constant(0, tf.int64))
        read = tf.autograph.experimental.do_not_convert(lambda _, key: self.read(key))  # Converting takes a second.
        return keys.map(read, tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class IndexedSource(_Source):
    """Examples that can be read in any order.

    `size` is the number of examples. `read(index)` is a TensorFlow function that returns one example.
    """

    size: int
    read: Callable

    def epoch(self, epoch, shard, skip, seed=None):
        """The keys that this process reads in one epoch.

        Args:
            epoch: Number of the epoch, int64 scalar.
            shard: `BatchShard`
            skip: Number of keys of this process to skip at the beginning of the epoch, int64 scalar.
            seed: Seed of the random order. `None`: the examples are in the order of their indices.

        Returns:
            `tf.data.Dataset` of pairs (position in the epoch, key for `read`). Padding has the position `PADDING`.
        """

        def key(slot):
            batch, row = slot // shard.share, slot % shard.share
            position = batch * shard.batch_size + shard.index * shard.share + row
            is_real = position < self.size
            index = position % self.size  # Padding consists of real images, because it affects batch statistics.
            if seed is not None:
                seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
                index = tf.random.experimental.index_shuffle(index, seeds, self.size - 1)
            return tf.where(is_real, position, PADDING), index

        slots = shard.num_batches(self.size) * shard.share
        return tf.data.Dataset.range(skip, slots).map(key)

    def map(self, change):
        return IndexedSource(self.size, lambda index: change(self.read(index)))

    def draw(self, count, seed):
        """A source of `count` random examples. If the seed stays the same, a larger `count` only adds examples."""

        def read(index):
            drawn = tf.random.experimental.index_shuffle(index, tf.constant([seed, 0], tf.int64), self.size - 1)
            return self.read(drawn)

        return IndexedSource(count, read)


@dataclasses.dataclass(frozen=True)
class StreamedSource(_Source):
    """Examples that are read in the order of their files, and shuffled while they are read.

    `size` is the number of examples. `stream(ranges, seed)` returns the examples at the positions of the given ranges
    `(first, end)`. Their order depends on the seed, an int64 scalar or `None`. `shuffle_buffer` is the number of
    examples that are shuffled at a time. The images of a batch depend on the number of processes.
    """

    size: int
    stream: Callable
    shuffle_buffer: int

    @staticmethod
    def read(example):
        return example

    def epoch(self, epoch, shard, skip, seed=None):
        """Same as `IndexedSource.epoch`. Skipped examples are read but not decoded."""
        first, end = shard.range(self.size)
        size, ranges = end - first, [(first, end)]
        slots = shard.num_batches(self.size) * shard.share
        if seed is None:
            examples = self.stream(ranges, None)
        else:
            epoch_seed = tf.constant(seed, tf.int64) * 1_000_003 + epoch + 1
            examples = self.stream(ranges, epoch_seed).shuffle(
                min(size, self.shuffle_buffer), epoch_seed, reshuffle_each_iteration=False
            )
        fillers = self.stream(ranges, None).take(slots - size).repeat().take(slots - size)
        padding = fillers.map(lambda example: (tf.constant(PADDING, tf.int64), example))
        return tf.data.Dataset.zip(tf.data.Dataset.range(first, end), examples).concatenate(padding).skip(skip)

    def map(self, change):
        return dataclasses.replace(self, stream=lambda ranges, seed: self.stream(ranges, seed).map(change))

    def draw(self, count, seed):
        """A source of `count` examples. It consists of runs of consecutive examples at random positions.

        Neighbouring examples of a run are unrelated, because TFDS and `records` write images in a random order.
        """
        runs = random_runs(self.size, count, seed)

        def stream(ranges, order):
            return self.stream([run for first, end in ranges for run in cut(runs, first, end)], order)

        return StreamedSource(count, stream, self.shuffle_buffer)


def random_runs(size, count, seed):
    """Selects `count` of the numbers from 0 to `size - 1`, as ranges at random positions.

    Returns the sorted ranges `(first, end)`. There are at most 257. If `count` is at most half of `size`, all ranges
    except one have the same length.
    """
    if 2 * count > size:  # The numbers to omit are selected, because they are fewer.
        omitted = random_runs(size, size - count, seed) if count < size else []
        borders = [0, *(border for run in omitted for border in run), size]
        return [run for run in zip(borders[::2], borders[1::2], strict=True) if run[0] < run[1]]
    length = -(-count // _MAX_RUNS)
    num_runs = -(-count // length)
    slots = np.random.default_rng(seed).choice(size // length, num_runs, replace=False)
    runs = [[slot * length, (slot + 1) * length] for slot in slots.tolist()]
    runs[0][1] -= num_runs * length - count
    return sorted(map(tuple, runs))


def cut(runs, first, end):
    """Selects the elements `first` to `end - 1` of concatenated ranges, and yields them as ranges.

    `runs` are ranges `(start, stop)` or `(name, start, stop)`. The results have the same format.
    """
    position = 0
    for *name, start, stop in runs:
        skipped, taken = max(first - position, 0), min(end - position, stop - start)
        if skipped < taken:
            yield *name, start + skipped, start + taken
        position += stop - start
