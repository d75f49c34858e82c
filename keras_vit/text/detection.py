"""Detectors whose classes are texts or images (OWL-ViT, arXiv 2205.06230). Shapes: B images, N boxes, E embedding."""

import keras
import numpy as np

from keras_vit.checks import check_positive_integer
from keras_vit.graph import check_images, to_array
from keras_vit.heads.boxes import overlaps, to_corners
from keras_vit.inference import predictor
from keras_vit.preprocessing import preprocessing_layer
from keras_vit.pretrained import from_pretrained

_FARTHEST = 0.2
"""The box of a query image covers the image at most this share less than the best box."""


def build_detector(source, arguments, labels, embeddings):
    """Builds the detector of a file of OWL-ViT or OWLv2 with given classes.

    Args:
        source, arguments: As in `keras_vit.from_pretrained`.
        labels: Names of the C classes.
        embeddings: Embeddings of the classes, (C, E).
    """
    model = from_pretrained(source, output="boxes", classes=len(labels), **arguments)
    model.get_layer("predictions").kernel.assign(np.transpose(embeddings))
    layer = preprocessing_layer(model)
    layer.label_space = list(labels)
    layer.adaptations = {name: change for name, change in layer.adaptations.items() if name != "predictions/kernel"}
    return model


def embed_queries(source, arguments, images, batch_size):
    """The embeddings of the main objects of images, float32 (B, E), for a file of OWL-ViT or OWLv2.

    OWLv2 takes the box of the highest objectness. OWL-ViT takes, of the boxes that cover nearly as much of the image as
    the best one, the one whose embedding is least similar to the mean embedding of all boxes.
    """
    detector = from_pretrained(source, output="boxes", classes=1, **arguments)  # The class is not used.
    embeddings, _, _, *objectness = detector.get_layer("head").output
    outputs = [embeddings, *(objectness or [detector.get_layer("boxes").output])]
    compute = predictor(keras.Model(detector.input, outputs))
    images = check_images(images, detector.input_shape)
    check_positive_integer("batch_size", batch_size)
    choose, rows = _most_likely if objectness else _least_common, []
    for first in range(0, len(images), batch_size):
        pairs = zip(*map(to_array, compute(images[first : first + batch_size])), strict=True)
        rows += [found[choose(found, others)] for found, others in pairs]
    return np.stack(rows)


def _most_likely(embeddings, objectness):
    """The index of the box that most likely contains an object."""
    return objectness[:, 0].argmax()


def _least_common(embeddings, boxes):
    """The index of a box that covers the image, and whose embedding differs from those of other boxes."""
    whole = np.array([[0, 0, 1, 1]], "float32")
    shares, generalized = (to_array(each)[:, 0] for each in overlaps(to_corners(boxes), whole))
    shares = shares if shares.any() else generalized
    best = shares.max()
    candidates = np.flatnonzero(shares >= best - _FARTHEST * abs(best))
    return candidates[(embeddings[candidates] @ embeddings.mean(axis=0)).argmin()]
