"""AxialResNet in NumPy, float64, from Axial-DeepLab (arXiv 2003.07853): equation 4 and section 3.3, at inference.

The norms are placed as in the authors' code, csrhddlam/axial-deeplab.

Legend: x maps (B, H, W, C), in equation 4 lines (..., N, C); w weights of a part by name; k heads; q, k, v queries,
keys, values of one head; o query position; p key position; s stride.
"""

import numpy as np

from tests.reference.bit_resnet import relu, windows_of_bit
from tests.reference.vit import part, softmax


def batch_norm(x, w, name):
    mean, variance = w[f"{name}/moving_mean"], w[f"{name}/moving_variance"]
    return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def attend(x, w, k):
    """Position-sensitive attention in lines (..., N, C), looping over heads and positions."""
    N = x.shape[-2]
    projected = batch_norm(x @ w["projection/kernel"], w, "projection_norm")
    heads = np.split(projected, k, axis=-1)
    size = heads[0].shape[-1] // 4
    cuts = [size, 2 * size]
    r_q, r_k, r_v = np.split(w["relative_embedding"], cuts, axis=-1)  # Row p - o + N - 1 belongs to distance p - o.
    content, position = [], []
    for head, h in enumerate(heads):
        q, key, v = np.split(h, cuts, axis=-1)
        terms = np.zeros((*x.shape[:-2], N, N, 3 * k))
        for o in range(N):
            for p in range(N):
                d = p - o + N - 1
                terms[..., o, p, head] = (q[..., o, :] * key[..., p, :]).sum(-1)
                terms[..., o, p, k + head] = (q[..., o, :] * r_q[d]).sum(-1)
                terms[..., o, p, 2 * k + head] = (key[..., p, :] * r_k[d]).sum(-1)
        A = softmax(batch_norm(terms, w, "logit_norm")[..., head::k].sum(-1))
        content.append(A @ v)
        position.append(np.stack([A[..., o, :] @ r_v[N - 1 - o : 2 * N - 1 - o] for o in range(N)], axis=-2))
    y = batch_norm(np.concatenate(content + position, axis=-1), w, "output_norm")
    return y[..., : y.shape[-1] // 2] + y[..., y.shape[-1] // 2 :]


def axial_attention(x, w, axis, k):
    if axis == "width":
        return attend(x, w, k)
    return attend(x.swapaxes(1, 2), w, k).swapaxes(1, 2)


def mean_pooling(x, s):
    B, H, W, C = x.shape
    return x.reshape(B, H // s, s, W // s, s, C).mean((2, 4))


def axial_unit(x, w, s, k):
    y = relu(batch_norm(x @ w["conv_1/kernel"][0, 0], w, "norm_1"))
    y = axial_attention(y, part(w, "height_attention"), "height", k)
    y = axial_attention(y, part(w, "width_attention"), "width", k)
    y = relu(mean_pooling(y, s))
    y = batch_norm(y @ w["conv_2/kernel"][0, 0], w, "norm_2")
    if "projection_conv/kernel" in w:
        x = batch_norm(x[:, ::s, ::s] @ w["projection_conv/kernel"][0, 0], w, "projection_norm")
    return relu(x + y)


def axial_resnet_logits(x, w, stage_depths, k):
    """Logits of images (B, H, W, C) from a whole AxialResNet."""
    x = np.einsum("bhwcij,ijcf->bhwf", windows_of_bit(x, 7, 2), w["stem_conv/kernel"], optimize=True)
    x = windows_of_bit(relu(batch_norm(x, w, "stem_norm")), 3, 2).max((-1, -2))
    for stage, depth in enumerate(stage_depths):
        for unit in range(depth):
            s = 2 if stage > 0 and unit == 0 else 1
            x = axial_unit(x, part(w, f"stage_{stage}_unit_{unit}"), s, k)
    return x.mean((1, 2)) @ w["predictions/kernel"] + w["predictions/bias"]
