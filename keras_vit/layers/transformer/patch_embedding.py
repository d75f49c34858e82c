"""Patches and their linear projection.

Shapes: B batch, H W C image, P patch height, Q patch width, h w grid, D hidden.
"""

import math
import typing

import keras
from keras import ops

from keras_vit.checks import check_flag, check_patch_size, check_positive_integer
from keras_vit.layers.base import BaseLayer


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(BaseLayer):
    """Cuts an image into patches and projects each patch to a token.

    The patches do not overlap and are ordered row by row. Each patch is flattened in the order (row, column, channel)
    and multiplied by a kernel E: `token_n = patch_n E + b` (ViT, arXiv 2010.11929, eq. 1; the bias is only in the
    authors' code). This equals a convolution with a stride of one patch and no padding. The kernel therefore has the
    shape of a convolution kernel. It is initialised with the LeCun normal distribution, and the bias with zeros, as in
    Flax.

    Args:
        hidden_dim: Width D of the tokens.
        patch_size: Side of a square patch in pixels, or a pair (height, width).
        crop_to_patches: `True`: pixels at the bottom and right that do not fill a patch are cut off. `False`: if the
            image size is known and not a multiple of the patch size, an error is raised.
        use_bias: Whether the projection has a bias.

    Call arguments:
        images: (B, H, W, C) pixels, channels last. H and W may be unknown when the model is built.

    Returns:
        (B, H // P, W // Q, D): the map of patch tokens.

    Raises:
        ValueError: If H or W is less than one patch, or if `crop_to_patches` is `False` and H or W is not a multiple of
            the patch size.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PatchEmbedding(hidden_dim=8, patch_size=4)(keras.ops.zeros((2, 12, 16, 3))).shape)
    (2, 3, 4, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        patch_size: int | tuple[int, int],
        crop_to_patches: bool = False,
        use_bias: bool = True,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = check_positive_integer("hidden_dim", hidden_dim)
        self.patch_size = check_patch_size("patch_size", patch_size)
        self.crop_to_patches = check_flag("crop_to_patches", crop_to_patches)
        self.use_bias = check_flag("use_bias", use_bias)
        self._patch_shape = self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size,) * 2

    def build(self, input_shape):
        shape = (*self._patch_shape, input_shape[-1], self.hidden_dim)
        self.kernel = self.add_weight(shape, "lecun_normal", name="kernel")
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.hidden_dim,), initializer="zeros")

    def call(self, images):
        self._check_size(images.shape)
        patches = ops.conv(images, self.kernel, self._patch_shape, "valid", data_format="channels_last")  # (B, h, w, D)
        return patches + self.bias if self.use_bias else patches

    def compute_output_shape(self, input_shape):
        self._check_size(input_shape)
        grid = (size and size // patch for size, patch in zip(input_shape[1:3], self._patch_shape, strict=True))
        return (input_shape[0], *grid, self.hidden_dim)

    def macs(self, input_shape):
        """Multiply-accumulates for one image of a batch of shape (B, H, W, C)."""
        _, height, width, _ = self.compute_output_shape(input_shape)
        return height * width * math.prod(self._patch_shape) * input_shape[-1] * self.hidden_dim

    def _check_size(self, input_shape):
        for size, patch in zip(input_shape[1:3], self._patch_shape, strict=True):
            if size is not None and (size < patch or (size % patch and not self.crop_to_patches)):
                raise ValueError(
                    f"An image of {input_shape[1]} x {input_shape[2]} pixels does not divide into patches of "
                    f"{self._patch_shape[0]} x {self._patch_shape[1]}. Resize it to a multiple of the patch size, or "
                    f"set crop_to_patches=True to cut off the remaining pixels (at least one patch must remain)."
                )
