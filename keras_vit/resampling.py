"""Resizes position tables to other grids, and patch kernels to other patch sizes. Both are multiplied by matrices.

Every method is linear and works along one axis at a time. If a matrix R_h resizes the height of a map P, and a matrix
R_w resizes its width, the resized map is R_h P R_w^T. The projects that publish weights use different methods, see
`METHODS`.
"""

import math

import numpy as np

METHODS = (
    *("align_corners", "bilinear", "bilinear_antialias", "bicubic", "bicubic_antialias", "bicubic_offset"),
    *("bilinear_square", "bicubic_antialias_square"),
)
"""Methods to resize:

* `"align_corners"`: linear with aligned corners, as in `scipy.ndimage.zoom(order=1)`. Used by Google's ViT, big_vision.
* `"bilinear"`: linear between the centres of pixels, as in PyTorch's `interpolate`.
* `"bilinear_antialias"`: `"bilinear"` with a wider kernel for downsampling, as in `jax.image.resize`. Used by FlexiViT.
* `"bicubic"`: cubic with a = -0.75, as in PyTorch's `interpolate`. Used by Hugging Face.
* `"bicubic_antialias"`: cubic with a = -0.5 and a wider kernel for downsampling, as in PyTorch's
  `interpolate(antialias=True)`. Used by timm.
* `"bicubic_offset"`: `"bicubic"` at the scale (new size + 0.1) / size. Used by DINO, DINOv2.
* `"bilinear_square"`, `"bicubic_antialias_square"`: the same to a square with the longer side of the new grid. Only the
  first rows and columns are kept. Used by timm's NaFlexViTs that keep the proportions of positions (`par`).
"""


def resize_matrix(size, new_size, method, xp=np):
    """Returns the matrix that resizes one axis.

    Args:
        size: Length of the axis.
        new_size: New length of the axis. It may be a tensor if `xp` is `keras.ops`.
        method: One of `METHODS`.
        xp: Array module: `numpy` for float64, or `keras.ops` for float32, which also works inside a graph.

    Returns:
        An array (new_size, size). Every row sums to 1.

    Raises:
        ValueError: If the method does not exist.

    Example:

    >>> from keras_vit import resampling
    >>> print(resampling.resize_matrix(2, 3, "align_corners"))
    [[1.  0. ]
     [0.5 0.5]
     [0.  1. ]]
    """
    check_method(method)
    return _weights(xp.arange(new_size, dtype=_dtype(xp)), size, new_size, method.removesuffix("_square"), xp)


def grid_matrices(grid, new_grid, method, xp=np):
    """Returns the matrices R_h and R_w that resize a map from `grid` to `new_grid`. Arguments as in `resize_matrix`."""
    return grid_weights([xp.arange(size, dtype=_dtype(xp)) for size in new_grid], grid, new_grid, method, xp)


def grid_weights(positions, grid, new_grid, method, xp=np):
    """Returns rows of the matrices that resize maps from `grid` to `new_grid`, which can differ for each position.

    Args:
        positions: The rows and the columns of positions in the new grid, two float tensors of the same shape S.
        grid: (h, w)
        new_grid: The heights and the widths of the new grid, two numbers or tensors that broadcast to S.
        method, xp: As in `resize_matrix`.

    Returns:
        The weights of the rows of the old grid, (*S, h), and of its columns, (*S, w). Every set of weights sums to 1.
    """
    check_method(method)
    is_same = xp.array((grid[0] == new_grid[0]) & (grid[1] == new_grid[1]))
    if method.endswith("_square"):
        longest = xp.maximum(*(xp.array(size, dtype=_dtype(xp)) for size in new_grid))
        new_grid, method = [xp.where(is_same, size, longest) for size in new_grid], method.removesuffix("_square")
    axes = list(zip(positions, grid, new_grid, strict=True))
    weights = [_weights(*axis, method, xp) for axis in axes]
    if method != "bicubic_offset":
        return weights
    # DINO's code does not change the table if both sizes stay the same. Otherwise it adds 0.1 to both new sizes.
    exact = [_weights(*axis, "bicubic", xp) for axis in axes]
    return [xp.where(is_same[..., None], *pair) for pair in zip(exact, weights, strict=True)]


def _dtype(xp):
    return "float64" if xp is np else "float32"


