"""What the masks and classes of queries mean. Shapes: B batch, h w masks, H W image, Q queries, C classes.

The functions compute with the Keras backend. `masks` are logits (B, h, w, Q) and `objects` are logits (B, Q, C + 1),
the outputs of a model with an `EoMTHead`. The rules are those of Mask2Former (arXiv 2112.01527) and EoMT (arXiv
2503.19108).
"""

from keras import ops

from keras_vit.layers.ops.resizing import resize_bilinear

NOTHING = -1
"""Index of pixels that belong to no segment"""


def semantic_scores(masks, objects):
    """Scores of the classes of each pixel, (B, h, w, C): `sum_q softmax(objects)_qc sigmoid(masks)_q`."""
    classes = ops.softmax(objects, axis=-1)[..., :-1]
    pixels = ops.reshape(ops.sigmoid(masks), (-1, masks.shape[1] * masks.shape[2], masks.shape[3]))
    return ops.reshape(ops.matmul(pixels, classes), (-1, *masks.shape[1:3], classes.shape[-1]))


def instances(masks, objects):
    """The objects of an image, one for each query. They may overlap.

    Returns:
        * Booleans (B, h, w, Q), the pixels of each mask: those with a positive logit.
        * Classes, int32 (B, Q).
        * Scores, (B, Q): probability of the class times the mean probability of the mask's pixels.
    """
    probabilities = ops.softmax(objects, axis=-1)[..., :-1]
    inside = masks > 0
    weights = ops.cast(inside, masks.dtype)
    means = ops.sum(ops.sigmoid(masks) * weights, axis=(1, 2)) / (ops.sum(weights, axis=(1, 2)) + 1e-6)
    classes = ops.cast(ops.argmax(probabilities, axis=-1), "int32")
    return inside, classes, ops.max(probabilities, axis=-1) * means


def panoptic(masks, objects, is_thing=None, threshold=0.8, overlap=0.8):
    """Divides an image into segments that do not overlap.

    Each pixel belongs to the query with the largest product of class probability and mask probability. A segment is
    left out if its class probability is at most `threshold`, if its class is "no object", or if the pixels that it wins
    are not more than the share `overlap` of the pixels of its mask. If `is_thing` says which classes are things,
    booleans (C,), the segments of any other class are one segment, that of the first query.

    Returns:
        * int32 (B, h, w), the index of the query of each pixel, or `NOTHING`.
        * Classes, int32 (B, Q).
        * Probabilities of the classes, (B, Q), which are 0 for queries without a segment.
    """
    scores, classes, is_kept = confident(objects, threshold)
    regions, counts = claims(masks, scores, is_kept)
    is_valid = are_segments(is_kept, counts, overlap)
    numbers, is_first = joined(is_valid, classes, is_thing)
    flat = ops.reshape(regions, (-1, masks.shape[1] * masks.shape[2]))
    number = ops.where(flat < 0, NOTHING, ops.take_along_axis(numbers, ops.maximum(flat, 0), axis=1))
    return ops.reshape(number, ops.shape(regions)), classes, ops.where(is_first, scores, 0.0)


def confident(objects, threshold=0.8):
    """The first step of `panoptic`: probabilities (B, Q), classes (B, Q), and which queries exceed the threshold."""
    probabilities = ops.softmax(objects, axis=-1)
    scores, classes = ops.max(probabilities, axis=-1), ops.cast(ops.argmax(probabilities, axis=-1), "int32")
    return scores, classes, ops.logical_and(classes != objects.shape[-1] - 1, scores > threshold)


def claims(masks, scores, is_kept):
    """The second step of `panoptic`, which can be made for parts of an image.

    Args:
        masks: Logits (B, h, w, Q).
        scores, is_kept: Results of `confident`.

    Returns:
        * int32 (B, h, w), the query that wins each pixel, or `NOTHING` if the pixel is outside of its mask.
        * Numbers of pixels in each row, (B, h, 3, Q): those that a query wins, those of its mask, and those of both.
    """
    num_queries = ops.shape(masks)[-1]
    shape = (-1, 1, 1, num_queries)
    probabilities = ops.sigmoid(masks)
    ranks = ops.where(ops.reshape(is_kept, shape), ops.reshape(scores, shape) * probabilities, -1.0)
    winners = ops.cast(ops.argmax(ranks, axis=-1), "int32")
    won = ops.equal(winners[..., None], ops.arange(num_queries, dtype="int32"))
    inside = probabilities >= 0.5
    shown = ops.logical_and(won, inside)
    counts = ops.stack([ops.sum(ops.cast(x, "float32"), axis=2) for x in (won, inside, shown)], axis=2)
    return ops.where(ops.any(shown, axis=-1), winners, NOTHING), counts


def are_segments(is_kept, counts, overlap=0.8):
    """The last step of `panoptic`: which queries are segments, booleans (B, Q). `counts` are those of `claims`."""
    won, inside, shown = ops.unstack(ops.sum(counts, axis=1), axis=1)
    return ops.logical_and(ops.logical_and(is_kept, shown > 0), won > overlap * inside)


def joined(is_segment, classes, is_thing=None):
    """Joins the segments of each class that is not one of things.

    Args:
        is_segment: Which queries are segments, booleans (B, Q).
        classes: (B, Q)
        is_thing: Booleans (C,), or `None` if no segments are joined.

    Returns:
        The number of the first query of each query's segment, int32 (B, Q), or `NOTHING`, and which queries are first.
    """
    queries = ops.arange(ops.shape(classes)[1], dtype="int32")[None]
    first = queries
    if is_thing is not None:
        is_same = ops.logical_and(is_segment[:, None], classes[:, :, None] == classes[:, None])
        is_counted = ops.take(ops.convert_to_tensor([*is_thing, True]), classes)  # The last class is "no object".
        first = ops.where(is_counted, queries, ops.cast(ops.argmax(is_same, axis=-1), "int32"))
    return ops.where(is_segment, first, NOTHING), ops.logical_and(is_segment, first == queries)


def resized(masks, size, *sizes):
    """Masks (B, h, w, Q) resized to (H, W), and then to further sizes, bilinearly."""
    for each in (size, *sizes):
        masks = resize_bilinear(masks, each)
    return masks
