"""What is known about a file besides its arrays, and what follows for its heads, positions and image size."""

import dataclasses
import math

from keras_vit.architectures.vision_transformer import VARIANTS
from keras_vit.checks import check_positive_integer, did_you_mean
from keras_vit.weights.catalogue import FAMILIES


@dataclasses.dataclass(frozen=True)
class Hints:
    """What is known about a file besides its arrays.

    Args:
        source: What was asked for.
        family: Key of `catalogue.FAMILIES`, if the catalogue or the caller names it.
        num_heads: Attention heads, if the caller says.
        grid_size: (rows, columns) of the position table, if the caller says.
        image_size: (height, width) that the catalogue names.
        model_num_heads: Attention heads of the model that is to be filled: used where nothing else says.
        model_image_size: (height, width) of its images: likewise.
        config: Contents of the config.json beside the file, or `{}`.
        processor: Contents of the preprocessor_config.json beside the file, or `{}`.
    """

    source: str
    family: str | None = None
    num_heads: int | None = None
    grid_size: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None
    model_num_heads: int | None = None
    model_image_size: tuple[int, int] | None = None
    config: dict = dataclasses.field(default_factory=dict)
    processor: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.family not in (None, *FAMILIES):
            hint = did_you_mean(self.family, FAMILIES)
            raise ValueError(f"family={self.family!r} is not known.{hint} Accepted: {', '.join(FAMILIES)}")
        if self.num_heads is not None:
            check_positive_integer("num_heads", self.num_heads)
        if self.grid_size is not None:
            if not isinstance(self.grid_size, (tuple, list)) or len(self.grid_size) != 2:
                raise ValueError(f"grid_size must be (rows, columns). Received: {self.grid_size!r}")
            grid_size = tuple(check_positive_integer("grid_size", side) for side in self.grid_size)
            object.__setattr__(self, "grid_size", grid_size)


def resolve_num_heads(told, hidden_dim, num_layers, mlp_dim, hints):
    """Attention heads: what the caller or the file's config says, else those of the published size.

    Raises:
        ValueError: If nobody says.
    """
    if hints.num_heads or told:
        return hints.num_heads or told
    found = {
        variant.num_heads
        for variant in VARIANTS.values()
        if (variant.hidden_dim, variant.num_layers, variant.mlp_dim) == (hidden_dim, num_layers, mlp_dim)
    }
    if (hidden_dim, num_layers, mlp_dim) == (1536, 40, 4096):
        return 24  # DINOv2 (arXiv 2304.07193) ViT-g/14, with SwiGLU.
    if len(found) != 1 and hints.model_num_heads:
        return hints.model_num_heads
    if len(found) != 1:
        raise ValueError(
            f"The file does not say how many attention heads the model has, and its size (hidden_dim={hidden_dim}, "
            f"num_layers={num_layers}, mlp_dim={mlp_dim}) is no published one. Pass num_heads=..., or put the "
            f"config.json of the model beside the file."
        )
    return found.pop()


# Pixels of published square models.
_IMAGE_SIZES = (224, 240, 256, 288, 336, 384, 392, 448, 512, 518, 560)


def published_grid(num_patches, stride):
    """(rows, columns) of a position table that does not say, if it is that of a published square image size.

    The square root alone is no evidence: 14 x 14 patches are as many as 7 x 28.

    Args:
        num_patches: Rows of the table without those of prefix tokens.
        stride: (height, width) in pixels of one token.
    """
    side = math.isqrt(num_patches)
    if side * side == num_patches and any(size // stride[0] == size // stride[1] == side for size in _IMAGE_SIZES):
        return side, side
    return None


def resolve_positions(num_rows, prefix_choices, stride, hints, image_size=None):
    """How the rows of a position table are arranged: (rows of prefix tokens, (rows, columns) of the grid).

    Args:
        num_rows: Rows of the table.
        prefix_choices: How many of them may belong to prefix tokens, the likeliest first.
        stride: (height, width) in pixels of one token.
        hints: `Hints`, of which `grid_size` and `image_size` count.
        image_size: (height, width) in pixels that the file's config names, or `None`.

    Raises:
        ValueError: If nobody says, or what is said does not fit.
    """
    told = [*_grids(image_size, stride), *_grids(hints.image_size, stride)]
    likely = [published_grid(num_rows - prefix_rows, stride) for prefix_rows in prefix_choices]
    if hints.family == "flexivit":
        likely.append((7, 7))  # FlexiViT (arXiv 2212.08013) keeps this table for all its patch sizes.
    if hints.model_image_size is not None:  # As many patches as the model has may still be a square of them.
        sides = [math.isqrt(num_rows - prefix_rows) for prefix_rows in prefix_choices]
        likely += [*_grids(hints.model_image_size, stride), *((side, side) for side in sides)]
    if hints.grid_size is not None:
        told = likely = [hints.grid_size]
    for grids, first_counts in ((told, True), (likely, False)):
        fitting = [
            (prefix_rows, grid)
            for grid in filter(None, grids)
            for prefix_rows in prefix_choices
            if math.prod(grid) == num_rows - prefix_rows
        ]
        if fitting and (first_counts or len(set(fitting)) == 1):
            return fitting[0]
    if image_size is not None and hints.grid_size is None:
        rows, columns = _grids(image_size, stride)[0]
        raise ValueError(
            f"The file has {num_rows} position rows. The images of its config.json, {image_size[0]} x {image_size[1]} "
            f"pixels, have {rows * columns} patches, and of its other tokens {max(prefix_choices)} at most have a row "
            f"in the models that are read. It is another kind of model."
        )
    received = "" if hints.grid_size is None else f" Received: grid_size={tuple(hints.grid_size)}"
    raise ValueError(
        f"The file has {num_rows} position rows for patches of {stride[0]} x {stride[1]} pixels and does not say how "
        f"they are arranged. Pass grid_size=(rows, columns) to keras_vit.from_pretrained or load_weights, or the "
        f"input_shape that the table is for.{received}"
    )


def _grids(image_size, stride):
    """Grids that an image may have: patches that do not fit are cut off, stems pad."""
    if image_size is None:
        return []
    sides = list(zip(image_size, stride, strict=True))
    return [tuple(size // side for size, side in sides), tuple(-(-size // side) for size, side in sides)]


def settle_image_size(grid_size, stride, hints, image_size=None):
    """(height, width) in pixels that a model is made for.

    Args:
        grid_size: (rows, columns) of the position table, or `None` without one.
        stride: (height, width) in pixels of one token.
        hints: `Hints`
        image_size: (height, width) that the file's config names, or `None`. It counts only where it is that of the
            table.
    """
    if hints.family == "flexivit":
        return hints.image_size or (240, 240)  # Its table is smaller than any image of its.
    told = [size for size in (image_size, hints.image_size) if size is not None]
    if grid_size is None:
        return next(iter(told), (224, 224))
    own = tuple(rows * side for rows, side in zip(grid_size, stride, strict=True))
    return next((size for size in told if grid_size in _grids(size, stride)), own)
