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


def panoptic(masks, objects, threshold=0.8, overlap=0.8):
    """Divides an image into segments that do not overlap.

    Each pixel belongs to the query with the largest product of class probability and mask probability. A segment is
    left out if its class probability is at most `threshold`, if its class is "no object", or if the pixels that it wins
    are not more than the share `overlap` of the pixels of its mask.

    Returns:
        * int32 (B, h, w), the index of the query of each pixel, or `NOTHING`.
        * Classes, int32 (B, Q).
        * Probabilities of the classes, (B, Q), which are 0 for queries without a segment.
    """
    all_probabilities = ops.softmax(objects, axis=-1)
    scores, classes = ops.max(all_probabilities, axis=-1), ops.argmax(all_probabilities, axis=-1)
    is_kept = ops.logical_and(classes != objects.shape[-1] - 1, scores > threshold)
    shape = (-1, 1, 1, masks.shape[-1])
    probabilities = ops.sigmoid(masks)
    ranks = ops.where(ops.reshape(is_kept, shape), ops.reshape(scores, shape) * probabilities, -1.0)
    won = ops.equal(ops.argmax(ranks, axis=-1)[..., None], ops.arange(masks.shape[-1], dtype="int64"))
    inside = probabilities >= 0.5
    shown = ops.logical_and(won, inside)
    num_won, num_inside, num_shown = (ops.sum(ops.cast(x, "float32"), axis=(1, 2)) for x in (won, inside, shown))
    is_valid = ops.logical_and(ops.logical_and(is_kept, num_shown > 0), num_won > overlap * num_inside)
    shown = ops.logical_and(shown, ops.reshape(is_valid, shape))
    queries = ops.cast(ops.argmax(shown, axis=-1), "int32")
    return (
        ops.where(ops.any(shown, axis=-1), queries, NOTHING),
        ops.cast(classes, "int32"),
        ops.where(is_valid, scores, 0.0),
    )


def resized(masks, size, *sizes):
    """Masks (B, h, w, Q) resized to (H, W), and then to further sizes, bilinearly."""
    for each in (size, *sizes):
        masks = resize_bilinear(masks, each)
    return masks
