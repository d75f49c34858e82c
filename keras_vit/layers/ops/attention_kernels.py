"""Attention of heads: with all weights at once, by parts of the queries, or by a kernel of the backend.

B batch, n lines of tokens that attend each by itself, t queries, T keys, K heads, Dh width of a head. All arguments are
(B, K, T, Dh), or (B, n, K, T, Dh) for lines; the queries come scaled. docs/decisions/0015 says why.
"""

import keras
from keras import ops

LONGEST_AT_ONCE = 1024
"""Up to so many keys the weights are computed at once. Measured, as is the next: docs/performance.md."""
QUERIES_AT_ONCE = 256
"""Of more keys, the most queries whose weights are there at a time."""
LONGEST_WITHOUT_TORCH = 256
"""Up to so many keys torch's kernel is not faster on a CPU."""


def attend(query, key, value, bias=None):
    """What the queries receive: `softmax(q k^T + bias) v`.

    A kernel of the backend computes it where `has_kernel` says so. Else it goes by parts of the queries if there are
    many keys: the weights of one part are there at a time, and those that gradients need are computed again, part by
    part. So memory grows as T and not as T^2. Where the number of keys or queries is not known while a graph is
    made, it is computed at once: exported models of any image size, whose runtimes take no loops.

    Args:
        query: (B, K, t, Dh), scaled.
        key: (B, K, T, Dh)
        value: (B, K, T, Dh)
        bias: (B, T) or (B, n, T), added to the logits of each key; `None`: nothing.

    Returns:
        (B, K, t, Dh)
    """
    if has_kernel(query, key, bias):
        return _of_the_backend(query, key, value, bias)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    is_known = isinstance(num_queries, int) and isinstance(num_keys, int)
    if not is_known or num_keys <= LONGEST_AT_ONCE or num_queries <= QUERIES_AT_ONCE:
        bias = None if bias is None else bias[..., None, None, :]
        return ops.matmul(ops.cast(attention_weights(query, key, bias), value.dtype), value)
    if bias is not None:  # One more channel, by which queries of one take it from the keys.
        column = ops.broadcast_to(ops.cast(bias, key.dtype)[..., None, :, None], (*ops.shape(key)[:-1], 1))
        query, key = ops.concatenate([query, ops.ones_like(query[..., :1])], -1), ops.concatenate([key, column], -1)
    return ops.custom_gradient(_by_parts)(query, key, value)


def attention_weights(query, key, bias=None):
    """(B, K, t, T) float32, each row of which sums to one; `bias` of the shape of the logits, or broadcast to it."""
    logits = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
    return ops.softmax(logits if bias is None else logits + ops.cast(bias, "float32"), axis=-1)


def log_sizes(sizes):
    """The bias of keys that stand for as many tokens, (B, T) float32; `None` without sizes."""
    return None if sizes is None else ops.log(ops.cast(sizes, "float32"))


def has_kernel(query, key, bias=None):
    """Whether a kernel of the backend computes attention faster than we do, in memory that grows as T.

    * torch: `scaled_dot_product_attention`, on a CPU for more than 256 keys: with 197 it is no faster. For others than
      CPUs always, which is not measured.
    * JAX on a GPU: that of cuDNN, which takes 16 bits, and heads of a multiple of 8 up to 128 channels. Not measured.
    * Else none: Keras's for TensorFlow keeps all weights, and that for JAX on a TPU hides later keys from a query
      (Keras 3.15: without a mask its mask is the causal one).

    The softmax is computed in float32 by all of them.
    """
    if keras.backend.backend() == "torch":
        return key.shape[-2] > LONGEST_WITHOUT_TORCH or _platform(query) != "cpu"
    in_16_bits = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    fits = bias is None and in_16_bits and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
    return fits and keras.backend.backend() == "jax" and _platform(query) == "gpu"


def _platform(tensor):
    """What computes: `"cpu"`, `"gpu"` or `"tpu"` of JAX, `"cpu"`, `"cuda"` and others of torch."""
    if keras.backend.backend() == "torch":
        return tensor.device.type
    return keras.distribution.list_devices()[0].split(":")[0]


