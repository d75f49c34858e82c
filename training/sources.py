"""Where encoded images come from: read one by one in any order, or as a stream of records.

An example is `{"image": bytes, "label": class index}`, or the indices of all right classes of an image.
Both kinds of source give the examples of an epoch in an order that follows from a seed and the epoch alone, so that
training can begin again at any step.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

PADDING = -1


@dataclasses.dataclass(frozen=True)
class Part:
    """What one of several processes reads: of each batch of `batch_size` images its share, `share` images."""

    batch_size: int
    index: int = 0
    count: int = 1

    @property
    def share(self):
        return self.batch_size // self.count

    def num_batches(self, size):
        """Batches in a pass over `size` images; the last may be filled up with padding."""
        return -(-size // self.batch_size)

    def range(self, size):
        """(first, end) of this process's part of `size` images, where each reads a stretch of its own."""
        return self.index * size // self.count, (self.index + 1) * size // self.count


class _Source:
    def in_order(self):
        """`tf.data.Dataset` of all examples once, in their order."""
        keys = self.epoch(tf.constant(0, tf.int64), Part(batch_size=1), tf.constant(0, tf.int64))
        return keys.map(lambda _, key: self.read(key), tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class IndexedSource(_Source):
    """Examples that can be read in any order.

    `size` examples; `read` is a TensorFlow function from an index to the example.
    """

    size: int
    read: Callable

    def epoch(self, epoch, part, skip, seed=None):
        """This process's keys for one epoch.

        Args:
            epoch: Number of the epoch, int64 scalar.
            part: `Part`
            skip: Number of this process's keys that are left out at the beginning, int64 scalar.
            seed: From which the order follows; `None`: the order of the indices.

        Returns:
            `tf.data.Dataset` of (position in the epoch, or `PADDING`; key for `read`).
        """

        def key(slot):
            batch, row = slot // part.share, slot % part.share
            position = batch * part.batch_size + part.index * part.share + row
            is_real = position < self.size
            index = tf.where(is_real, position, 0)
            if seed is not None:
                seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
                index = tf.random.experimental.index_shuffle(index, seeds, self.size - 1)
            return tf.where(is_real, position, PADDING), index

        slots = part.num_batches(self.size) * part.share
        return tf.data.Dataset.range(skip, slots).map(key)


@dataclasses.dataclass(frozen=True)
class StreamedSource(_Source):
    """Examples that are read in the order of their files, many at a time, and shuffled on the way.

    `size` examples; `stream(part, seed)` the examples of one process's part of the files, whose order follows from the
    seed, an int64 scalar or `None`; `shuffle_buffer` how many are shuffled at a time. With several processes a batch
    holds other images than with one.
    """

    size: int
    stream: Callable
    shuffle_buffer: int

    @staticmethod
    def read(example):
        return example

    def epoch(self, epoch, part, skip, seed=None):
        """As `IndexedSource.epoch`; what is skipped is read, but not decoded."""
        first, end = part.range(self.size)
        size = end - first
        slots = part.num_batches(self.size) * part.share
        if seed is None:
            examples = self.stream(part, None)
        else:
            epoch_seed = tf.constant(seed, tf.int64) * 1_000_003 + epoch + 1
            examples = self.stream(part, epoch_seed).shuffle(
                min(size, self.shuffle_buffer), epoch_seed, reshuffle_each_iteration=False
            )
        padding = (
            self.stream(part, None)
            .take(1)
            .repeat(slots - size)
            .map(lambda example: (tf.constant(PADDING, tf.int64), example))
        )
        return tf.data.Dataset.zip(tf.data.Dataset.range(first, end), examples).concatenate(padding).skip(skip)
