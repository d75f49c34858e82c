"""Resizing of position tables and patch kernels to other grids and patch sizes, by matrices.

Every method is linear and works along one axis at a time, so it is one small matrix for each axis: a map P becomes
R_h P R_w^T. The projects that publish weights resize in different ways; each has its name here.
"""

import math

import numpy as np

METHODS = ("align_corners", "bilinear", "bilinear_antialias", "bicubic", "bicubic_antialias", "bicubic_offset")
"""Ways to resize:

* `"align_corners"`: linear, corners onto corners, as `scipy.ndimage.zoom(order=1)`: Google's ViT, big_vision.
* `"bilinear"`: linear between the centres of pixels, as PyTorch's `interpolate`.
* `"bilinear_antialias"`: the same with a kernel that grows when shrinking, as `jax.image.resize`: FlexiViT.
* `"bicubic"`: cubic with a = -0.75, as PyTorch's `interpolate`: Hugging Face.
* `"bicubic_antialias"`: cubic with a = -0.5 and a kernel that grows when shrinking, as PyTorch's
  `interpolate(antialias=True)`: timm.
* `"bicubic_offset"`: `"bicubic"` at the scale (new size + 0.1) / size: DINO, DINOv2.
"""


def resize_matrix(size, new_size, method, xp=np):
    """The matrix that resizes one axis.

    Args:
        size: Length of the axis.
        new_size: Length that it gets. A tensor is accepted where `xp` accepts one.
        method: One of `METHODS`.
        xp: The module that computes: `numpy`, in float64, or `keras.ops`, in float32, for use inside a graph.

    Returns:
        (new_size, size), every row sums to 1.

    Raises:
        ValueError: If there is no such method.

    Example:

    >>> from keras_vit import resampling
    >>> print(resampling.resize_matrix(2, 3, "align_corners"))
    [[1.  0. ]
     [0.5 0.5]
     [0.  1. ]]
    """
    check_method(method)
    dtype = "float64" if xp is np else "float32"
    positions, step = _positions(size, new_size, method, xp, dtype)
    if method in ("bicubic", "bicubic_offset"):
        # Two more points at each end, which repeat the last one.
        weights = _cubic(xp.abs(positions[:, None] - xp.arange(-2, size + 2, dtype=dtype)), -0.75, xp)
        return xp.matmul(weights, np.eye(size, dtype=dtype)[np.clip(np.arange(-2, size + 2), 0, size - 1)])
    stretch = xp.maximum(step, 1.0) if method.endswith("antialias") else 1.0
    distances = xp.abs(positions[:, None] - xp.arange(size, dtype=dtype)) / stretch
    weights = _cubic(distances, -0.5, xp) if method == "bicubic_antialias" else xp.maximum(1.0 - distances, 0.0)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def grid_matrices(grid, new_grid, method, xp=np):
    """The matrices of both axes, R_h and R_w, for a map of the size `grid`; arguments as in `resize_matrix`."""
    sizes = list(zip(grid, new_grid, strict=True))
    matrices = [resize_matrix(size, new_size, method, xp) for size, new_size in sizes]
    if method != "bicubic_offset":
        return matrices
    # DINO's code leaves a table of the right size alone, and shifts both axes as soon as one is resized.
    is_same = (grid[0] == new_grid[0]) & (grid[1] == new_grid[1])
    exact = [resize_matrix(size, new_size, "bicubic", xp) for size, new_size in sizes]
    return [xp.where(is_same, *pair) for pair in zip(exact, matrices, strict=True)]


