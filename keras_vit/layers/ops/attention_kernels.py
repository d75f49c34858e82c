"""Attention of heads: with all weights at once, in parts of the queries, or with a kernel of the backend.

B batch, n sequences per image, t queries, T keys, K heads, Dh width of a head. All arguments are (B, K, T, Dh), or
(B, n, K, T, Dh) for n sequences. Queries are already scaled. docs/decisions/0015 gives the reasons.
"""

import keras
from keras import ops

MAX_KEYS_AT_ONCE = 1024
"""Largest number of keys for which all weights are computed at once. Measured, as the next: docs/performance.md."""
QUERIES_PER_PART = 256
"""Largest number of queries in a part if there are more keys."""
MAX_KEYS_WITHOUT_KERNEL = 256
"""Largest number of keys for which torch's kernel is not faster on a CPU."""


def attend(query, key, value, bias=None):
    """Computes `softmax(q k^T + bias) v`.

    If `has_kernel` is true, a kernel of the backend is used. Otherwise, many keys are handled in parts of the queries.
    Only the weights of one part are in memory at a time, and gradients recompute them part by part, so memory grows as
    T and not as T^2. If the number of keys or queries is unknown when the graph is traced, all weights are computed at
    once. This applies to exports for any image size, because their runtimes do not support loops.

    Args:
        query: (B, K, t, Dh), scaled.
        key: (B, K, T, Dh)
        value: (B, K, T, Dh)
        bias: (B, T) or (B, n, T), added to the logits of each key. `None`: no bias.

    Returns:
        (B, K, t, Dh)
    """
    if has_kernel(query, key, bias):
        return _attend_with_backend(query, key, value, bias)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    is_known = isinstance(num_queries, int) and isinstance(num_keys, int)
    if not is_known or num_keys <= MAX_KEYS_AT_ONCE or num_queries <= QUERIES_PER_PART:
        bias = None if bias is None else bias[..., None, None, :]
        return ops.matmul(ops.cast(attention_weights(query, key, bias), value.dtype), value)
    if bias is not None:  # One more channel, 1 in queries and the bias in keys.
        column = ops.broadcast_to(ops.cast(bias, key.dtype)[..., None, :, None], (*ops.shape(key)[:-1], 1))
        query, key = ops.concatenate([query, ops.ones_like(query[..., :1])], -1), ops.concatenate([key, column], -1)
    return ops.custom_gradient(_attend_in_parts)(query, key, value)


def attention_weights(query, key, bias=None):
    """Attention weights (B, K, t, T) in float32. Each row sums to one. `bias` is broadcast to the logits."""
    logits = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
    return ops.softmax(logits if bias is None else logits + ops.cast(bias, "float32"), axis=-1)


def log_sizes(sizes):
    """The bias, (B, T) float32, of keys that stand for `sizes` tokens each. `None` without sizes."""
    return None if sizes is None else ops.log(ops.cast(sizes, "float32"))


def has_kernel(query, key, bias=None):
    """Whether the backend has a kernel that is faster than the code here and whose memory grows as T.

    * torch: `scaled_dot_product_attention`. On a CPU only for more than 256 keys, as it is not faster for 197 keys. On
      other devices always, which is not measured.
    * JAX on a GPU: the kernel of cuDNN, for 16-bit types and heads of 8, 16, ..., 128 channels. Not measured.
    * Otherwise none. Keras's kernel for TensorFlow stores all weights. Its kernel for JAX on a TPU applies a causal
      mask if there is no mask (Keras 3.15).

    All kernels compute the softmax in float32.
    """
    if keras.backend.backend() == "torch":
        return key.shape[-2] > MAX_KEYS_WITHOUT_KERNEL or _platform(query) != "cpu"
    in_16_bits = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    fits = bias is None and in_16_bits and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
    return fits and keras.backend.backend() == "jax" and _platform(query) == "gpu"


def _platform(tensor):
    """The device type: `"cpu"`, `"gpu"` or `"tpu"` in JAX; `"cpu"`, `"cuda"` or others in torch."""
    if keras.backend.backend() == "torch":
        return tensor.device.type
    return keras.distribution.list_devices()[0].split(":")[0]


