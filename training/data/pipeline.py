"""From a data set to batches. The batch of a step follows from the recipe and the number of the step alone, on any
number of devices, so that a run that was interrupted goes on as if nothing had been. H W C image, B batch.
"""

import contextlib

import numpy as np
import psutil
import tensorflow as tf

from training.data.sources import PADDING, IndexedSource, Part
from training.errors import InputError

_MEMORY_SHARE = 0.8  # Of the memory that is available may be taken by cached images.
_SAMPLE = 1000  # Encoded images, from whose sizes that of all is estimated.
_ROWS = 64  # Images that are put into memory at a time.


def num_steps_per_epoch(dataset, recipe):
    """Steps in a pass over the training images; the last of them may be filled up with padding."""
    return Part(recipe.fit.batch_size).num_batches(dataset.splits["train"].size)


def training_batches(source, changes, recipe):
    """Prepares the training images, and makes what a distribution engine needs to read its part of their batches.

    Args:
        source: Of the training images, one of `training.data.sources`.
        changes: `training.data.augment.Augmentation` of images and labels, as a task builds it.
        recipe: `training.recipe.config.Recipe`

    Returns:
        Function from the `range` of the steps whose batches are needed to a function `(index, count, size)` to a
        `tf.data.Dataset`, as `Engine.distribute` in `training.engine.distribution` takes it: share `index` of `count`
        of every batch, in elements of `size` images. An element is images (B, H, W, C) with pixels from 0 to 255,
        labels as the task has them, and weights (B,): 1, or 0 for padding.
    """
    decode = changes.decode
    if recipe.data.cache:
        source, decode = _in_memory(source, decode), _as_it_is

    def read(epoch, position, key):
        example = source.read(key)
        seed = tf.stack([tf.constant(recipe.seed, tf.int64), epoch * source.size + position])
        return *changes.change(*decode(example["image"], example["label"]), seed), _weight(position)

    def mix(step, batch):
        seed = tf.stack([tf.constant(recipe.seed, tf.int64) + 1, step])
        images, labels, weights = batch
        num_real = tf.cast(tf.reduce_sum(weights), tf.int32)  # Padding stands at the end.
        return *changes.mix(images, labels, seed, num_real), weights

    def of_steps(steps):
        def make(index, count, size):
            part = Part(recipe.fit.batch_size, index, count)
            return _training_share(source, part, size, steps, recipe.seed, read, mix)

        return make

    return of_steps