def _of_the_backend(query, key, value, bias):
    # (B n, T, K, Dh), as Keras has them.
    *outer, num_heads, _, _ = ops.shape(query)
    arrays = (ops.reshape(x, (-1, *ops.shape(x)[-3:])) for x in (query, key, value))
    arrays = [ops.swapaxes(x, -3, -2) for x in arrays]
    if bias is not None:
        bias = ops.reshape(ops.cast(bias, query.dtype), (-1, 1, 1, ops.shape(key)[-2]))
    heads = ops.swapaxes(ops.dot_product_attention(*arrays, bias=bias, scale=1.0), -3, -2)
    return ops.reshape(heads, (*outer, num_heads, -1, ops.shape(value)[-1]))


def _by_parts(query, key, value):
    """(what the queries receive, function from its gradient to those of the arguments), for `custom_gradient`."""
    num_queries = query.shape[-2]

    def gradients(gradient):
        # In float32: in 16 bits each part would round the sums.
        sums = [ops.zeros_like(x, dtype="float32") for x in (key, value)]
        parts = [_parts(query), _parts(gradient)]
        (_, _, *sums), of_queries = _for_each(_gradients_of_part, [key, value, *sums], parts, query.shape[-1])
        of_key, of_value = (ops.cast(total, x.dtype) for total, x in zip(sums, (key, value), strict=True))
        return _joined(of_queries, num_queries), of_key, of_value

    _, heads = _for_each(_part, [key, value], [_parts(query)], value.shape[-1])
    return _joined(heads, num_queries), gradients


# Both steps stand here, and get keys and values from what is handed on, so that JAX knows them again and does not
# compile them for each call.
def _part(handed_on, parts):
    (key, value), (query,) = handed_on, parts
    return [key, value], ops.matmul(ops.cast(attention_weights(query, key), value.dtype), value)


def _gradients_of_part(handed_on, parts):
    (key, value, of_keys, of_values), (query, gradient) = handed_on, parts
    weights = attention_weights(query, key)
    weights_of_keys = ops.swapaxes(ops.cast(weights, value.dtype), -1, -2)
    of_values = of_values + ops.cast(ops.matmul(weights_of_keys, gradient), "float32")
    of_weights = ops.cast(ops.matmul(gradient, ops.swapaxes(value, -1, -2)), "float32")
    of_logits = weights * (of_weights - ops.sum(of_weights * weights, axis=-1, keepdims=True))
    of_logits = ops.cast(of_logits, query.dtype)
    of_keys = of_keys + ops.cast(ops.matmul(ops.swapaxes(of_logits, -1, -2), query), "float32")
    return [key, value, of_keys, of_values], ops.matmul(of_logits, key)


def _parts(queries):
    """(B, K, t, Dh) as (number of parts, B, K, size of a part, Dh), equal parts, the last filled up with zeros."""
    *outer, num_queries, width = ops.shape(queries)
    count = -(-num_queries // QUERIES_AT_ONCE)
    size = -(-num_queries // count)
    queries = ops.pad(queries, [(0, 0)] * len(outer) + [(0, count * size - num_queries), (0, 0)])
    return ops.moveaxis(ops.reshape(queries, (*outer, count, size, width)), -3, 0)


def _joined(parts, num_queries):
    """The inverse of `_parts`."""
    parts = ops.moveaxis(parts, 0, -3)
    *outer, count, size, width = ops.shape(parts)
    return ops.reshape(parts, (*outer, count * size, width))[..., :num_queries, :]


def _for_each(step, handed_on, parts, width):
    """`ops.scan`: one part after the other, so that compilers cannot have them all at once; results have `width`
    channels. TensorFlow's wants results of the shapes of what is handed on."""
    if keras.backend.backend() != "tensorflow":
        return ops.scan(step, handed_on, parts)
    import tensorflow as tf

    count = parts[0].shape[0]

    def body(index, results, handed_on):
        handed_on, result = step(handed_on, [array[index] for array in parts])
        # Not a TensorArray, which LiteRT does not have.
        return index + 1, tf.tensor_scatter_nd_update(results, [[index]], result[None]), handed_on

    results = tf.zeros((*ops.shape(parts[0])[:-1], width), parts[0].dtype)
    start = (tf.constant(0), results, handed_on)
    _, results, handed_on = tf.while_loop(lambda index, *_: index < count, body, start, parallel_iterations=1)
    return handed_on, results
