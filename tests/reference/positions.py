"""Position embeddings in NumPy, float64.

Legend: h, w rows and columns of patches; D width; omega frequencies; E_pos rows of the table, patches row by row; X, Y
tables of the columns and the rows; T tokens; r rows of relative positions; D_h width of a head; theta angles; p prefix
tokens.
"""

import numpy as np


def sincos_2d(h, w, D, temperature=10_000.0):
    """(h w, D): sines and cosines of the column, then of the row ("Better plain ViT baselines", arXiv 2205.01580)."""
    omega = [1 / temperature ** (i / (D // 4 - 1)) for i in range(D // 4)]
    return np.array(
        [
            [f(position * o) for position, f in ((x, np.sin), (x, np.cos), (y, np.sin), (y, np.cos)) for o in omega]
            for y in range(h)
            for x in range(w)
        ]
    )


def learned_2d(X, Y):
    """(h w, D) from tables (w, D/2) and (h, D/2): "concatenate the X and Y embedding" (ViT, appendix D.4)."""
    return np.array([[*X[x], *Y[y]] for y in range(len(Y)) for x in range(len(X))])


def relative_logits(q, r):
    """(..., t, s) from queries (..., T, D_h): q_t r_{t-s} (ViT, appendix D.4). The first row of r belongs to 1 - T."""
    T = q.shape[-2]
    columns = [np.stack([q[..., t, :] @ r[t - s + T - 1] for t in range(T)], axis=-1) for s in range(T)]
    return np.stack(columns, axis=-1)


def coordinates(h, w, rotary):
    """(h w, 2): (y, x) of each patch, row by row.

    "normalized": arXiv 2508.10104 and its code, from -1 to 1 in each axis, times 2 pi. "grid": indices plus an offset,
    scaled to the reference grid (arXiv 2303.11331 and its code).
    """
    places = []
    for r in range(h):
        for c in range(w):
            if rotary.coordinates == "normalized":
                places.append([2 * np.pi * (2 * (k + 0.5) / n - 1) for k, n in ((r, h), (c, w))])
            else:
                to = rotary.reference_grid or (h, w)
                places.append([(k + rotary.offset) * m / n for k, n, m in ((r, h, to[0]), (c, w, to[1]))])
    return np.array(places)


def rotary_angles(grid, p, D_h, rotary, frequencies=None):
    """(p + h w, D_h / 2): the angle theta of each pair of a head's channels; prefix tokens are not rotated.

    arXiv 2403.13298, section 3.2. Axial: half of the pairs belong to one axis, half to the other (in this order, as in
    its code), with the frequencies base^(-t / (D_h / 4)), t = 0 ... D_h / 4 - 1. Mixed: each pair has two learned
    frequencies, `frequencies` (2, D_h / 2) of a head.
    """
    order = [0, 1] if rotary.axis_order == "yx" else [1, 0]
    theta = [np.zeros(D_h // 2)] * p
    for place in coordinates(*grid, rotary):
        first, second = place[order]
        if rotary.kind == "mixed":
            theta.append(first * frequencies[0] + second * frequencies[1])
        else:
            omega = [rotary.base ** (-t / (D_h / 4)) for t in range(D_h // 4)]
            theta.append(np.array([first * o for o in omega] + [second * o for o in omega]))
    return np.array(theta)


def rotated(x, theta, layout):
    """(..., T, D_h): each pair of channels is a complex number, multiplied by e^(i theta) (arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    first, second = (slice(0, half), slice(half, None)) if layout == "half" else (slice(0, None, 2), slice(1, None, 2))
    numbers = (x[..., first] + 1j * x[..., second]) * np.exp(1j * theta)
    y = np.empty_like(x)
    y[..., first], y[..., second] = numbers.real, numbers.imag
    return y


def interpolate(E_pos, grid, new_grid):
    """Linear interpolation along rows, then columns, with aligned corners: (h w, D) to (h' w', D)."""
    table = E_pos.reshape(*grid, -1)
    for axis, (size, new_size) in enumerate(zip(grid, new_grid, strict=True)):
        places = np.linspace(0, size - 1, new_size) if new_size > 1 else np.zeros(1)
        lower = np.minimum(np.floor(places).astype(int), max(size - 2, 0))
        upper = np.minimum(lower + 1, size - 1)
        share = (places - lower).reshape(-1, *[1] * (2 - axis))
        table = np.take(table, lower, axis) * (1 - share) + np.take(table, upper, axis) * share
    return table.reshape(-1, E_pos.shape[-1])