def _training_share(source, part, size, steps, seed, read, mix):
    """What `make` of `training_batches` returns: of each key what `read` makes of it, of each batch what `mix` does."""
    steps_per_epoch = part.num_batches(source.size)
    first_epoch, skipped = divmod(steps.start, steps_per_epoch)

    # With determinism TensorFlow takes all parallelism out of a pipeline that goes through a function that shuffles, as
    # this one does, but not out of what that function makes. So it makes batches, and not keys to be read after it.
    @tf.autograph.experimental.do_not_convert  # It would warn of functions of TFDS that it does not understand.
    def batches_of(epoch):
        first, end = epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch
        numbers = tf.data.Dataset.range(tf.maximum(first, steps.start), tf.minimum(end, steps.stop))
        skip = tf.where(epoch == first_epoch, skipped * part.share, 0)
        with _graph_seed(1):  # With a global seed of 0, shuffle takes no tensor for a seed.
            keys = source.epoch(epoch, part, tf.cast(skip, tf.int64), seed)
        images = keys.map(lambda position, key: read(epoch, position, key), tf.data.AUTOTUNE)
        batches = tf.data.Dataset.zip(numbers, images.batch(part.share, drop_remainder=True))
        return _elements(batches.map(mix, tf.data.AUTOTUNE), part, size)

    epochs = tf.data.Dataset.range(first_epoch, -(-steps.stop // steps_per_epoch))
    return epochs.flat_map(batches_of).prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def _graph_seed(seed):
    """Another global seed for the operations of the function that is traced, for a while."""
    before = tf.compat.v1.get_default_graph().seed
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(before)


def evaluation_batches(source, decode, read_label, batch_size, cache=False):
    """Makes what a distribution engine needs to read its part of a split: once, in its order and without changes.

    Args:
        source: Of the split, one of `training.data.sources`.
        decode: Function from encoded bytes to uint8 (H, W, C), as `keras_vit.decoding.image_decoder` makes it.
        read_label: Function from a label and the decoded image to what a batch holds of the label.
        batch_size: Images in a batch of all devices together.
        cache: Whether the batches are kept in memory, to be read again.

    Returns:
        Function `(index, count, size)` to a `tf.data.Dataset`, as that of `training_batches` for some steps.
    """

    def make(index, count, size):
        part = Part(batch_size, index, count)

        def read(position, key):
            example = source.read(key)
            image = decode(example["image"])
            return image, read_label(example["label"], image), _weight(position)

        keys = source.epoch(tf.constant(0, tf.int64), part, tf.constant(0, tf.int64))
        batches = keys.map(read, tf.data.AUTOTUNE).batch(part.share, drop_remainder=True)
        if cache:
            num_images = part.num_batches(source.size) * part.share
            _check_memory(num_images, sum(map(_num_bytes, batches.element_spec)) / part.share)
            batches = batches.cache()
        return _elements(batches, part, size)

    return make


def read_once(source, decode, read_label, batch_size):
    """Reads a split once, in its order, on one device.

    Args:
        source, decode, read_label, batch_size: As of `evaluation_batches`.

    Yields:
        Images (B, H, W, C), labels (B, ...), and whether each is an image of the split and not padding (B,).
    """
    batches = evaluation_batches(source, decode, read_label, batch_size)(0, 1, batch_size)
    for images, labels, weights in batches.as_numpy_iterator():
        yield images, labels, weights > 0


def _as_it_is(image, label):
    return image, label


def _weight(position):
    return tf.cast(position != PADDING, tf.float32)


def _elements(batches, part, size):
    """Batches of a process's share, cut into elements of a device's share."""
    if size != part.share:
        batches = batches.rebatch(size, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _in_memory(source, decode):
    """The source with what `decode` makes of its examples in memory, for as long as there is this process."""
    examples = source.in_order().map(lambda example: decode(example["image"], example["label"]), tf.data.AUTOTUNE)
    specs = examples.element_spec
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise InputError(
            "data.cache=true keeps one right class of an image; these may have several, or none. Set data.cache=false."
        )
    _check_memory(source.size, sum(_mean_length(examples, i) for i in range(len(specs))))
    # Filled in place. Encoded images are Python's bytes, in an array of objects.
    images, labels = (np.empty([source.size, *spec.shape], spec.dtype.as_numpy_dtype) for spec in specs)
    count = 0
    for new_images, new_labels in examples.batch(_ROWS).as_numpy_iterator():
        rows = slice(count, count := count + len(new_labels))
        images[rows], labels[rows] = new_images, new_labels

    def read(index):
        # Not variables: a function that reads one is stateful, which with determinism ends all parallelism.
        kept = tf.numpy_function(
            lambda index: (images[index], labels[index]), [index], [spec.dtype for spec in specs], stateful=False
        )
        image, label = (tf.ensure_shape(value, spec.shape) for value, spec in zip(kept, specs, strict=True))
        return {"image": image, "label": label}

    return IndexedSource(count, read)


def _num_bytes(spec):
    return spec.shape.num_elements() * spec.dtype.size


def _mean_length(examples, part):
    """Bytes of the images, or of the labels; where they are encoded, estimated from the first ones."""
    spec = examples.element_spec[part]
    if spec.dtype != tf.string:
        return _num_bytes(spec)
    lengths = examples.take(_SAMPLE).map(lambda *example: tf.strings.length(example[part])).batch(_SAMPLE)
    return float(tf.reduce_mean(tf.cast(lengths.get_single_element(), tf.float32)))


def _check_memory(count, size):
    """Refuses `count` images of `size` bytes if they are too many."""
    needed, available = count * size, _MEMORY_SHARE * psutil.virtual_memory().available
    if needed > available:
        raise InputError(
            f"data.cache=true would keep {count:,} images of {size / 1e3:,.1f} kB in memory: {needed / 1e9:.1f} GB. "
            f"This machine can spare {available / 1e9:.1f} GB. Set data.cache=false."
        )
