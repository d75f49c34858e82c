"""Computes large outputs in parts that fit in memory, in a graph of TensorFlow.

Shapes: B batch, h w maps of the model, H W original image, C classes, Q queries, N objects.
"""

import tensorflow as tf

from keras_vit.heads import segments
from keras_vit.layers.ops.resizing import resize_bilinear

_STRIP_VALUES = 2**23
"""Maximum number of values of a strip: 32 MB."""
_MIN_PROBABILITY = 0.05
"""Objects whose class has a lower probability are left out, like those of Detectron2 (`SCORE_THRESH_TEST`)."""
_MOST_OBJECTS = 100
"""Maximum number of instances of an image, as in COCO's evaluation."""


def in_chunks(compute, rows, chunk_size):
    """Calls `compute(rows)`, which returns a dictionary of tensors, on at most `chunk_size` rows at a time.

    The memory that `compute` needs does not depend on the number of rows. The memory for the rows and the outputs grows
    with this number.
    """
    traced = tf.function(compute, [tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)], autograph=False)
    specs = traced.get_concrete_function().structured_outputs
    num_rows = tf.shape(rows)[0]
    # If there are no rows, one is computed, so that outputs have a shape.
    rows = tf.pad(rows, [[0, tf.cast(num_rows == 0, tf.int32)], *[[0, 0]] * (rows.shape.rank - 1)])
    num_chunks = -(-tf.shape(rows)[0] // chunk_size)
    arrays = {
        name: tf.TensorArray(spec.dtype, num_chunks, infer_shape=False, element_shape=spec.shape)
        for name, spec in specs.items()
    }

    def step(index, arrays):
        outputs = compute(rows[index * chunk_size : (index + 1) * chunk_size])
        return index + 1, {name: array.write(index, outputs[name]) for name, array in arrays.items()}

    # The chunks run one after the other. In parallel, they would need the memory of all chunks at once.
    _, arrays = tf.while_loop(lambda index, _: index < num_chunks, step, [0, arrays], parallel_iterations=1)
    return {name: array.concat()[:num_rows] for name, array in arrays.items()}


def in_strips(compute, maps, size):
    """Resizes maps bilinearly to the size of an image, and calls a function on strips of rows.

    Args:
        compute: Function of a strip (1, n, W, C) that returns {name: tensor (1, n, ...)}.
        maps: (1, h, w, C)
        size: (H, W), a tensor.

    Returns:
        {name: tensor (H, ...)}
    """
    height, width = tf.unstack(size)
    last = tf.cast(tf.shape(maps)[1] - 1, tf.float32)

    def compute_rows(rows):
        positions = (tf.cast(rows, tf.float32) + 0.5) * ((last + 1) / tf.cast(height, tf.float32)) - 0.5
        positions = tf.clip_by_value(positions, 0, last)
        before = tf.floor(positions)
        low, high = (tf.gather(maps, tf.cast(tf.minimum(before + shift, last), tf.int32), axis=1) for shift in (0, 1))
        strip = low + (positions - before)[:, None, None] * (high - low)
        outputs = compute(resize_bilinear(strip, (tf.size(rows), width)))
        return {name: output[0] for name, output in outputs.items()}

    num_rows = tf.maximum(1, _STRIP_VALUES // (width * tf.shape(maps)[-1]))
    return in_chunks(compute_rows, tf.range(height), num_rows)


def predict_original(answer, is_thing, input_size, outputs, size):
    """The outputs of each pixel of an original image, {name: tensor (H, W, ...)}.

    Args:
        answer: An `Answer`.
        is_thing: Not used.
        input_size: (height, width) of the images that the model gets.
        outputs: Main outputs of the model for one image, {name: tensor (1, ...)}.
        size: (H, W), a tensor.
    """
    return in_strips(answer.of_strip, answer.maps(outputs, input_size), size)


def instances(answer, is_thing, input_size, outputs, size):
    """The objects of an original image, with the highest score first. They may overlap.

    Args:
        answer, is_thing, input_size, outputs, size: Same as in `predict_original`, for masks and objects.

    Returns:
        {"counts": `RaggedTensor` (N, runs), "num_counts": (N,), "classes": (N,), "scores": (N,)}
    """
    masks, objects = outputs["masks"], outputs["objects"]
    probabilities = tf.reduce_max(tf.nn.softmax(objects)[0, :, :-1], axis=-1)
    probabilities, chosen = tf.math.top_k(probabilities, min(_MOST_OBJECTS, objects.shape[1]))

    def find(query):
        mask = segments.resized(tf.gather(masks, [query], axis=-1), input_size, size)
        inside, classes, scores = segments.instances(mask, tf.gather(objects, [query], axis=1))
        return _run_lengths(inside[0, ..., 0]), classes[0, 0], scores[0, 0]

    return _objects(find, chosen[probabilities >= _MIN_PROBABILITY])


def panoptic(answer, is_thing, input_size, outputs, size):
    """The segments of an original image. Same as `instances`, but segments do not overlap.

    `is_thing` is as in `keras_vit.Output`.
    """
    scores, classes, is_kept = segments.confident(outputs["objects"])
    # One query is always kept, so that there is a maximum.
    chosen = tf.where(is_kept[0] | (tf.range(tf.shape(is_kept)[1]) == 0))[:, 0]
    masks = segments.resized(tf.gather(outputs["masks"], chosen, axis=-1), input_size)
    scores, classes, is_kept = (tf.gather(each, chosen, axis=1) for each in (scores, classes, is_kept))

    def claim(strip):
        return dict(zip(("regions", "counts"), segments.claims(strip, scores, is_kept), strict=True))

    won = in_strips(claim, masks, size)
    is_segment = segments.are_segments(is_kept, won["counts"][None])
    numbers, is_first = segments.joined(is_segment, classes, is_thing)
    regions = tf.where(won["regions"] < 0, segments.NOTHING, tf.gather(numbers[0], tf.maximum(won["regions"], 0)))

    def find(query):
        return _run_lengths(regions == query), classes[0, query], scores[0, query]

    return _objects(find, tf.cast(tf.where(is_first[0])[:, 0], tf.int32))


def _objects(find, queries):
    """Calls a function that returns run lengths, class and score of a query. Leaves out objects without pixels."""
    runs = tf.RaggedTensorSpec([None], tf.int32, 0)
    signature = runs, tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
    counts, classes, scores = tf.map_fn(find, queries, fn_output_signature=signature, parallel_iterations=1)
    lengths = tf.cast(counts.row_lengths(), tf.int32)
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    order = tf.boolean_mask(order, tf.gather(lengths, order) > 1)
    found = {"counts": counts, "num_counts": lengths, "classes": classes, "scores": scores}
    return {name: tf.gather(each, order) for name, each in found.items()}


def _run_lengths(mask):
    """The lengths of runs of equal pixels in a mask (H, W), column by column, as COCO counts them: int32 (runs,).

    The first is the number of pixels before the first column's first pixel inside, which may be zero.
    """
    pixels = tf.reshape(tf.transpose(mask), [-1])
    before = tf.concat([[False], pixels[:-1]], axis=0)
    changes = tf.cast(tf.where(pixels != before)[:, 0], tf.int32)
    ends = tf.concat([changes, [tf.size(pixels)]], axis=0)
    return ends - tf.concat([[0], changes], axis=0)


MEANINGS = {function.__name__: function for function in (predict_original, instances, panoptic)}
"""{name of a signature: function that computes its outputs for an image}"""
