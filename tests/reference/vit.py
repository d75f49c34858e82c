"""The equations of the Vision Transformer (arXiv 2010.11929) in NumPy, float64, written from the paper.

Legend: x image (H, W, C); P, Q patch height and width; N patches; D width; k heads; D_h = D / k; L blocks; z tokens;
E patch projection; x_class class token; E_pos positions; q, k, v queries, keys, values; A attention weights. Leading
axes before the ones named are batches. `w` maps the names of a part's weights to arrays.
"""

import numpy as np
import scipy.special

from tests.reference import positions


def patchify(x, P, Q):
    """(..., H, W, C) to (..., N, P Q C): patches row by row, each flattened (row, column, channel)."""
    H, W, _ = x.shape[-3:]
    patches = [
        x[..., row : row + P, column : column + Q, :].reshape(*x.shape[:-3], -1)
        for row in range(0, H - P + 1, P)
        for column in range(0, W - Q + 1, Q)
    ]
    return np.stack(patches, axis=-2)


def layer_norm(x, gamma, beta, epsilon=1e-6):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def gelu_tanh(x):
    """arXiv 1606.08415, the approximation in its section 2."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    """x Phi(x) (arXiv 1606.08415), Phi the distribution function of the standard normal."""
    return x * scipy.special.ndtr(x)


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def self_attention(z, U_q, U_k, U_v, b_q, b_k, b_v):
    """Eqs. 5 to 7, one head: U (D, D_h), b (D_h,)."""
    q, k, v = z @ U_q + b_q, z @ U_k + b_k, z @ U_v + b_v
    A = softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(U_q.shape[1]))
    return A @ v


def multi_head_self_attention(z, w):
    """Eq. 8: the heads one after the other, side by side, times U_msa (k D_h, D)."""
    heads = [
        self_attention(
            z,
            *(w[f"{name}/kernel"][:, head] for name in ("query", "key", "value")),
            *(w[f"{name}/bias"][head] for name in ("query", "key", "value")),
        )
        for head in range(w["query/kernel"].shape[1])
    ]
    U_msa = np.concatenate(list(w["output/kernel"]), axis=0)
    return np.concatenate(heads, axis=-1) @ U_msa + w["output/bias"]


def mlp(z, w, gelu=gelu_tanh):
    return gelu(z @ w["hidden/kernel"] + w["hidden/bias"]) @ w["output/kernel"] + w["output/bias"]


def encoder_block(z, w, gelu=gelu_tanh, epsilon=1e-6, scale_attention=1, scale_mlp=1):
    """Eqs. 2 and 3. The scales stand for stochastic depth: 0 drops a branch, 1 / (1 - rate) keeps it."""
    z = z + scale_attention * multi_head_self_attention(
        layer_norm(z, w["attention_norm/gamma"], w["attention_norm/beta"], epsilon), part(w, "attention")
    )
    return z + scale_mlp * mlp(layer_norm(z, w["mlp_norm/gamma"], w["mlp_norm/beta"], epsilon), part(w, "mlp"), gelu)


def embed(x, w, position_embedding="learned_1d", prefix_rows=None):
    """Eq. 1: (B, H, W, C) to z_0. The table of positions is interpolated where the image has another grid."""
    kernel = w["patch_embedding/kernel"]
    P, Q, _, D = kernel.shape
    grid = x.shape[-3] // P, x.shape[-2] // Q
    z = patchify(x, P, Q) @ kernel.reshape(-1, D) + w["patch_embedding/bias"]
    front = 0
    if "class_token/token" in w:
        x_class = np.broadcast_to(w["class_token/token"], (len(x), 1, D))
        z, front = np.concatenate([x_class, z], axis=1), 1
    if position_embedding == "sincos_2d":
        z[:, front:] += positions.sincos_2d(*grid, D)
    elif position_embedding == "learned_1d":
        E_pos, old_grid = w["position_embedding/embedding"], w.get("grid", grid)
        num_prefix = front if prefix_rows is None else prefix_rows
        z[:, :num_prefix] += E_pos[:num_prefix]
        z[:, front:] += positions.interpolate(E_pos[num_prefix:], old_grid, grid)
    return z


def vit(x, w, gelu=gelu_tanh, pooling="token", epsilon=1e-6, **embedding):
    """Eqs. 1 to 4 and the head: images (B, H, W, C) to logits (B, classes), or tokens for `pooling=None`."""
    z = embed(x, w, **embedding)
    num_blocks = 1 + max(int(name.split("/")[0].split("_")[-1]) for name in w if name.startswith("encoder_block_"))
    for i in range(num_blocks):
        z = encoder_block(z, part(w, f"encoder_block_{i}"), gelu, epsilon)
    z = layer_norm(z, w["encoder_norm/gamma"], w["encoder_norm/beta"], epsilon)
    if pooling is None:
        return z
    y = z[:, 0] if pooling == "token" else z[:, int("class_token/token" in w) :].mean(1)
    if "pre_logits/kernel" in w:
        y = np.tanh(y @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return y @ w["predictions/kernel"] + w["predictions/bias"] if "predictions/kernel" in w else y


def part(w, name):
    """The weights under one name."""
    return {key.removeprefix(f"{name}/"): value for key, value in w.items() if key.startswith(f"{name}/")}


def num_parameters(D, L, M, P, N, K, C=3, class_token=True):
    """The number of weights, term by term: width D, depth L, MLP width M, patch side P, N patches, K classes."""
    embedding = P * P * C * D + D
    tokens = D + (N + 1) * D if class_token else N * D
    attention, mlp_block, norms = 4 * (D * D + D), D * M + M + M * D + D, 2 * 2 * D
    return embedding + tokens + L * (attention + mlp_block + norms) + 2 * D + (D * K + K)


def num_macs(D, L, M, P, N, K, C=3, class_token=True):
    """Multiply-accumulates for one image, term by term; letters as in `num_parameters`."""
    T = N + 1 if class_token else N
    attention, mlp_block = T * 4 * D * D + 2 * T * T * D, 2 * T * D * M
    return N * P * P * C * D + L * (attention + mlp_block) + D * K