def _weights(indices, size, new_size, method, xp):
    """The weights (*S, size) of the points of an axis for the new points with indices of the shape S."""
    dtype = _dtype(xp)
    positions, step = (
        xp.array(each, dtype=dtype)[..., None] for each in _positions(indices, size, new_size, method, xp, dtype)
    )
    if method in ("bicubic", "bicubic_offset"):
        # Two points are added at each end. They have the value of the first or last point.
        weights = _cubic(xp.abs(positions - xp.arange(-2, size + 2, dtype=dtype)), -0.75, xp)
        return xp.matmul(weights, np.eye(size, dtype=dtype)[np.clip(np.arange(-2, size + 2), 0, size - 1)])
    stretch = xp.maximum(step, 1.0) if method.endswith("antialias") else 1.0
    distances = xp.abs(positions - xp.arange(size, dtype=dtype)) / stretch
    weights = _cubic(distances, -0.5, xp) if method == "bicubic_antialias" else xp.maximum(1.0 - distances, 0.0)
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def resize_grid(table, grid, new_grid, method):
    """Resizes a table with one row for each position of a grid, such as a position embedding.

    Args:
        table: (h w, D), row by row.
        grid: (h, w)
        new_grid: (rows, columns) of the resized table.
        method: One of `METHODS`.

    Returns:
        (rows x columns, D), computed in float64 and converted to the table's dtype.

    Raises:
        ValueError: If the table does not have h w rows, or the method does not exist.

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
            f"{table.shape}. Leave out the rows of tokens outside the grid, and check that the grid fits the table."
        )
    rows, columns = grid_matrices(grid, new_grid, method)
    resized = _apply(rows, columns, table.reshape(*grid, -1))
    return resized.reshape(-1, table.shape[-1]).astype(table.dtype)


def resize_patches(kernel, patch_shape, method="bilinear"):
    """Resizes the kernel of a patch embedding such that resized patches give the same tokens as the original patches.

    This is FlexiViT's pseudo-inverse resize (arXiv 2212.08013). If the matrix B resizes patches, the kernel w becomes
    `pinv(B^T) w`. If patches are enlarged, `<B x, pinv(B^T) w>` equals `<x, w>` for every patch x.

    Args:
        kernel: (P, Q, C, D), patch height and width, channels, width of the tokens.
        patch_shape: (height, width) of the new patches.
        method: Method that resizes patches, one of `METHODS`.

    Returns:
        (height, width, C, D), computed in float64 and converted to the kernel's dtype.

    Raises:
        ValueError: If the kernel does not have four axes, or the method does not exist.

    Example:

    >>> import numpy as np
    >>> from keras_vit import resampling
    >>> resampling.resize_patches(np.ones((16, 16, 3, 8)), (14, 12)).shape
    (14, 12, 3, 8)
    """
    kernel = np.asarray(kernel)
    if kernel.ndim != 4:
        raise ValueError(
            f"A patch kernel has the shape (height, width, channels, width of the tokens). Received: shape "
            f"{kernel.shape}"
        )
    # B is the Kronecker product of one matrix per axis. Its pseudo-inverse is the Kronecker product of the
    # pseudo-inverses of these matrices, so each axis is resized separately.
    rows, columns = (np.linalg.pinv(matrix.T) for matrix in grid_matrices(kernel.shape[:2], patch_shape, method))
    flat = _apply(rows, columns, kernel.reshape(*kernel.shape[:2], -1))
    return flat.reshape(*patch_shape, *kernel.shape[2:]).astype(kernel.dtype)


def check_method(method):
    """Checks that a method is one of `METHODS`."""
    if method not in METHODS:
        raise ValueError(f"{method!r} is not an interpolation method. Available: {', '.join(map(repr, METHODS))}")


def _positions(indices, size, new_size, method, xp, dtype):
    """The positions of the new points, in units of the old grid, and the distance between two new points."""
    length = xp.array(new_size, dtype=dtype)
    if method == "align_corners":
        # The division comes after the product, so that rounding does not move the last point of the new grid.
        intervals = xp.maximum(length - 1.0, 1.0)
        return indices * (size - 1) / intervals, (size - 1) / intervals
    step = size / (length + 0.1 if method == "bicubic_offset" else length)
    return (indices + 0.5) * step - 0.5, step


def _cubic(distances, a, xp):
    """Keys' cubic kernel (doi.org/10.1109/TASSP.1981.1163711, eq. 4), evaluated at distances from its centre."""
    inner = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    outer = a * (((distances - 5) * distances + 8) * distances - 4)
    return xp.where(distances < 1, inner, xp.where(distances < 2, outer, 0.0))


def _apply(rows, columns, maps):
    """Computes R_h P R_w^T for each channel of (h, w, D)."""
    return np.einsum("hi,wj,ijd->hwd", rows, columns, maps, optimize=True)