def _attend_with_backend(query, key, value, bias):
    # Keras expects (B n, T, K, Dh).
    *outer, num_heads, _, _ = ops.shape(query)
    arrays = [ops.swapaxes(ops.reshape(x, (-1, *ops.shape(x)[-3:])), -3, -2) for x in (query, key, value)]
    if bias is not None:
        bias = ops.reshape(ops.cast(bias, query.dtype), (-1, 1, 1, ops.shape(key)[-2]))
    heads = ops.swapaxes(ops.dot_product_attention(*arrays, bias=bias, scale=1.0), -3, -2)
    return ops.reshape(heads, (*outer, num_heads, -1, ops.shape(value)[-1]))


def _attend_in_parts(query, key, value):
    """The outputs and the function that computes the arguments' gradients, for `custom_gradient`."""
    num_queries = query.shape[-2]

    def gradients(gradient):
        # In float32: with 16 bits, the sums would be rounded after each part.
        sums = [ops.zeros_like(x, dtype="float32") for x in (key, value)]
        parts = [_split(query), _split(gradient)]
        (_, _, *sums), query_gradient = _scan(_gradients_of_part, [key, value, *sums], parts, query.shape[-1])
        key_gradient, value_gradient = (ops.cast(total, x.dtype) for total, x in zip(sums, (key, value), strict=True))
        return _join(query_gradient, num_queries), key_gradient, value_gradient

    _, heads = _scan(_attend_part, [key, value], [_split(query)], value.shape[-1])
    return _join(heads, num_queries), gradients


# Both steps are functions of the module that receive keys and values in the carry, so that JAX recognises them and does
# not compile them for each call.
def _attend_part(carry, parts):
    (key, value), (query,) = carry, parts
    return [key, value], ops.matmul(ops.cast(attention_weights(query, key), value.dtype), value)


def _gradients_of_part(carry, parts):
    (key, value, key_gradient, value_gradient), (query, gradient) = carry, parts
    weights = attention_weights(query, key)
    key_weights = ops.swapaxes(ops.cast(weights, value.dtype), -1, -2)
    value_gradient = value_gradient + ops.cast(ops.matmul(key_weights, gradient), "float32")
    weight_gradient = ops.cast(ops.matmul(gradient, ops.swapaxes(value, -1, -2)), "float32")
    logit_gradient = weights * (weight_gradient - ops.sum(weight_gradient * weights, axis=-1, keepdims=True))
    logit_gradient = ops.cast(logit_gradient, query.dtype)
    key_gradient = key_gradient + ops.cast(ops.matmul(ops.swapaxes(logit_gradient, -1, -2), query), "float32")
    return [key, value, key_gradient, value_gradient], ops.matmul(logit_gradient, key)


def _split(queries):
    """Splits (B, K, t, Dh) into equal parts, (parts, B, K, part size, Dh). The last is padded with zeros."""
    *outer, num_queries, width = ops.shape(queries)
    count = -(-num_queries // QUERIES_PER_PART)
    size = -(-num_queries // count)
    queries = ops.pad(queries, [(0, 0)] * len(outer) + [(0, count * size - num_queries), (0, 0)])
    return ops.moveaxis(ops.reshape(queries, (*outer, count, size, width)), -3, 0)


def _join(parts, num_queries):
    """The inverse of `_split`."""
    parts = ops.moveaxis(parts, 0, -3)
    *outer, count, size, width = ops.shape(parts)
    return ops.reshape(parts, (*outer, count * size, width))[..., :num_queries, :]


def _scan(step, carry, parts, width):
    """`ops.scan`, which computes one part after the other, so that compilers cannot compute all at once. Results have
    `width` channels. On TensorFlow, `ops.scan` needs results with the shapes of the carry."""
    if keras.backend.backend() != "tensorflow":
        return ops.scan(step, carry, parts)
    import tensorflow as tf

    count = parts[0].shape[0]

    def body(index, results, carry):
        carry, result = step(carry, [array[index] for array in parts])
        # Not a TensorArray, which LiteRT does not support.
        return index + 1, tf.tensor_scatter_nd_update(results, [[index]], result[None]), carry

    results = tf.zeros((*ops.shape(parts[0])[:-1], width), parts[0].dtype)
    start = (tf.constant(0), results, carry)
    _, results, carry = tf.while_loop(lambda index, *_: index < count, body, start, parallel_iterations=1)
    return carry, results
