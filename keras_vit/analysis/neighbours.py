"""Which images a model finds alike. N images, M images of the gallery, k neighbours, D width of the embedding."""

import numpy as np

from keras_vit import graph
from keras_vit.analysis.batching import batches
from keras_vit.analysis.features import representation
from keras_vit.checks import check_positive_integer


def nearest_neighbours(model, images, gallery, k=5, batch_size=16):
    """The images of a gallery that are most like given ones to a model.

    Compared is what the classifier reads (the class token or the pooled vector, behind the tanh layer if there is one),
    by cosine similarity. Of the gallery only the best candidates are kept, so that it may be larger than memory. An
    image that is in the gallery itself finds itself, with a similarity of 1.

    Args:
        model: A functional model of this package, or one in which such a model is nested.
        images: (N, H, W, C), as `model` takes them: pixels in [0, 255] if it has `include_preprocessing`; or an
            iterable of such batches, for example a `tf.data.Dataset`.
        gallery: The same, of M images.
        k: How many neighbours, at most M.
        batch_size: How many images of an array pass at once.

    Returns:
        Two NumPy arrays: the neighbours' indices in the gallery, int64 (N, k), the most similar first, of equals the
        first in the gallery; and the similarities, from -1 to 1, float32 (N, k).

    Raises:
        TypeError: If `model` is not functional.
        ValueError: If `model` is not of this package, the images do not fit, or there are fewer than k.

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
        found = np.clip(queries @ _directions(model, batch).T, -1, 1).astype("float32")
        numbers = np.broadcast_to(np.arange(first, first + found.shape[1]), found.shape)
        indices = np.concatenate([indices, numbers], axis=1)
        similarities = np.concatenate([similarities, found], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        indices, similarities = (np.take_along_axis(part, order, axis=1) for part in (indices, similarities))
        first += found.shape[1]
    if first < k:
        raise ValueError(f"gallery holds {first} images, which is fewer than k={k} neighbours.")
    return indices, similarities


def _directions(model, images):
    """(B, D): embeddings of length one; zeros where one is zero."""
    embeddings = graph.to_array(representation(model, images)).astype("float64")
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1)
