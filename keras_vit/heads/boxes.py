"""Geometry of boxes. The functions compute with the Keras backend.

Boxes are (..., 4): centre x, centre y, width and height, or corners x0, y0, x1, y1. Shapes: N, M boxes.
"""

from keras import ops


def to_corners(boxes):
    """Corners (..., 4) of boxes that are given by centre and size."""
    centers, halves = boxes[..., :2], boxes[..., 2:] / 2
    return ops.concatenate([centers - halves, centers + halves], axis=-1)


def overlaps(first, second, epsilon=0.0):
    """Overlap of all pairs of boxes, which are given by their corners.

    Args:
        first: (..., N, 4)
        second: (..., M, 4)
        epsilon: Number that is added to areas by which others are divided.

    Returns:
        * Intersection over union, (..., N, M).
        * Generalized intersection over union (arXiv 1902.09630), (..., N, M): the former minus the share of the hull of
          both boxes that belongs to neither of them.
    """
    first, second = first[..., :, None, :], second[..., None, :, :]
    intersection = _area(ops.maximum(first[..., :2], second[..., :2]), ops.minimum(first[..., 2:], second[..., 2:]))
    union = _area(first[..., :2], first[..., 2:]) + _area(second[..., :2], second[..., 2:]) - intersection
    hull = _area(ops.minimum(first[..., :2], second[..., :2]), ops.maximum(first[..., 2:], second[..., 2:]))
    shared = intersection / (union + epsilon)
    return shared, shared - (hull - union) / (hull + epsilon)


def _area(low, high):
    sides = ops.maximum(high - low, 0)
    return sides[..., 0] * sides[..., 1]
