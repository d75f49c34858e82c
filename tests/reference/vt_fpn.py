"""Necks and head of VT-FPN (arXiv 2006.03677) and Panoptic FPN (1901.02446) in NumPy, float64, at inference.

VT-FPN's equations are 1, 3, 4 and 5, with the batch norms and groups of its published models. The head is that of
section 3.2 of Panoptic FPN.

Legend: x maps (B, H, W, C), the finest first; X pixels of one map (B, N, C); T tokens (B, L, D); w weights of a part
by name; k heads; G groups; s upsampling factor; A attention weights.
"""

import numpy as np

from tests.reference.axial_resnet import batch_norm
from tests.reference.bit_resnet import group_norm, relu, windows_of_bit
from tests.reference.vit import part, softmax

TOKEN_GROUPS = 4


def conv(x, w):
    y = np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, len(w["kernel"]), 1), w["kernel"], optimize=True)
    return y + w.get("bias", 0)


def pointwise(X, w, G=1):
    groups = zip(np.split(X, G, axis=-1), np.split(w["kernel"], G, axis=-1), strict=True)
    y = np.concatenate([values @ kernel for values, kernel in groups], axis=-1)
    return batch_norm(y, w, "norm")


def enlarge(x, s, like, nearest=False):
    """Resizes to the size of `like`, linearly between pixel centres and constant beyond the outermost centres."""
    for axis in (1, 2):
        places = np.arange(x.shape[axis])
        wanted = (np.arange(like.shape[axis]) + 0.5) / s - 0.5
        if nearest:
            x = x.take(np.arange(like.shape[axis]) // s, axis=axis)
        else:
            x = np.apply_along_axis(lambda line, at=wanted, known=places: np.interp(at, known, line), axis, x)
    return x


def pyramid_neck(laterals, w):
    merged = laterals[-1]
    found = [conv(merged, part(w, f"pyramid_{len(laterals) - 1}"))]
    for i in range(len(laterals) - 2, -1, -1):
        merged = laterals[i] + enlarge(merged, 2, laterals[i], nearest=True)
        found.insert(0, conv(merged, part(w, f"pyramid_{i}")))
    return found


def attend(queries, keys, values, k):
    """Attention of each of k heads: (B, N, F) from (B, N, F), (B, L, F) and (B, L, V)."""
    found = []
    for q, key, v in zip(*(np.split(array, k, axis=-1) for array in (queries, keys, values)), strict=True):
        A = softmax(q @ key.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
        found.append(A @ v)
    return np.concatenate(found, axis=-1)


def tokenize(x, w, i):
    X = x.reshape(len(x), -1, x.shape[-1])
    logits = pointwise(X, part(w, f"tokenizer_{i}/filter")) / np.sqrt(x.shape[-1])
    A = softmax(logits.swapaxes(1, 2))  # Over the pixels.
    return pointwise(A @ X, part(w, f"token_embedding_{i}"))


def token_transformer(T, w, k):
    keys, queries, values = (pointwise(T, part(w, name), TOKEN_GROUPS) for name in ("key", "query", "value"))
    T = T + attend(keys, queries, values, k)  # Equation 3, where keys act as the queries.
    return T + pointwise(relu(pointwise(T, part(w, "dense_1"))), part(w, "dense_2"))


def project(x, T, w, k, group_width):
    X = x.reshape(len(x), -1, x.shape[-1])
    queries = pointwise(X, part(w, "query"), x.shape[-1] // group_width)
    y = X + attend(queries, pointwise(T, part(w, "key")), pointwise(T, part(w, "value")), k)
    return y.reshape(x.shape)


def token_neck(laterals, w, k, group_width):
    tokens = [tokenize(x, w, i) for i, x in enumerate(laterals)]
    T = token_transformer(np.concatenate(tokens, axis=1), part(w, "token_transformer"), k)
    own = np.split(T, len(laterals), axis=1)
    return [project(x, own[i], part(w, f"token_projector_{i}"), k, group_width) for i, x in enumerate(laterals)]


def head(maps, w, images, G):
    """Logits (B, H, W, classes) of each pixel."""
    total = 0
    for i, x in enumerate(maps):
        for number in range(max(i, 1)):
            x = conv(x, part(w, f"head_{i}_conv_{number}"))
            norm = part(w, f"head_{i}_norm_{number}")
            x = relu(group_norm(x, norm["gamma"], norm["beta"], 1e-5, G))
            if i > 0:
                x = enlarge(x, 2, maps[i - 1 - number])
        total = total + x
    return enlarge(conv(total, part(w, "predictions")), 4, images)


def logits(stages, images, w, neck, G):
    """Logits from the maps of a backbone's stages. `neck` is `pyramid_neck`, or `token_neck` with its numbers bound."""
    laterals = [conv(x, part(w, f"lateral_{i}")) for i, x in enumerate(stages)]
    return head(neck(laterals, w), w, images, G)
