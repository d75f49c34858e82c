"""Patches of images of any size. Shapes: B batch, H W C image, P patch height, Q patch width, h w grid, N patches."""

import typing

import keras
import numpy as np
from keras import ops

from keras_vit import resampling
from keras_vit.checks import check_choice, check_patch_size, check_positive_integer
from keras_vit.layers.base import BaseLayer

_NUM_HALVINGS = 24  # The owners halve the interval of scales, of length 100, until it is below 1e-5.


def largest_grid(sides, patch_shape, max_patches, xp=np):
    """The grid of patches to which NaFlex resizes an image, with about the proportions of the image.

    This is `get_image_size_for_max_num_patches` of SigLIP 2 (arXiv 2502.14786, section 2.4.2): the sides are multiplied
    by the largest scale for which, rounded up to whole patches, they have at most `max_patches` patches. Small images
    are enlarged.

    Args:
        sides: (..., 2), height and width of images.
        patch_shape: (P, Q)
        max_patches: Largest number of patches.
        xp: `numpy`, or `tensorflow.experimental.numpy` inside a graph.

    Returns:
        (..., 2), rows and columns of patches, float64.

    Example:

    >>> from keras_vit.layers.transformer.naflex_patches import largest_grid
    >>> print(largest_grid([480, 640], (16, 16), 256))
    [14. 18.]
    """
    sides = xp.array(sides, dtype="float64")

    def grid(scale):
        return xp.maximum(xp.ceil(sides * scale[..., None] / np.array(patch_shape, "float64")), 1.0)

    low = xp.ones_like(sides[..., 0]) * 1e-6
    high = xp.ones_like(low) * 100.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        fits = xp.prod(grid(middle), axis=-1) <= max_patches
        low, high = xp.where(fits, middle, low), xp.where(fits, high, middle)
    return grid(low)


@keras.saving.register_keras_serializable(package="keras_vit")
class NaFlexPatches(BaseLayer):
    """Turns images of any size into the inputs of a `keras_vit.naflex_model`.

    An image is resized to about its own proportions, with as many patches as are allowed (SigLIP 2, arXiv 2502.14786,
    section 2.4.2), antialiased and rounded to 8 bits as in Pillow. Then it is cut into patches. In a `tf.data` pipeline
    (`dataset.map(layer)`, with Keras on TensorFlow), the size of an image may be unknown.

    Args:
        patch_size: Side of a square patch in pixels, or a pair (height, width).
        max_patches: Largest number N of patches of an image.
        interpolation: `"bilinear"`, as for SigLIP 2, or `"bicubic"`.

    Call arguments:
        images: Pixels in [0, 255], (H, W, C) or (B, H, W, C).

    Returns:
        Dictionary, without the axis B for a single image:

        * `patches`: float32 (B, N, P, Q, C), row by row. Missing patches are zeros.
        * `grid`: int32 (B, 2), rows and columns of patches.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import numpy as np, keras_vit
    >>> layer = keras_vit.layers.NaFlexPatches(patch_size=16, max_patches=256)
    >>> inputs = layer(np.zeros((480, 640, 3), "uint8"))
    >>> tuple(inputs["patches"].shape), keras_vit.graph.to_array(inputs["grid"]).tolist()
    ((256, 16, 16, 3), [14.0, 18.0])
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        max_patches: int = 256,
        interpolation: str = "bilinear",
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", **kwargs})
        self.patch_size = check_patch_size("patch_size", patch_size)
        self.max_patches = check_positive_integer("max_patches", max_patches)
        self.interpolation = check_choice("interpolation", interpolation, ("bilinear", "bicubic"))
        self._patch_shape = self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size,) * 2

    def call(self, images):
        is_one = len(images.shape) == 3
        images = ops.cast(images[None] if is_one else images, "float32")
        height, width = ops.shape(images)[1:3]
        rows, columns = self._grid(height, width)
        (patch_height, patch_width), channels = self._patch_shape, images.shape[3]
        # Pillow resizes the width first, and rounds after each axis.
        images = self._resized(images, "bhic,wi->bhwc", width, columns * patch_width)
        images = self._resized(images, "bhwc,ih->biwc", height, rows * patch_height)
        patches = ops.reshape(images, (-1, rows, patch_height, columns, patch_width, channels))
        patches = ops.transpose(patches, (0, 1, 3, 2, 4, 5))
        patches = ops.reshape(patches, (-1, rows * columns, patch_height, patch_width, channels))
        patches = ops.pad(patches, ((0, 0), (0, self.max_patches - rows * columns), *[(0, 0)] * 3))
        patches = ops.reshape(patches, (-1, self.max_patches, patch_height, patch_width, channels))
        grid = ops.repeat(ops.cast(ops.stack([rows, columns]), "int32")[None], ops.shape(patches)[0], axis=0)
        return {"patches": patches[0], "grid": grid[0]} if is_one else {"patches": patches, "grid": grid}

    def _grid(self, height, width):
        """Rows and columns of the resized image: integers, or tensors if the size of the image is one."""
        if isinstance(height, int) and isinstance(width, int):
            return map(int, largest_grid((height, width), self._patch_shape, self.max_patches))
        import tensorflow as tf

        grid = largest_grid(tf.stack([height, width]), self._patch_shape, self.max_patches, tf.experimental.numpy)
        return tf.unstack(tf.cast(grid, tf.int32))

    def _resized(self, images, equation, size, new_size):
        size = size if isinstance(size, int) else ops.cast(size, "float32")
        matrix = resampling.resize_matrix(size, new_size, f"{self.interpolation}_antialias", ops)
        return ops.clip(ops.floor(ops.einsum(equation, images, matrix) + 0.5), 0.0, 255.0)

    def compute_output_spec(self, images):
        *batch, channels = images.shape[:-3] + images.shape[-1:]
        shapes = {"patches": ((self.max_patches, *self._patch_shape, channels), "float32"), "grid": ((2,), "int32")}
        return {name: keras.KerasTensor((*batch, *shape), dtype) for name, (shape, dtype) in shapes.items()}
