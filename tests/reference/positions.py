"""Position embeddings in NumPy, float64.

Legend: h, w rows and columns of patches; D width; omega frequencies; E_pos rows of the table, patches row by row; X, Y
tables of the columns and the rows; T tokens; r rows of relative positions.
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