def resize_grid(table, grid, new_grid, method):
    """Resizes a table with one row for each place of a grid, such as a position embedding.

    Args:
        table: (h w, D), row by row.
        grid: (h, w)
        new_grid: (rows, columns) that the table is wanted for.
        method: One of `METHODS`.

    Returns:
        (rows x columns, D), computed in float64, of the table's dtype.

    Raises:
        ValueError: If the table does not have h w rows, or there is no such method.

    Example:

    >>> import numpy as np
    >>> from keras_vit import resampling
    >>> table = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> print(resampling.resize_grid(table, (2, 2), (2, 3), "align_corners")[:, 0])
    [ 0.   0.5  1.  10.  10.5 11. ]
    """
    table = np.asarray(table)
    if table.ndim != 2 or len(table) != math.prod(grid):
        raise ValueError(
            f"A table for a grid of {grid[0]} x {grid[1]} has the shape ({math.prod(grid)}, width). Received: shape "
            f"{table.shape}. Leave out the rows of tokens that stand outside the grid, and give the table's own grid."
        )
    rows, columns = grid_matrices(grid, new_grid, method)
    resized = _apply(rows, columns, table.reshape(*grid, -1))
    return resized.reshape(-1, table.shape[-1]).astype(table.dtype)


def resize_patches(kernel, patch_shape, method="bilinear"):
    """Resizes the kernel of a patch embedding, so that resized patches give the same tokens.

    FlexiViT's pseudo-inverse resize (arXiv 2212.08013): where B resizes patches, the kernel w becomes `pinv(B^T) w`.
    Where patches grow, `<B x, pinv(B^T) w>` is `<x, w>` for every patch x.

    Args:
        kernel: (P, Q, C, D), patch height and width, channels, width of the tokens.
        patch_shape: (height, width) of the new patches.
        method: How patches are resized, one of `METHODS`.

    Returns:
        (height, width, C, D), computed in float64, of the kernel's dtype.

    Raises:
        ValueError: If the kernel is not of this shape, or there is no such method.

    Example:

    >>> import numpy as np
    >>> from keras_vit import resampling
    >>> resampling.resize_patches(np.ones((16, 16, 3, 8)), (14, 12)).shape
    (14, 12, 3, 8)
    """
    kernel = np.asarray(kernel)
    if kernel.ndim != 4:
        raise ValueError(
            f"A kernel of patches has the shape (height, width, channels, width of the tokens). Received: shape "
            f"{kernel.shape}"
        )
    # The pseudo-inverse of the resize along both axes is that along each axis (of a Kronecker product).
    rows, columns = (np.linalg.pinv(matrix.T) for matrix in grid_matrices(kernel.shape[:2], patch_shape, method))
    flat = _apply(rows, columns, kernel.reshape(*kernel.shape[:2], -1))
    return flat.reshape(*patch_shape, *kernel.shape[2:]).astype(kernel.dtype)


def check_method(method):
    """Refuses what is not one of `METHODS`."""
    if method not in METHODS:
        raise ValueError(f"{method!r} is not a way to interpolate. Available: {', '.join(map(repr, METHODS))}")


def _positions(size, new_size, method, xp, dtype):
    """Where the new points lie, in units of the old ones, and the step from one to the next."""
    indices = xp.arange(new_size, dtype=dtype)
    length = xp.array(new_size, dtype=dtype)
    if method == "align_corners":
        # Not multiplied with the step, which would round: the last point falls onto the last one exactly.
        intervals = xp.maximum(length - 1.0, 1.0)
        return indices * (size - 1) / intervals, (size - 1) / intervals
    step = size / (length + 0.1 if method == "bicubic_offset" else length)
    return (indices + 0.5) * step - 0.5, step


def _cubic(distances, a, xp):
    """Keys' cubic convolution (doi.org/10.1109/TASSP.1981.1163711, eq. 4) at distances from its centre."""
    inner = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    outer = a * (((distances - 5) * distances + 8) * distances - 4)
    return xp.where(distances < 1, inner, xp.where(distances < 2, outer, 0.0))


def _apply(rows, columns, maps):
    """R_h P R_w^T for each channel of (h, w, D)."""
    return np.einsum("hi,wj,ijd->hwd", rows, columns, maps, optimize=True)
