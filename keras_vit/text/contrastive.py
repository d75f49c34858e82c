"""The losses of image-text models. Shapes: B pairs, E + 1 width of their vectors, b images of a chunk."""

import keras
from keras import ops

CHUNK_SIZE = 1024
"""Number of images whose logits with all texts are in memory at the same time."""
_LOWEST = -1e30


def loss_over_replicas(image, text, activation, is_real=None):
    """(the contrastive loss of the pairs of all replicas, the number of replicas)

    With a `tf.distribute` strategy, each replica has this loss. If the gradients of the replicas are summed, the loss
    must be divided by their number. With JAX, arrays contain all pairs already. `is_real` is as in `contrastive_loss`.
    """
    is_real = ops.ones_like(image[:, 0], "bool") if is_real is None else is_real
    num_replicas = 1
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if num_replicas > 1:
            gather = tf.distribute.get_replica_context().all_gather
            image, text, is_real = (gather(each, axis=0) for each in (image, text, is_real))
    return contrastive_loss(image, text, activation, is_real=is_real), num_replicas


def contrastive_loss(image, text, activation, chunk_size=CHUNK_SIZE, is_real=None):
    """The loss of pairs of images and texts: a pair belongs together, all other combinations do not.

    The logit l_ij of image i and text j is the scalar product of their vectors. With `"softmax"`, the loss is the mean
    of two cross-entropies, over the texts of each image and over the images of each text (CLIP, arXiv 2103.00020,
    figure 3). With `"sigmoid"`, it is `-1/B sum_ij log sigmoid(z_ij l_ij)`, where z is 1 for pairs and -1 for other
    combinations (SigLIP, arXiv 2303.15343, equation 1).

    The matrix of logits is computed in chunks of images, and once more for the gradients, so it is never in memory as
    a whole.

    Args:
        image: Vectors of images, (B, E + 1), as `keras_vit.layers.Similarity` returns them.
        text: Vectors of texts, (B, E + 1).
        activation: `"softmax"` or `"sigmoid"`.
        chunk_size: Number of images of a chunk.
        is_real: Which pairs count, booleans (B,). The others are padding. `None`: all of them.

    Returns:
        The loss, a scalar in float32.
    """
    forward, slopes = {"softmax": (_softmax, _softmax_slopes), "sigmoid": (_sigmoid, _sigmoid_slopes)}[activation]

    is_real = ops.ones_like(text[:, 0], "bool") if is_real is None else ops.cast(is_real, "bool")

    @ops.custom_gradient
    def compute(image, text):
        count = ops.maximum(ops.sum(ops.cast(is_real, "float32")), 1.0)
        chunks = _chunks(image, chunk_size)
        total, known = forward(chunks, text, is_real)

        def gradients(*args, upstream=None):
            (upstream,) = args if upstream is None else (upstream,)

            def step(number, state):
                of_images, of_texts = state
                logits, is_pair, is_image = _logits(chunks[number], number, text, is_real)
                factors = ops.where(is_image & is_real, slopes(logits, is_pair, known), 0.0)
                of_texts += ops.matmul(ops.transpose(factors), chunks[number])
                update = ops.matmul(factors, text)[None]
                return ops.slice_update(of_images, (number, 0, 0), update), of_texts

            initial = ops.zeros_like(chunks), ops.zeros_like(text)
            of_images, of_texts = ops.fori_loop(0, ops.shape(chunks)[0], step, initial)
            of_images = ops.reshape(of_images, (-1, image.shape[-1]))[: ops.shape(image)[0]]
            return upstream / count * of_images, upstream / count * of_texts

        return total / count, gradients

    return compute(ops.cast(image, "float32"), ops.cast(text, "float32"))


def _chunks(image, chunk_size):
    """Vectors of images in chunks, (chunks, b, E + 1). Zeros fill the last chunk."""
    count, width = ops.shape(image)[0], image.shape[-1]
    size = min(count, chunk_size) if isinstance(count, int) else ops.minimum(count, chunk_size)
    return ops.reshape(ops.concatenate([image, ops.zeros((-count % size, width))]), (-1, size, width))


def _logits(rows, number, text, is_real):
    """Logits of a chunk, (b, B), where they belong to pairs, (b, B), and which rows are images that count, (b, 1)."""
    size, count = ops.shape(rows)[0], ops.shape(text)[0]
    is_pair = ((ops.arange(size) + number * size)[:, None] == ops.arange(count)) & is_real
    logits = ops.where(is_real, ops.matmul(rows, ops.transpose(text)), _LOWEST)
    return logits, is_pair, ops.any(is_pair, axis=1, keepdims=True)


def _softmax(chunks, text, is_real):
    """B times the loss, and the logarithm of the sum of the exponentials of each column of logits, (B,)."""

    def step(number, state):
        total, columns = state
        logits, is_pair, is_image = _logits(chunks[number], number, text, is_real)
        rows = ops.logsumexp(logits, axis=1, keepdims=True) / 2
        columns = ops.logaddexp(columns, ops.logsumexp(ops.where(is_image, logits, _LOWEST), axis=0))
        return total + ops.sum(ops.where(is_image, rows, 0.0)) - ops.sum(ops.where(is_pair, logits, 0.0)), columns

    initial = ops.zeros(()), ops.zeros_like(text[:, 0]) + _LOWEST
    total, columns = ops.fori_loop(0, ops.shape(chunks)[0], step, initial)
    return total + ops.sum(ops.where(is_real, columns, 0.0)) / 2, columns


def _softmax_slopes(logits, is_pair, columns):
    """Derivatives of B times the loss by the logits, (b, B)."""
    return (ops.softmax(logits, axis=1) + ops.exp(logits - columns)) / 2 - ops.cast(is_pair, "float32")


def _sigmoid(chunks, text, is_real):
    def step(number, total):
        logits, is_pair, is_image = _logits(chunks[number], number, text, is_real)
        losses = ops.softplus(ops.where(is_pair, -logits, logits))
        return total + ops.sum(ops.where(is_image, losses, 0.0))

    return ops.fori_loop(0, ops.shape(chunks)[0], step, ops.zeros(())), None


def _sigmoid_slopes(logits, is_pair, known):
    return ops.sigmoid(logits) - ops.cast(is_pair, "float32")
