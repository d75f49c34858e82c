"""Visual Transformers (arXiv 2006.03677) in NumPy, float64: equations 1 to 5 and the published models.

Legend: X a map (B, H, W, C), inside pixels (N, C); T tokens (B, L, D), inside (L, D); w weights of a part by name;
k heads; A attention. The weights determine the form. With a value projection, there are groups (a kernel of C / G rows)
and batch norms. Without one, the equations apply unchanged.
"""

import math

import numpy as np

from tests.reference.axial_resnet import batch_norm
from tests.reference.bit_resnet import relu, windows_of_bit
from tests.reference.vit import part


def softmax_over(logits, axis):
    e = np.exp(logits - logits.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def project(x, w, name):
    """x W in groups, then the batch norm. Returns x if there is no such projection."""
    if f"{name}/kernel" not in w:
        return x
    kernel = w[f"{name}/kernel"]
    G = x.shape[-1] // len(kernel)
    groups = zip(np.split(x, G, axis=-1), np.split(kernel, G, axis=-1), strict=True)
    y = np.concatenate([channels @ columns for channels, columns in groups], axis=-1)
    return batch_norm(y, w, f"{name}/norm") if f"{name}/norm/gamma" in w else y


def of_images(function, X, *others):
    """Maps a function of one image's pixels (N, C) over a batch."""
    return np.stack([function(x.reshape(-1, x.shape[-1]), *rest) for x, *rest in zip(X, *others, strict=True)])


def gather(x, A, w):
    """A^T X, or (A^T X W_V) W_T. A has one matrix (N, L) per head, and each head has its share of the channels."""
    heads = np.split(project(x, w, "value"), len(A), axis=-1)
    return project(np.concatenate([a.T @ head for a, head in zip(A, heads, strict=True)], axis=-1), w, "projection")


def filter_tokenizer(X, w, scale=False):
    """Equation 1: T = softmax_HW(X W_A)^T X."""

    def tokens(x):
        logits = project(x, w, "filter") / (math.sqrt(x.shape[-1]) if scale else 1)
        return gather(x, [softmax_over(logits, 0)], w)

    return of_images(tokens, X)


def recurrent_tokenizer(X, T, w, k=1, scale=False, split=False):
    """Equation 2: W_R = T W, T_out = softmax_HW(X W_R)^T X. If split: (second half of T, T_out of the first half)."""

    def tokens(x, t):
        asking, kept = (t[: len(t) // 2], t[len(t) // 2 :]) if split else (t, t[:0])
        keys, queries = (np.split(y, k, axis=-1) for y in (project(x, w, "key"), project(asking, w, "query")))
        d = keys[0].shape[-1] if scale else 1
        A = [softmax_over(key @ query.T / math.sqrt(d), 0) for key, query in zip(keys, queries, strict=True)]
        return np.concatenate([kept, gather(x, A, w)])

    return of_images(tokens, X, T)


def attend(queries, keys, values, k, scale):
    """softmax(q k^T) v for each head. The softmax runs over the keys."""
    heads = (np.split(y, k, axis=-1) for y in (queries, keys, values))
    d = queries.shape[-1] // k if scale else 1
    found = [softmax_over(q @ key.T / math.sqrt(d), 1) @ v for q, key, v in zip(*heads, strict=True)]
    return np.concatenate(found, axis=-1)


def token_transformer(T, w, k=1, scale=False):
    """Equations 3 and 4: T' = T + softmax_L((T K)(T Q)^T) T, T_out = T' + relu(T' F_1) F_2."""
    found = []
    for t in T:
        t = t + attend(project(t, w, "key"), project(t, w, "query"), project(t, w, "value"), k, scale)
        found.append(t + project(relu(project(t, w, "dense_1")), w, "dense_2"))
    return np.stack(found)


def token_graph_convolution(T, w):
    """G T W"""
    return np.stack([project(w["graph"] @ t if "graph" in w else t, w, "projection") for t in T])


def token_projector(X, T, w, k=1, scale=False):
    """Equation 5: X_out = X + softmax_L((X W_Q)(T W_K)^T) T."""

    def pixels(x, t):
        taken = attend(project(x, w, "query"), project(t, w, "key"), project(t, w, "value"), k, scale)
        return project(x, w, "lateral") + taken

    y = of_images(pixels, X, T)
    return y.reshape(*X.shape[:3], -1)


def shrink(X, h, w):
    """Bilinear with aligned pixel centres, position by position."""
    B, H, W, C = X.shape
    found = np.zeros((B, h, w, C))
    for i in range(h):
        for j in range(w):
            y, x = (i + 0.5) * H / h - 0.5, (j + 0.5) * W / w - 0.5
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    share = (1 - abs(y - row)) * (1 - abs(x - column))
                    found[:, i, j] += share * X[:, min(max(row, 0), H - 1), min(max(column, 0), W - 1)]
    return found


def pooling_tokenizer(X, w, grid):
    return of_images(lambda x: project(x, w, "projection"), shrink(X, *grid))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def centres(X, grid, steps):
    """W_K of each image by Lloyd's algorithm, pixel by pixel: (B, L, C)."""

    def lloyd(x, c):
        x, c = unit(x), unit(c)
        for _ in range(steps):
            nearest = [max(range(len(c)), key=lambda i: pixel @ c[i]) for pixel in x]
            members = [[x[n] for n in range(len(x)) if nearest[n] == cluster] for cluster in range(len(c))]
            c = np.array([unit(np.mean(own, axis=0)) if own else old for own, old in zip(members, c, strict=True)])
        return c

    directions = unit(X)
    shrunk = shrink(directions, *grid).reshape(len(X), -1, X.shape[-1])
    return of_images(lloyd, directions, shrunk)


def clustering_tokenizer(X, w, grid, steps):
    return of_images(lambda x, c: gather(x, [softmax_over(x @ c.T, 0)], w), X, centres(X, grid, steps))


def conv_norm(x, w, number, s):
    kernel = w[f"conv_{number}/kernel"]
    y = np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, len(kernel), s), kernel, optimize=True)
    return batch_norm(y, w, f"norm_{number}")


def residual_unit(x, w, s=1, strides_first=False):
    """A ResNet unit (arXiv 1512.03385) at inference: a bottleneck if it has a third convolution, else a basic unit."""
    if "conv_3/kernel" in w:
        early, late = (s, 1) if strides_first else (1, s)
        y = relu(conv_norm(x, w, 1, early))
        y = conv_norm(relu(conv_norm(y, w, 2, late)), w, 3, 1)
    else:
        y = conv_norm(relu(conv_norm(x, w, 1, s)), w, 2, 1)
    if "projection_conv/kernel" in w:
        x = batch_norm(x[:, ::s, ::s] @ w["projection_conv/kernel"][0, 0], w, "projection_norm")
    return relu(x + y)


def resnet(x, w, stage_depths, strides_first=False):
    """Images to the map of the last stage."""
    x = np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, 7, 2), w["stem_conv/kernel"], optimize=True)
    x = windows_of_bit(relu(batch_norm(x, w, "stem_norm")), 3, 2, -np.inf).max((-1, -2))
    for stage, depth in enumerate(stage_depths):
        for number in range(depth):
            s = 2 if stage > 0 and number == 0 else 1
            x = residual_unit(x, part(w, f"stage_{stage}_unit_{number}"), s, strides_first)
    return x


def classify(x, w):
    return x @ w["predictions/kernel"] + w["predictions/bias"]


def resnet_logits(x, w, stage_depths, strides_first=False):
    return classify(resnet(x, w, stage_depths, strides_first).mean((1, 2)), w)


def vt_resnet_logits(x, w, stage_depths, modules, k):
    """Logits of a whole VT-ResNet with filters, recurrent and split tokenizers, and projectors."""
    X = resnet(x, w, stage_depths)
    T = filter_tokenizer(X, part(w, "tokenizer_0"), scale=True)
    for number in range(modules):
        if number:
            X = token_projector(X, T, part(w, f"token_projector_{number - 1}"), k, scale=True)
            T = recurrent_tokenizer(X, T, part(w, f"tokenizer_{number}"), k, scale=True, split=True)
        if relation := part(w, f"token_relation_{number}"):
            T = token_transformer(T, relation, k, scale=True)
    return classify(T.mean(1), w)
