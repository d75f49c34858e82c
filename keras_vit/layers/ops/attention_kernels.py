"""Multi-head attention, computed in one step, in chunks of queries, or with a kernel of the backend.

Shapes: B batch, n sequences per image, t queries, T keys, K heads, Dh width of a head. All arguments are (B, K, T, Dh),
or (B, n, K, T, Dh) for n sequences. Queries are already scaled. See docs/decisions/0015 for the reasons.
"""

import keras
from keras import ops

MAX_KEYS_AT_ONCE = 1024
"""Maximum number of keys for which all attention weights are computed at once (see docs/performance/cost.md)."""
QUERIES_PER_CHUNK = 256
"""Maximum number of queries per chunk. See docs/performance/cost.md for the measurement."""
MAX_KEYS_WITHOUT_KERNEL = 256
"""Up to this number of keys, PyTorch's kernel is not used on a CPU, because it does not save time."""


def compute_attention(query, key, value, bias=None):
    """Computes `softmax(q k^T + bias) v`.

    If `has_kernel` is true, a kernel of the backend is used. Otherwise, if there are many keys, the queries are
    processed in chunks. Only the attention weights of one chunk are in memory at a time. The gradients recompute these
    weights chunk by chunk. The memory for attention weights therefore grows in proportion to T instead of T^2. If the
    number of keys or queries is unknown when the graph is traced, all weights are computed at once. Exported files for
    images of variable size cannot use chunks, because their runtimes do not support loops of unknown length.

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
    if not is_known or num_keys <= MAX_KEYS_AT_ONCE or num_queries <= QUERIES_PER_CHUNK:
        bias = None if bias is None else bias[..., None, None, :]
        return ops.matmul(ops.cast(attention_weights(query, key, bias), value.dtype), value)
    if bias is not None:  # An extra channel adds the bias. It contains 1 in the queries and the bias in the keys.
        column = ops.broadcast_to(ops.cast(bias, key.dtype)[..., None, :, None], (*ops.shape(key)[:-1], 1))
        query, key = ops.concatenate([query, ops.ones_like(query[..., :1])], -1), ops.concatenate([key, column], -1)
    return ops.custom_gradient(_attend_in_chunks)(query, key, value)


def attention_weights(query, key, bias=None):
    """Returns attention weights (B, K, t, T) in float32. Each row sums to one. `bias` is added to the logits."""
    logits = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
    return ops.softmax(logits if bias is None else logits + ops.cast(bias, "float32"), axis=-1)


def log_sizes(sizes):
    """Returns the attention bias of merged tokens, log(sizes), float32 (B, T). Returns `None` if `sizes` is `None`."""
    return None if sizes is None else ops.log(ops.cast(sizes, "float32"))


def has_kernel(query, key, bias=None):
    """Whether a kernel of the backend is used. Such a kernel needs memory in proportion to T, not T^2.

    * PyTorch: `scaled_dot_product_attention`. On a CPU, it is used only for more than 256 keys, because it did
      not save time with 197 keys. On other devices, it is always used, but its speed there has not been measured.
    * JAX on a GPU: cuDNN's kernel, for 16-bit types and heads of 8, 16, ..., 128 channels. Its speed was not measured.
    * Otherwise, no kernel is used. On TensorFlow, the reason is that Keras's attention stores all attention weights. On
      JAX with a TPU, Keras's attention applies a causal mask if no mask is passed (Keras 3.15).

    All kernels compute the softmax in float32.
    """
    if keras.backend.backend() == "torch":
        return key.shape[-2] > MAX_KEYS_WITHOUT_KERNEL or _platform(query) != "cpu"
    in_16_bits = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    fits = bias is None and in_16_bits and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
    return fits and keras.backend.backend() == "jax" and _platform(query) == "gpu"


def _platform(tensor):
    """Returns the device type, for example `"cpu"`, `"gpu"` or `"tpu"` in JAX and `"cpu"` or `"cuda"` in PyTorch."""
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


def _attend_in_chunks(query, key, value):
    """Returns the outputs and the function that computes the gradients of the arguments, for `custom_gradient`."""
    num_queries = query.shape[-2]

    def gradients(gradient):
        # The sums are in float32, because 16-bit sums would be rounded after each chunk.
        sums = [ops.zeros_like(x, dtype="float32") for x in (key, value)]
        chunks = [_split(query), _split(gradient)]
        (_, _, *sums), query_gradient = _scan(_gradients_of_chunk, [key, value, *sums], chunks, query.shape[-1])
        key_gradient, value_gradient = (ops.cast(total, x.dtype) for total, x in zip(sums, (key, value), strict=True))
        return _join(query_gradient, num_queries), key_gradient, value_gradient

    _, heads = _scan(_attend_chunk, [key, value], [_split(query)], value.shape[-1])
    return _join(heads, num_queries), gradients


# This function and `_gradients_of_chunk` are at module level and receive keys and values in the carry. JAX can then
# cache the compiled functions instead of compiling them in every call.
def _attend_chunk(carry, chunks):
    (key, value), (query,) = carry, chunks
    return [key, value], ops.matmul(ops.cast(attention_weights(query, key), value.dtype), value)


def _gradients_of_chunk(carry, chunks):
    (key, value, key_gradient, value_gradient), (query, gradient) = carry, chunks
    weights = attention_weights(query, key)
    key_weights = ops.swapaxes(ops.cast(weights, value.dtype), -1, -2)
    value_gradient = value_gradient + ops.cast(ops.matmul(key_weights, gradient), "float32")
    weight_gradient = ops.cast(ops.matmul(gradient, ops.swapaxes(value, -1, -2)), "float32")
    logit_gradient = weights * (weight_gradient - ops.sum(weight_gradient * weights, axis=-1, keepdims=True))
    logit_gradient = ops.cast(logit_gradient, query.dtype)
    key_gradient = key_gradient + ops.cast(ops.matmul(ops.swapaxes(logit_gradient, -1, -2), query), "float32")
    return [key, value, key_gradient, value_gradient], ops.matmul(logit_gradient, key)


def _split(queries):
    """Splits (B, K, t, Dh) into equal chunks, (chunks, B, K, chunk size, Dh). The last chunk is padded with zeros."""
    *outer, num_queries, width = ops.shape(queries)
    count = -(-num_queries // QUERIES_PER_CHUNK)
    size = -(-num_queries // count)
    queries = ops.pad(queries, [(0, 0)] * len(outer) + [(0, count * size - num_queries), (0, 0)])
    return ops.moveaxis(ops.reshape(queries, (*outer, count, size, width)), -3, 0)


def _join(chunks, num_queries):
    """The inverse of `_split`."""
    chunks = ops.moveaxis(chunks, 0, -3)
    *outer, count, size, width = ops.shape(chunks)
    return ops.reshape(chunks, (*outer, count * size, width))[..., :num_queries, :]


def _scan(step, carry, chunks, width):
    """Calls `step` for one chunk after the other, as `ops.scan` does. Results have `width` channels."""
    if keras.backend.backend() != "tensorflow":
        return ops.scan(step, carry, chunks)
    # On TensorFlow, ops.scan only accepts results that have the shapes of the carry.
    import tensorflow as tf

    count = chunks[0].shape[0]

    def body(index, results, carry):
        carry, result = step(carry, [array[index] for array in chunks])
        # LiteRT does not support TensorArray.
        return index + 1, tf.tensor_scatter_nd_update(results, [[index]], result[None]), carry

    start = (tf.constant(0), tf.zeros((*ops.shape(chunks[0])[:-1], width), chunks[0].dtype), carry)
    _, results, carry = tf.while_loop(lambda index, *_: index < count, body, start, parallel_iterations=1)
    return carry, results
