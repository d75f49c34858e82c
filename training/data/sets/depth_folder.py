"""A directory of photographs, each with a depth map of the same name.

    rooms/images/0001.jpg
    rooms/depth/0001.png        gray, 16 bits; data.depth_scale is the depth in metres of the value 1
    rooms/depth/0002.npy        or floating-point numbers (H, W) or (H, W, 1), the depth in metres

The directory may instead have the folders rooms/train, rooms/test and optionally rooms/validation. Each of them
contains the folders images and depth. The depth of a pixel is unknown if it is not positive or not finite.
"""

import pathlib

import numpy as np

from training.data.masks import read_png
from training.data.sets.folder import find_splits
from training.data.sets.pairs import check_size, examine_pairs, find_pairs, split_pairs

_LAYOUT = (
    "Expected the folders images and depth, with pairs of the same name: images/1.jpg and depth/1.png or depth/1.npy; "
    "or the folders train, test and optionally validation, each with folders images and depth."
)


def read_depth_folder(directory, test_fraction, validation_fraction, scale):
    """Finds the pairs of images and depth maps in a directory, and splits them.

    The arguments, the result and the errors are those of `training.data.sets.mask_folder.read_mask_folder`, with the
    `scale` of `read_depth`. A label is the path of a depth map. The notes say how deep the images are.
    """
    root, folders = find_splits(directory, "photographs and depth maps", "the folders images and depth", _LAYOUT)
    pairs = {split: find_pairs(folder, "depth", (".png", ".npy"), _LAYOUT) for split, folder in folders.items()}

    def read(path, size):
        depth = read_depth(path, scale)
        check_size(size, depth.shape[:2])
        if not depth.any():
            raise ValueError("the depth of all pixels is unknown")
        return float(np.median(depth[depth > 0])), pathlib.Path(path).read_bytes()

    usable, unreadable, problems = examine_pairs(pairs, read, "depth map", "has no depth map {0}.png or {0}.npy")
    expected = f"image with a depth map that can be used. {_LAYOUT}"
    medians = [median for median, _, _ in usable.values()]
    range_text = f"from {min(medians, default=0):.3g} to {max(medians, default=0):.3g} metres"
    note = f"The median depth of an image is {range_text}. If this is wrong, change data.depth_scale={scale:g}."
    options = {"class_names": ("depth",), "notes": (note,)}
    return split_pairs(
        root, pairs, usable, unreadable | problems, (test_fraction, validation_fraction), expected, **options
    )


def read_depth(path, scale):
    """Reads the depth map at a path: float32 (H, W, 1), in metres. 0 means that the depth is unknown.

    Args:
        path: Path of a `.png` or `.npy` file.
        scale: Depth in metres of the value 1 of a PNG file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file is not a depth map.
    """
    depth: np.ndarray
    if path.endswith(".npy"):
        depth = np.lib.format.open_memmap(path, mode="r")
        if depth.dtype.kind != "f" or depth.ndim not in (2, 3) or depth.shape[2:] not in ((), (1,)):
            needed = "a depth map must have floating-point numbers of the shape (H, W)"
            raise ValueError(f"it has {depth.dtype} {depth.shape}, but {needed}")
        depth = depth.reshape(depth.shape[:2])
    else:
        # Files with 16 bits have the mode I in old versions of Pillow.
        needed = "a depth map must have one channel of 16 bits"
        depth = scale * read_png(pathlib.Path(path).read_bytes(), ("I;16", "I"), needed).astype("float64")
    with np.errstate(over="ignore"):  # The result is infinite, and therefore unknown.
        depth = depth.astype("float32")
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(0))[..., None]
