"""Components of the Visual Transformers baselines in NumPy, float64, from their papers' equations, at inference.

Legend: x maps (B, H, W, C); w weights of a part by name; k heads; n window size; s stride; o query position (i, j);
p key position (y, x); q, key, v queries, keys, values. Loops run over positions, windows and heads.
"""

import numpy as np

from tests.reference.axial_resnet import batch_norm
from tests.reference.bit_resnet import relu
from tests.reference.vit import part, softmax


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0)


def conv(x, kernel, s=1):
    """Pads both sides equally."""
    n = kernel.shape[0]
    padded = np.pad(x, ((0, 0), (n // 2, n // 2), (n // 2, n // 2), (0, 0)))
    B, H, W, _ = x.shape
    y = np.zeros((B, -(-H // s), -(-W // s), kernel.shape[-1]))
    for i in range(y.shape[1]):
        for j in range(y.shape[2]):
            window = padded[:, i * s : i * s + n, j * s : j * s + n]
            y[:, i, j] = np.einsum("byxc,yxcf->bf", window, kernel)
    return y


def squeeze_excitation(x, w):
    """arXiv 1709.01507, equations 2 to 4."""
    z = x.mean((1, 2))
    s = sigmoid(relu(z @ w["dense_1/kernel"]) @ w["dense_2/kernel"])
    return x * s[:, None, None]


def cbam(x, w):
    """arXiv 1807.06521, equations 2 and 3."""

    def mlp(v):
        return relu(v @ w["dense_1/kernel"]) @ w["dense_2/kernel"]

    x = x * sigmoid(mlp(x.mean((1, 2))) + mlp(x.max((1, 2))))[:, None, None]
    statistics = np.stack([x.mean(-1), x.max(-1)], axis=-1)
    return x * sigmoid(batch_norm(conv(statistics, w["conv/kernel"]), w, "norm"))


def local_self_attention(x, w, n, s, k):
    """arXiv 1906.05909, equation 3, then the mean of s x s squares."""
    q, key, v = (dense(x, w, name) for name in ("query", "key", "value"))
    _, H, W, F = q.shape
    d, m = F // k, n // 2
    y = np.zeros_like(q)
    for i, j in np.ndindex(H, W):
        places = [
            (a, b) for a in range(max(0, i - m), min(H, i + m + 1)) for b in range(max(0, j - m), min(W, j + m + 1))
        ]
        for head in range(k):
            c = slice(head * d, head * d + d)
            logits = []
            for a, b in places:
                rows, columns = w["row_embedding"][head, a - i + m], w["column_embedding"][head, b - j + m]
                r = np.concatenate([rows, columns])
                logits.append((q[:, i, j, c] * (key[:, a, b, c] + r)).sum(-1))
            A = softmax(np.stack(logits, axis=-1))
            y[:, i, j, c] = sum(A[:, number, None] * v[:, a, b, c] for number, (a, b) in enumerate(places))
    return mean_of_squares(y, s)


def mean_of_squares(x, s):
    """Squares extend beyond the map equally on both sides, or by one more position below and right."""
    B, H, W, C = x.shape
    y = np.zeros((B, -(-H // s), -(-W // s), C))
    top, left = (y.shape[1] * s - H) // 2, (y.shape[2] * s - W) // 2
    for i, j in np.ndindex(y.shape[1:3]):
        rows, columns = slice(max(0, i * s - top), (i + 1) * s - top), slice(max(0, j * s - left), (j + 1) * s - left)
        y[:, i, j] = x[:, rows, columns].mean((1, 2))
    return y


def local_relation(x, w, n, s, shared):
    """arXiv 1904.11491, equations 4 and 5."""
    q, key = dense(x, w, "query"), dense(x, w, "key")
    B, H, W, C = x.shape
    m = n // 2
    y = np.zeros((B, -(-H // s), -(-W // s), C))
    for i, j in np.ndindex(y.shape[1:3]):
        i0, j0 = i * s, j * s
        logits, values = [], []
        for a in range(max(0, i0 - m), min(H, i0 + m + 1)):
            for b in range(max(0, j0 - m), min(W, j0 + m + 1)):
                distance = np.array([(a - i0) / max(m, 1), (b - j0) / max(m, 1)])
                geometry = dense(relu(dense(distance, w, "geometry_1")), w, "geometry_2")
                logits.append(geometry - (q[:, i0, j0] - key[:, a, b]) ** 2)
                values.append(x[:, a, b])
        A = softmax(np.stack(logits, axis=-1))  # (B, G, positions)
        for c in range(C):
            y[:, i, j, c] = (A[:, c // shared] * np.stack(values, axis=-1)[:, c]).sum(-1)
    return dense(y, w, "projection")


def halve(x):
    """Means of 3 x 3 positions with stride 2, without the positions that TensorFlow's "same" padding adds."""
    B, H, W, C = x.shape
    y = np.zeros((B, -(-H // 2), -(-W // 2), C))
    # An odd amount of padding adds one more position below and right than above and left.
    top, left = 1 - (H + 1) % 2, 1 - (W + 1) % 2
    for i, j in np.ndindex(y.shape[1:3]):
        rows, columns = (slice(max(0, 2 * a - first), 2 * a - first + 3) for a, first in ((i, top), (j, left)))
        y[:, i, j] = x[:, rows, columns].mean((1, 2))
    return y


def enlarge(x, size):
    """Bilinear, with aligned pixel centres."""
    for axis, new in zip((1, 2), size, strict=True):
        old = x.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if a == axis else 1 for a in range(4)])
        high = np.minimum(low + 1, old - 1)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def attention_augmented(x, w, key_dim, k, s, is_pooled):
    """arXiv 1904.09925, equations 1 to 4."""
    y = conv(x, w["conv/kernel"], s)
    x = x[:, ::s, ::s]
    x = halve(x) if is_pooled else x
    projected = x @ w["projection/kernel"]
    d = key_dim // k
    q, key, v = np.split(projected, [key_dim, 2 * key_dim], axis=-1)
    B, H, W, _ = q.shape
    e = v.shape[-1] // k
    found = np.zeros_like(v)
    for head in range(k):
        c, f = slice(head * d, head * d + d), slice(head * e, head * e + e)
        for i, j in np.ndindex(H, W):
            logits = np.zeros((B, H, W))
            for a, b in np.ndindex(H, W):
                r_h, r_w = w["row_embedding"][a - i + H - 1], w["column_embedding"][b - j + W - 1]
                logits[:, a, b] = (q[:, i, j, c] * (key[:, a, b, c] + r_h + r_w)).sum(-1) / np.sqrt(d)
            A = softmax(logits.reshape(B, -1))
            found[:, i, j, f] = np.einsum("bp,bpe->be", A, v[..., f].reshape(B, -1, e))
    found = found @ w["output_projection/kernel"]
    return np.concatenate([y, enlarge(found, y.shape[1:3]) if is_pooled else found], axis=-1)


def global_reasoning(x, w):
    """arXiv 1811.12814, equations 1 to 3."""
    B, H, W, C = x.shape
    pixels = x.reshape(B, -1, C)
    phi, assignment = dense(pixels, w, "state"), dense(pixels, w, "assignment")
    V = np.einsum("bpn,bps->bns", assignment, phi) / (H * W)
    A_g = w["graph/kernel"].T
    V = V + np.einsum("mn,bns->bms", A_g, V) + w["graph/bias"][:, None]
    Z = relu(V) @ w["update/kernel"]
    y = np.einsum("bpn,bns->bps", assignment, Z) @ w["extension/kernel"]
    return x + batch_norm(y.reshape(x.shape), w, "norm")


def double_attention(x, w):
    """arXiv 1810.11579, equations 3 to 6."""
    pixels = x.reshape(len(x), -1, x.shape[-1])
    A, Bm, V = (dense(pixels, w, name).swapaxes(1, 2) for name in ("feature", "gathering", "distribution"))
    G = A @ softmax(Bm).swapaxes(1, 2)  # (B, m, n)
    Z = G @ softmax(V.swapaxes(1, 2)).swapaxes(1, 2)  # (B, m, positions)
    y = Z.swapaxes(1, 2) @ w["extension/kernel"]
    return x + batch_norm(y.reshape(x.shape), w, "norm")


def reflected(place, length):
    """The position inside the map that reflects one outside."""
    place = abs(place)
    return place if place < length else 2 * (length - 1) - place


def window(i, j, H, W, n):
    """Positions of the window around (i, j), row by row, reflected at the border."""
    m = n // 2
    return [(reflected(i + a, H), reflected(j + b, W)) for a in range(-m, m + 1) for b in range(-m, m + 1)]


def coordinates(length):
    return np.linspace(-1, 1, length)


def weighted_window(v, places, A):
    """Weighted sum of values v (B, H, W, F) with weights A (B, positions, F / 8), which eight channels share."""
    width = A.shape[-1]
    y = np.zeros((v.shape[0], v.shape[-1]))
    for number, (a, b) in enumerate(places):
        for c in range(v.shape[-1]):
            y[:, c] += A[:, number, c % width] * v[:, a, b, c]
    return y


def pairwise(x, w, n):
    """arXiv 2004.13621, equations 2 and 3."""
    q, key, v = (dense(x, w, name) for name in ("centre", "neighbour", "value"))
    B, H, W, _ = x.shape
    y = np.zeros_like(v)
    for i, j in np.ndindex(H, W):
        places = window(i, j, H, W, n)
        logits = []
        for a, b in places:
            here = dense(np.array([coordinates(W)[j], coordinates(H)[i]]), w, "position")
            there = dense(np.array([coordinates(W)[b], coordinates(H)[a]]), w, "position")
            delta = np.concatenate([q[:, i, j] - key[:, a, b], np.tile(here - there, (B, 1))], axis=-1)
            hidden = dense(relu(batch_norm(delta, w, "norm_1")), w, "dense")
            logits.append(dense(relu(batch_norm(hidden, w, "norm_2")), w, "logit"))
        A = softmax(np.stack(logits, axis=-1)).swapaxes(1, 2)
        y[:, i, j] = weighted_window(v, places, A)
    return y


def patchwise(x, w, n):
    """arXiv 2004.13621, equations 4 and 5."""
    q, key, v = (dense(x, w, name) for name in ("centre", "neighbour", "value"))
    B, H, W, _ = x.shape
    y = np.zeros_like(v)
    for i, j in np.ndindex(H, W):
        places = window(i, j, H, W, n)
        delta = np.concatenate([q[:, i, j], *(key[:, a, b] for a, b in places)], axis=-1)
        hidden = dense(relu(batch_norm(delta, w, "norm_1")), w, "dense")
        A = dense(relu(batch_norm(hidden, w, "norm_2")), w, "weight").reshape(B, n * n, -1)
        y[:, i, j] = weighted_window(v, places, A)
    return y


def self_attention_unit(x, w, attention, n):
    y = relu(batch_norm(x, w, "norm_1"))
    y = relu(batch_norm(attention(y, part(w, "attention"), n), w, "norm_2"))
    return x + dense(y, w, "projection")


def residual_unit(x, w, s, mixing, gate):
    """arXiv 1512.03385, with `mixing(x, w, s=)` instead of 3 x 3 convolutions, and `gate(x, w)` on the branch."""
    y = x
    numbers = range(1, 1 + sum(key.startswith("norm_") and key.endswith("gamma") for key in w))
    # The strides belong to the second convolution of a bottleneck, or to the first of a basic unit.
    strided = 2 if len(numbers) == 3 else 1
    for number in numbers:
        step = s if number == strided else 1
        if f"conv_{number}/kernel" in w:
            y = conv(y, w[f"conv_{number}/kernel"], step)
        else:
            y = mixing(y, part(w, f"mixing_{number}"), s=step)
        y = batch_norm(y, w, f"norm_{number}")
        y = relu(y) if number < len(numbers) else y
    y = gate(y, part(w, "gate"))
    if "projection_conv/kernel" in w:
        x = batch_norm(conv(x, w["projection_conv/kernel"], s), w, "projection_norm")
    return relu(x + y)


def self_attention_network_logits(x, w, attention, window_sizes):
    """Logits of a whole SAN with one unit in each stage."""
    x = relu(batch_norm(conv(x, w["stem_conv/kernel"]), w, "stem_norm"))
    for stage, window_size in enumerate(window_sizes):
        B, H, W, C = x.shape
        x = x[:, : H // 2 * 2, : W // 2 * 2].reshape(B, H // 2, 2, W // 2, 2, C).max((2, 4))
        x = conv(x, w[f"stage_{stage}_conv/kernel"])
        x = self_attention_unit(x, part(w, f"stage_{stage}_unit_0"), attention, window_size)
        x = relu(batch_norm(x, w, f"stage_{stage}_norm"))
    return dense(x.mean((1, 2)), w, "predictions")
