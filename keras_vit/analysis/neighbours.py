"""Nearest neighbours of images. Shapes: N images, M images of the gallery, k neighbours, D width of the embedding."""

import keras
import numpy as np

from keras_vit import graph
from keras_vit.analysis.features import representation
from keras_vit.analysis.inputs import Images, batches
from keras_vit.checks import check_positive_integer


def nearest_neighbours(
    model: keras.Model, images: Images, gallery: Images, k: int = 5, batch_size: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the images of a gallery that are most similar to given images according to a model.

    The inputs of the classifier (the class token or the pooled vector, after the tanh layer if there is one) are
    compared by cosine similarity. The gallery may be larger than the memory, because only the best candidates are kept.
    If an image is in the gallery, it is its own neighbour, with a similarity of 1.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (N, H, W, C), as `model` expects them: pixels in [0, 255] if it has `include_preprocessing`; or an
            iterable of such batches, for example a `tf.data.Dataset`.
        gallery: The M images of the gallery, in the same form as `images`.
        k: Number of neighbours, at most M.
        batch_size: Number of images in a batch, if `images` or `gallery` is an array.

    Returns:
        Two NumPy arrays: the neighbours' indices in the gallery, int64 (N, k), and their similarities from -1 to 1,
        float32 (N, k). The most similar neighbour is first. Neighbours with equal similarity are in the order of
        the gallery.

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, if images do not fit, or if `gallery` has fewer than k images.

    Example:

    >>> import numpy as np, keras_vit
    >>> model = keras_vit.ViT("Ti/16", input_shape=(32, 32, 3), num_layers=1)
    >>> gallery = np.random.default_rng(0).normal(size=(5, 32, 32, 3))
    >>> indices, similarities = keras_vit.nearest_neighbours(model, gallery[3:], gallery, k=2)
    >>> print(indices[:, 0])
    [3 4]
    """
    check_positive_integer("k", k)
    queries = np.concatenate([_directions(model, batch) for batch in batches(images, batch_size)])
    indices, similarities = np.empty((len(queries), 0), "int64"), np.empty((len(queries), 0), "float32")
    first = 0
    for batch in batches(gallery, batch_size):
        candidates = np.clip(queries @ _directions(model, batch).T, -1, 1).astype("float32")
        new_indices = np.broadcast_to(np.arange(first, first + candidates.shape[1]), candidates.shape)
        indices = np.concatenate([indices, new_indices], axis=1)
        similarities = np.concatenate([similarities, candidates], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        indices, similarities = (np.take_along_axis(array, order, axis=1) for array in (indices, similarities))
        first += candidates.shape[1]
    if first < k:
        raise ValueError(f"gallery contains {first} images, but k={k} neighbours are requested.")
    return indices, similarities


def _directions(model, images):
    """Embeddings that are scaled to length one, (B, D). Zero vectors do not change."""
    embeddings = graph.to_array(representation(model, images)).astype("float64")
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1)
