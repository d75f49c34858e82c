"""From a data set to batches. The batch of a step follows from the recipe and the number of the step alone, on any
number of devices, so that a run that was interrupted goes on as if nothing had been. H W C image, B batch.
"""

import os

import numpy as np
import tensorflow as tf

from training.augment import build_augmentation
from training.errors import InputError
from training.sources import PADDING, IndexedSource, Part

_MEMORY_SHARE = 0.8  # Of the machine's memory may be taken by cached images.


def num_steps_per_epoch(dataset, recipe):
    """Steps in a pass over the training images; the last of them may be filled up with padding."""
    return Part(recipe.fit.batch_size).num_batches(dataset.splits["train"].size)


def training_batches(dataset, model, recipe, steps):
    """Makes what a distribution engine needs to read its part of the training batches.

    Args:
        dataset: `training.data.Dataset`
        model: The model that is trained; its `preprocessing` layer says how images are read.
        recipe: `training.config.Recipe`
        steps: `range` of the steps whose batches are needed.

    Returns:
        Function `(index, count, size)` to a `tf.data.Dataset`, as `training.distribution.Engine.distribute` takes it:
        share `index` of `count` of every batch, in elements of `size` images. An element is images (B, H, W, C) with
        pixels from 0 to 255, labels (B, classes), and weights (B,): 1, or 0 for padding.
    """
    num_classes = len(dataset.class_names)
    augmentation = build_augmentation(model, recipe.augment)
    source = dataset.splits["train"]
    decode = augmentation.decode
    if recipe.data.cache:
        source, decode = _in_memory(source, decode), lambda image: image

    def make(index, count, size):
        part = Part(recipe.fit.batch_size, index, count)
        steps_per_epoch = part.num_batches(source.size)
        first_epoch, skipped = divmod(steps.start, steps_per_epoch)

        @tf.autograph.experimental.do_not_convert  # It would warn of functions of TFDS that it does not understand.
        def keys_of(epoch):
            # Of this function alone: with a global seed of 0, shuffle takes no tensor for a seed.
            tf.random.set_seed(1)
            skip = tf.where(epoch == first_epoch, skipped * part.share, 0)
            keys = source.epoch(epoch, part, tf.cast(skip, tf.int64), recipe.seed)
            return keys.map(lambda position, key: (epoch, position, key))

        def read(epoch, position, key):
            example = source.read(key)
            seed = tf.stack([tf.constant(recipe.seed, tf.int64), epoch * source.size + position])
            image = augmentation.change(decode(example["image"]), seed)
            return image, label_vector(example["label"], num_classes), _weight(position)

        def mix(step, batch):
            seed = tf.stack([tf.constant(recipe.seed, tf.int64) + 1, step])
            images, labels, weights = batch
            num_real = tf.cast(tf.reduce_sum(weights), tf.int32)  # Padding stands at the end.
            return *augmentation.mix(images, labels, seed, num_real), weights

        epochs = tf.data.Dataset.range(first_epoch, -(-steps.stop // steps_per_epoch))
        images = epochs.flat_map(keys_of).map(read, tf.data.AUTOTUNE)
        batches = tf.data.Dataset.zip(
            tf.data.Dataset.range(steps.start, steps.stop), images.batch(part.share, drop_remainder=True)
        )
        return _elements(batches.map(mix, tf.data.AUTOTUNE), part, size)

    return make


def evaluation_batches(dataset, split, decode, recipe):
    """As `training_batches`, for one pass over a split in its order and without changes.

    Args:
        dataset: `training.data.Dataset`
        split: Name of the split.
        decode: Function from encoded bytes to uint8 (H, W, C), as `keras_vit.decoding.image_decoder` makes it.
        recipe: `training.config.Recipe`
    """
    num_classes = len(dataset.class_names)
    source = dataset.splits[split]

    def make(index, count, size):
        part = Part(recipe.fit.batch_size, index, count)

        def read(position, key):
            example = source.read(key)
            return decode(example["image"]), label_vector(example["label"], num_classes), _weight(position)

        keys = source.epoch(tf.constant(0, tf.int64), part, tf.constant(0, tf.int64))
        batches = keys.map(read, tf.data.AUTOTUNE).batch(part.share, drop_remainder=True)
        return _elements(batches.cache() if recipe.data.cache else batches, part, size)

    return make


def label_vector(label, num_classes):
    """(classes,): 1 for the right class, or for each of several."""
    one_hot = tf.one_hot(label, num_classes)
    return one_hot if label.shape.rank == 0 else tf.minimum(tf.reduce_sum(one_hot, axis=0), 1.0)


def _weight(position):
    return tf.cast(position != PADDING, tf.float32)


def _elements(batches, part, size):
    """Batches of a process's share, cut into elements of a device's share."""
    if size != part.share:
        batches = batches.rebatch(size, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _in_memory(source, prepare):
    """The source with what `prepare` makes of its images in memory."""
    examples = source.in_order().map(lambda example: (prepare(example["image"]), example["label"]), tf.data.AUTOTUNE)
    _check_memory(source.size, examples.element_spec[0])
    images, labels = map(_as_one, zip(*examples.as_numpy_iterator(), strict=True))
    return IndexedSource(len(labels), lambda index: {"image": images[index], "label": labels[index]})


def _as_one(values):
    # NumPy would cut off zero bytes at the end of an encoded image.
    return tf.constant(values if isinstance(values[0], bytes) else np.stack(values))


def _check_memory(count, spec):
    if spec.dtype == tf.string:
        return
    needed = count * spec.shape.num_elements() * spec.dtype.size
    available = _MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise InputError(
            f"data.cache=true would keep {count:,} images of {'x'.join(map(str, spec.shape))} in memory: "
            f"{needed / 1e9:.1f} GB, of which this machine may give {available / 1e9:.1f}. Set data.cache=false."
        )
