"""The equations of the Vision Transformer (arXiv 2010.11929) in NumPy, float64, written from the paper.

Legend: x image (H, W, C); P, Q patch height and width; N patches; D width; k heads; D_h = D / k; L blocks; z tokens;
p prefix tokens; E_pos positions; q, k, v queries, keys, values; A attention weights. Additional leading axes are
batches. `w` maps the names of a part's weights to arrays.
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


def norm(x, w, name, epsilon=1e-6):
    return layer_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], epsilon)


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def gelu_tanh(x):
    """arXiv 1606.08415, the approximation in its section 2."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    """x Phi(x) (arXiv 1606.08415). Phi is the distribution function of the standard normal distribution."""
    return x * scipy.special.ndtr(x)


def quick_gelu(x):
    """x sigmoid(1.702 x) (arXiv 1606.08415, section 2)."""
    return x / (1 + np.exp(-1.702 * x))


def swiglu(x):
    """SiLU(a) b for the halves a, b of x (arXiv 2002.05202, in DINOv2's layout)."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return a / (1 + np.exp(-a)) * b


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention(q, k, v, r=None):
    """Eqs. 6 and 7 for one head: q (t, D_h), k and v (T, D_h). Relative positions r follow appendix D.4."""
    logits = q @ np.swapaxes(k, -1, -2)
    if r is not None:
        logits = logits + positions.relative_logits(q, r)
    return softmax(logits / np.sqrt(q.shape[-1])) @ v


def projected(x, w, name, head, epsilon=1e-6):
    """Eq. 5: queries, keys or values of one head, without a bias if `w` has none.

    With norms in `w`, queries and keys are normalised (arXiv 2302.05442, section 2).
    """
    y = x @ w[f"{name}/kernel"][:, head]
    y = y + w[f"{name}/bias"][head] if f"{name}/bias" in w else y
    return norm(y, w, f"{name}_norm", epsilon) if f"{name}_norm/gamma" in w else y


def queries_and_keys(z, w, head, asking=None, epsilon=1e-6, rotary=None, grid=None):
    """Queries (..., t, D_h) and keys (..., T, D_h) of one head. Patches are rotated if there is a `RotaryConfig`."""
    q, k = projected(z if asking is None else asking, w, "query", head, epsilon), projected(z, w, "key", head, epsilon)
    if rotary is not None:
        p, frequencies = z.shape[-2] - grid[0] * grid[1], w.get("rotary/frequencies")
        own = None if frequencies is None else frequencies[:, head]
        theta = positions.rotary_angles(grid, p, q.shape[-1], rotary, own)
        q, k = (positions.rotated(y, theta[: y.shape[-2]], rotary.layout) for y in (q, k))
    return q, k


def multi_head_self_attention(z, w, asking=None, epsilon=1e-6, rotary=None, grid=None):
    """Eqs. 5 and 8: each head's output, concatenated, times U_msa (k D_h, D).

    Queries are computed from `asking`, if given; with rotary positions, these are the first tokens of z. With a norm in
    `w`, the concatenated outputs are normalised (arXiv 2210.06423).
    """
    heads = []
    for head in range(w["query/kernel"].shape[1]):
        q, k = queries_and_keys(z, w, head, asking, epsilon, rotary, grid)
        heads.append(attention(q, k, projected(z, w, "value", head), w.get("relative_position/embedding")))
    y = np.concatenate(heads, axis=-1)
    y = norm(y, w, "inner_norm", epsilon) if "inner_norm/gamma" in w else y
    return y @ np.concatenate(list(w["output/kernel"]), axis=0) + w["output/bias"]


def mlp(z, w, activation=gelu_tanh, epsilon=1e-6):
    """Two layers, with a norm between them if `w` has its weights (arXiv 2210.06423)."""
    y = activation(dense(z, w, "hidden"))
    y = norm(y, w, "inner_norm", epsilon) if "inner_norm/gamma" in w else y
    return dense(y, w, "output")


def encoder_block(
    z, w, activation=gelu_tanh, epsilon=1e-6, scale_attention=1, scale_mlp=1, block_norm="pre", rotary=None, grid=None
):
    """Eqs. 2 and 3, with LayerScale (arXiv 2103.17239, section 2.1) if `w` has its weights.

    The scales express stochastic depth: 0 drops a branch, 1 / (1 - rate) keeps it. With `block_norm="post"`, each
    branch is normalised instead of its input (EVA-02-CLIP-E of arXiv 2303.15389).
    """

    def attend(x):
        return multi_head_self_attention(x, part(w, "attention"), None, epsilon, rotary, grid)

    def transform(x):
        return mlp(x, part(w, "mlp"), activation, epsilon)

    for name, branch, scale in (("attention", attend, scale_attention), ("mlp", transform, scale_mlp)):
        if block_norm == "pre":
            y = branch(norm(z, w, f"{name}_norm", epsilon))
        else:
            y = norm(branch(z), w, f"{name}_norm", epsilon)
        z = z + scale * y * w.get(f"{name}_scale/gamma", 1)
    return z


def axial_encoder_block(z, w, grid, *arguments):
    """Appendix D.6: a block within each row of the grid (h, w), then a block within each column."""
    grid_z = z.reshape(len(z), *grid, -1)
    for row in range(grid[0]):
        grid_z[:, row] = encoder_block(grid_z[:, row], part(w, "row"), *arguments)
    for column in range(grid[1]):
        grid_z[:, :, column] = encoder_block(grid_z[:, :, column], part(w, "column"), *arguments)
    return grid_z.reshape(z.shape)


def attention_pooling(z, w, activation=gelu_tanh, epsilon=1e-6):
    """MAP head of arXiv 2106.04560, section 3.3, as in big_vision: a probe attends to tokens, then an MLP."""
    probe = np.broadcast_to(w["probe"], (len(z), *w["probe"].shape[1:]))
    y = multi_head_self_attention(z, part(w, "attention"), probe)[:, 0]
    return y + mlp(norm(y, w, "norm", epsilon), part(w, "mlp"), activation)


def prefix_tokens(w):
    """(1, p, D): prefix tokens, and the number of class and distillation tokens among them."""
    classes = [w[f"{name}/token"] for name in ("class_token", "distillation_token") if f"{name}/token" in w]
    registers = [w["register_tokens/tokens"]] if "register_tokens/tokens" in w else []
    none = np.zeros((1, 0, w["patch_embedding/kernel"].shape[-1]))
    return np.concatenate([none, *classes, *registers], axis=1), len(classes)


def grid_of(x, w):
    """(h, w): grid of the patches of images (B, H, W, C)."""
    P, Q, _, _ = w["patch_embedding/kernel"].shape
    return x.shape[-3] // P, x.shape[-2] // Q


def embed(x, w, position_embedding="learned_1d", prefix_rows=None, name="position_embedding"):
    """Eq. 1: (B, H, W, C) to z_0."""
    kernel = w["patch_embedding/kernel"]
    P, Q, _, D = kernel.shape
    z = patchify(x, P, Q) @ kernel.reshape(-1, D) + w.get("patch_embedding/bias", 0)
    prefix, _ = prefix_tokens(w)
    z = np.concatenate([np.broadcast_to(prefix, (len(x), *prefix.shape[1:])), z], axis=1)
    return add_positions(z, w, grid_of(x, w), position_embedding, prefix_rows, name)


def add_positions(z, w, grid, position_embedding, prefix_rows, name):
    """Adds positions to tokens. Tables made for another grid, `w["grid"]`, are interpolated."""
    prefix, num_classes = prefix_tokens(w)
    front, old_grid = prefix.shape[1], w.get("grid", grid)
    num_rows = num_classes if prefix_rows is None else prefix_rows
    z = z.copy()
    if position_embedding == "sincos_2d":
        z[:, front:] += positions.sincos_2d(*grid, z.shape[-1])
    elif position_embedding == "learned_1d":
        E_pos = w[f"{name}/embedding"]
        z[:, :num_rows] += E_pos[:num_rows]
        z[:, front:] += positions.interpolate(E_pos[num_rows:], old_grid, grid)
    elif position_embedding == "learned_2d":
        z[:, :num_rows] += w.get(f"{name}/prefix", 0)
        X, Y = (
            positions.interpolate(w[f"{name}/{side}"], (old_grid[axis], 1), (grid[axis], 1))
            for side, axis in (("columns", 1), ("rows", 0))
        )
        z[:, front:] += positions.learned_2d(X, Y)
    return z


def vit(
    x,
    w,
    activation=gelu_tanh,
    pooling="token",
    epsilon=1e-6,
    position_embedding="learned_1d",
    position_placement="stem",
    prefix_rows=None,
    block_norm="pre",
    rotary=None,
    pool_prefix_tokens=False,
):
    """Eqs. 1 to 4 and the head: images (B, H, W, C) to logits (B, classes), or tokens for `pooling=None`.

    The weights in `w` determine the optional parts. Two classifiers give the mean of their logits (arXiv 2012.12877).
    Positions are added before the first block, or before every block, with separate or shared tables (appendix D.4).
    """
    kind, name = (position_embedding, prefix_rows), "position_embedding"
    z = embed(x, w, *kind, f"{name}_0" if position_placement == "every_layer" else name)
    if "pre_norm/gamma" in w:
        z = norm(z, w, "pre_norm", epsilon)
    num_blocks = 1 + max(int(name.split("/")[0].split("_")[-1]) for name in w if name.startswith("encoder_block_"))
    for i in range(num_blocks):
        if i and position_placement != "stem":
            own = f"{name}_{i}" if position_placement == "every_layer" else name
            z = add_positions(z, w, grid_of(x, w), *kind, own)
        block = part(w, f"encoder_block_{i}")
        if any(path.startswith("row/") for path in block):
            z = axial_encoder_block(z, block, grid_of(x, w), activation, epsilon)
        else:
            z = encoder_block(z, block, activation, epsilon, block_norm=block_norm, rotary=rotary, grid=grid_of(x, w))
    if "encoder_norm/gamma" in w:
        z = norm(z, w, "encoder_norm", epsilon)
    pooled = z if pooling in ("token", None) or pool_prefix_tokens else z[:, prefix_tokens(w)[0].shape[1] :]
    y = pool(pooled, w, pooling, activation, epsilon)
    if "pre_logits/kernel" in w:
        y = np.tanh(dense(y, w, "pre_logits"))
    if "distillation_predictions/kernel" in w:
        return (dense(y, w, "predictions") + dense(z[:, 1], w, "distillation_predictions")) / 2
    return dense(y, w, "predictions") if "predictions/kernel" in w else y


def pool(z, w, pooling, activation, epsilon):
    """The pooled tokens (B, T, D) to (B, D), or unchanged for `pooling=None`."""
    if pooling is None:
        return z
    if pooling == "map":
        y = attention_pooling(z, part(w, "pooling"), activation, epsilon)
    else:
        y = z[:, 0] if pooling == "token" else z.mean(1)
    return norm(y, w, "pooled_norm", epsilon) if "pooled_norm/gamma" in w else y


def part(w, name):
    """The weights under one name."""
    return {key.removeprefix(f"{name}/"): value for key, value in w.items() if key.startswith(f"{name}/")}


def num_parameters(D, L, M, P, N, K, C=3, class_token=True):
    """Number of weights, term by term: width D, depth L, MLP width M, patch side P, N patches, K classes."""
    embedding = P * P * C * D + D
    tokens = D + (N + 1) * D if class_token else N * D
    attention, mlp_block, norms = 4 * (D * D + D), D * M + M + M * D + D, 2 * 2 * D
    return embedding + tokens + L * (attention + mlp_block + norms) + 2 * D + (D * K + K)


def num_macs(D, L, M, P, N, K, C=3, class_token=True):
    """Multiply-accumulates for one image, term by term. The letters are those of `num_parameters`."""
    T = N + 1 if class_token else N
    attention, mlp_block = T * 4 * D * D + 2 * T * T * D, 2 * T * D * M
    return N * P * P * C * D + L * (attention + mlp_block) + D * K
