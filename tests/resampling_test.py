import pathlib
import re

import keras
import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
from keras import ops

from keras_vit import resampling
from tests.test_case import assert_close

GOLDEN = pathlib.Path(__file__).parent / "golden"
# {name in the files, after the project: method}
GOLDEN_METHODS = {
    "zoom": "align_corners",
    "timm_bicubic_aa": "bicubic_antialias",
    "timm_bilinear_noaa_npz": "bilinear",
    "hf_bicubic_noaa": "bicubic",
    "dinov2_offset0.1": "bicubic_offset",
    "timm_pi_bicubic_aa": "bicubic_antialias",
    "timm_pi_bilinear_noaa": "bilinear",
}
# Larger, smaller, one of each, one axis alone, by integer and other factors.
GRIDS = [((5, 7), new_grid) for new_grid in ((8, 11), (3, 4), (9, 2), (5, 14), (15, 7), (10, 21))]
SIZES = [(5, 8), (8, 5), (37, 16), (3, 1), (1, 4), (6, 6)]


def _golden(*names):
    cases = []
    for arrays in (np.load(GOLDEN / f"{name}.npz") for name in names):
        for key in arrays:
            project, _, size = key.rpartition("_")
            if re.fullmatch(r"\d+(x\d+)?", size):
                rows, _, columns = size.partition("x")
                new_size = int(rows), int(columns or rows)
                cases.append(pytest.param(arrays, arrays[key], new_size, GOLDEN_METHODS[project], id=key))
    return cases


@pytest.mark.parametrize(("arrays", "expected", "grid", "method"), _golden("posemb_zoom", "posemb_torch"))
def test_position_tables_equal_those_of_the_projects(arrays, expected, grid, method):
    table = arrays["pe"][0]
    resized = resampling.resize_grid(table[1:], (14, 14), grid, method)
    assert resized.dtype == "float32"
    assert_close(np.concatenate([table[:1], resized])[None], expected)


@pytest.mark.parametrize(("arrays", "expected", "patch_shape", "method"), _golden("patch_pi_torch"))
def test_patch_kernels_equal_those_of_timm(arrays, expected, patch_shape, method):
    resized = resampling.resize_patches(arrays["kernel_hwio"], patch_shape, method)
    assert resized.dtype == "float32"
    assert_close(resized, expected)


def test_every_golden_array_is_tested():
    assert len(_golden("posemb_zoom", "posemb_torch")) == 3 + 4 * 4
    assert len(_golden("patch_pi_torch")) == 2 * 3


@pytest.mark.parametrize(("grid", "new_grid"), GRIDS)
def test_align_corners_equals_scipy(grid, new_grid):
    table = _random_table(grid)
    expected = scipy.ndimage.zoom(table, (new_grid[0] / grid[0], new_grid[1] / grid[1], 1), order=1)
    np.testing.assert_allclose(_resize(table, new_grid, "align_corners"), expected, atol=1e-12)


@pytest.mark.parametrize("new_grid", [(8, 11), (3, 4), (9, 2), (3, 14)])
@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
def test_antialiasing_equals_pillow(kernel, new_grid):
    table = _random_table((5, 7)).astype("float32")
    size, filter = new_grid[::-1], PIL.Image.Resampling[kernel.upper()]
    resized = [np.asarray(PIL.Image.fromarray(values).resize(size, filter)) for values in np.moveaxis(table, -1, 0)]
    assert_close(_resize(table, new_grid, f"{kernel}_antialias"), np.stack(resized, axis=-1))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("align_corners", {"mode": "bilinear", "align_corners": True}),
        ("bilinear", {"mode": "bilinear"}),
        ("bilinear_antialias", {"mode": "bilinear", "antialias": True}),
        ("bicubic", {"mode": "bicubic"}),
        ("bicubic_antialias", {"mode": "bicubic", "antialias": True}),
        ("bicubic_offset", {"mode": "bicubic"}),
    ],
)
@pytest.mark.parametrize(("grid", "new_grid"), GRIDS)
def test_equals_torch(grid, new_grid, method, arguments):
    torch = pytest.importorskip("torch")
    table = _random_table(grid)
    if method == "bicubic_offset":
        size = {"scale_factor": tuple((new + 0.1) / old for old, new in zip(grid, new_grid, strict=True))}
    else:
        size = {"size": new_grid}
    maps = torch.from_numpy(table).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(maps, **size, **arguments)[0].permute(1, 2, 0)
    np.testing.assert_allclose(_resize(table, new_grid, method), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize("method", resampling.METHODS)
@pytest.mark.parametrize(("size", "new_size"), SIZES)
def test_matrix_of_tensors_equals_that_of_arrays(size, new_size, method):
    matrix = resampling.resize_matrix(size, new_size, method)
    assert matrix.shape == (new_size, size)
    assert matrix.dtype == "float64"
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    tensor = resampling.resize_matrix(size, new_size, method, ops)
    assert keras.backend.standardize_dtype(tensor.dtype) == "float32"
    assert_close(tensor, matrix)


@pytest.mark.parametrize("method", resampling.METHODS)
def test_same_grid_keeps_its_table(method):
    table = _random_table((5, 7))
    np.testing.assert_array_equal(_resize(table, (5, 7), method), table)
    assert np.allclose(resampling.resize_matrix(6, 6, method), np.eye(6)) == (method != "bicubic_offset")


@pytest.mark.parametrize("patch_shape", [(6, 7), (4, 11), (4, 5)])
def test_resized_patches_have_the_same_product_with_the_resized_kernel(patch_shape):
    rng = np.random.default_rng(0)
    kernel, patch = rng.normal(size=(4, 5, 3, 6)), rng.normal(size=(4, 5, 3))
    larger = scipy.ndimage.zoom(patch, (patch_shape[0] / 4, patch_shape[1] / 5, 1), order=1)
    resized = resampling.resize_patches(kernel, patch_shape, "align_corners")
    assert resized.shape == (*patch_shape, 3, 6)
    np.testing.assert_allclose(np.tensordot(larger, resized, 3), np.tensordot(patch, kernel, 3), atol=1e-12)


def test_patches_are_resized_bilinearly_unless_told_otherwise():
    kernel = np.random.default_rng(0).normal(size=(4, 5, 3, 6))
    np.testing.assert_array_equal(
        resampling.resize_patches(kernel, (3, 7)), resampling.resize_patches(kernel, (3, 7), "bilinear")
    )


def test_refuses_what_does_not_fit():
    table, kernel = np.zeros((7, 3)), np.zeros((4, 5, 3))
    with pytest.raises(ValueError, match=r"grid of 2 x 3 has the shape \(6, width\). Received: shape \(7, 3\)"):
        resampling.resize_grid(table, (2, 3), (4, 5), "bilinear")
    with pytest.raises(ValueError, match=r"shape \(height, width, channels, .*Received: shape \(4, 5, 3\)"):
        resampling.resize_patches(kernel, (2, 3))
    message = "'linear' is not an interpolation method. Available: 'align_corners', .*'bicubic_offset'"
    for function, arguments in (
        (resampling.resize_matrix, (2, 3, "linear")),
        (resampling.resize_grid, (table[1:], (2, 3), (4, 5), "linear")),
        (resampling.resize_patches, (kernel[..., None], (2, 3), "linear")),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def _random_table(grid):
    return np.random.default_rng(0).normal(size=(*grid, 3))


def _resize(table, new_grid, method):
    return resampling.resize_grid(table.reshape(-1, 3), table.shape[:2], new_grid, method).reshape(*new_grid, 3)
