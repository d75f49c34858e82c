"""Token merging (ToMe, arXiv 2210.09461) in NumPy, float64, with loops, written from the paper's text.

Legend: z tokens (T, D) of one image; x their metric (T, Dm); s sizes (T,), the patches in each token; p prefix tokens,
which are never merged; r number of merged tokens; w weights of a part by name.
"""

import numpy as np

from tests.reference import vit


def bipartite_soft_matching(x, r, p):
    """Section 3, "Bipartite Soft Matching": pairs (token of A, token of B) to merge, the most similar first."""
    A, B = [t for t in range(len(x)) if t % 2 == 0], [t for t in range(len(x)) if t % 2 == 1]  # Step 1.
    edges = []
    for a in A:  # Step 2: one edge from each token of A to its most similar token in B.
        if a < p:
            continue
        most, similarity = None, -np.inf
        for b in B:
            cosine = x[a] @ x[b] / np.linalg.norm(x[a]) / np.linalg.norm(x[b])
            if b >= p and cosine > similarity:
                most, similarity = b, cosine
        edges.append((similarity, a, most))
    r = min(r, (len(x) - p) // 2)
    return [(a, b) for _, a, b in sorted(edges, reverse=True)[:r]]  # Step 3.


def merge(z, x, s, r, p):
    """Steps 4 and 5: merged tokens and sizes, ordered as prefix tokens, remaining tokens of A, then B."""
    totals, sizes = z * s[:, None], s.copy()
    gone = []
    for a, b in bipartite_soft_matching(x, r, p):
        totals[b] += z[a] * s[a]
        sizes[b] += s[a]
        gone.append(a)
    order = [t for t in range(len(z)) if t < p]
    order += [t for t in range(p, len(z)) if t % 2 == 0 and t not in gone]
    order += [t for t in range(p, len(z)) if t % 2 == 1]
    return (totals / sizes[:, None])[order], sizes[order]


def encoder_block(z, s, w, r, p, epsilon=1e-6):
    """A block for images (B, T, D) with sizes (B, T): attention as in eq. 1, merging by keys, then the MLP."""
    found = [_encoder_block(*image, w, r, p, epsilon) for image in zip(z, s, strict=True)]
    return tuple(np.stack(arrays) for arrays in zip(*found, strict=True))


def _encoder_block(z, s, w, r, p, epsilon):
    normalized = vit.norm(z, w, "attention_norm", epsilon)
    branch, keys = np.zeros_like(z) + w["attention/output/bias"], []
    for head in range(w["attention/query/kernel"].shape[1]):
        q, k, v = (
            normalized @ w[f"attention/{name}/kernel"][:, head] + w[f"attention/{name}/bias"][head]
            for name in ("query", "key", "value")
        )
        if "attention/query_norm/gamma" in w:
            q, k = (vit.norm(y, w, f"attention/{name}_norm", epsilon) for name, y in (("query", q), ("key", k)))
        A = vit.softmax(q @ k.T / np.sqrt(q.shape[-1]) + np.log(s))  # Eq. 1.
        branch = branch + A @ v @ w["attention/output/kernel"][head]
        keys.append(k)
    z, s = merge(z + branch * w.get("attention_scale/gamma", 1), np.mean(keys, axis=0), s, r, p)
    branch = vit.mlp(vit.norm(z, w, "mlp_norm", epsilon), vit.part(w, "mlp"))
    return z + branch * w.get("mlp_scale/gamma", 1), s


def model(x, w, r, pooling="token"):
    """A whole model, (B, H, W, C) to logits. The mean of patches is weighted by size, as in the authors' MAE code."""
    p = vit.prefix_tokens(w)[0].shape[1]
    z = vit.embed(x, w)
    s = np.ones(z.shape[:2])
    block = 0
    while f"encoder_block_{block}/mlp_norm/gamma" in w:
        z, s = encoder_block(z, s, vit.part(w, f"encoder_block_{block}"), r, p)
        block += 1
    z = vit.norm(z, w, "encoder_norm")
    if pooling == "avg":
        y = (z[:, p:] * s[:, p:, None]).sum(1) / s[:, p:].sum(1)[:, None]
    else:
        y = vit.attention_pooling(z, vit.part(w, "pooling")) if pooling == "map" else z[:, 0]
    if "distillation_predictions/kernel" in w:
        return (vit.dense(y, w, "predictions") + vit.dense(z[:, 1], w, "distillation_predictions")) / 2
    return vit.dense(y, w, "predictions")
