"""Derives the architecture of a model from the names and shapes in its file, and from hints."""

import math
import re

from keras_vit.architectures.vision_transformer import VARIANTS, ViTConfig

MAX_DEPTH = 100
"""Maximum number of blocks or units. Deep models take long to build."""
_MAX_WIDTH = 65_536


def vit_config(fields, hints, num_rows=None, prefix_choices=(), image_size=None):
    """Builds the config of a Vision Transformer, and finds the arrangement of its positions.

    Args:
        fields: {field of `ViTConfig`: value}, with `class_token` but without `num_position_prefix_rows`. The patch size
            is (height, width), and the number of heads is `None` if the file does not contain it.
        hints: `Hints`.
        num_rows: Number of rows of the position table, or `None` without a table.
        prefix_choices: Possible numbers of rows for prefix tokens. The most likely number comes first.
        image_size: (height, width) in pixels from the file's settings, or `None`.

    Returns:
        The `ViTConfig`, (rows, columns) of the position table or `None`, and (height, width) of the model's images.

    Raises:
        ValueError: If the number of heads or the arrangement of the positions is unknown or does not fit the hints.
    """
    stem, fields, patch = fields.get("stem"), dict(fields), tuple(fields["patch_size"])
    fields["patch_size"] = patch[0] if patch[0] == patch[1] else patch
    if fields["hidden_dim"] > _MAX_WIDTH:  # The computed positions of a very wide model need much memory.
        raise ValueError(f"The width of its tokens must be at most {_MAX_WIDTH:,}. Received: {fields['hidden_dim']:,}")
    if fields["num_heads"] is None:
        fields["num_heads"] = _published_num_heads(fields, hints)
    stride = tuple(side * (stem.stride if stem else 1) for side in patch)
    grid_size = None
    if num_rows is not None:
        prefix_rows, grid_size = resolve_positions(num_rows, prefix_choices, stride, hints, image_size)
        if prefix_rows != fields["class_token"] + fields.get("distillation_token", False):
            fields["num_position_prefix_rows"] = prefix_rows
    image_size = resolve_image_size(grid_size, stride, hints, image_size)
    if stem is None and any(size % side for size, side in zip(image_size, stride, strict=True)):
        fields["crop_to_patches"] = True  # SigLIP (arXiv 2303.15343) cuts 27 patches of 14 pixels from 384 pixels.
    if fields["class_token"] and fields["pooling"] in ("token", None):  # These poolings have a class token by default.
        fields["class_token"] = None
    return ViTConfig(**fields | hints.changes), grid_size, image_size


def check_depth(number):
    """Returns a number of blocks or units. Raises ValueError if it is above `MAX_DEPTH`."""
    if number > MAX_DEPTH:
        raise ValueError(
            f"The model has {number:,} blocks. At most {MAX_DEPTH} are accepted; published models have up to 66."
        )
    return number


def count_blocks(names, pattern):
    """Number of encoder blocks. The group of `pattern` matches the index of a block."""
    numbers = {int(match.group(1)) for name in names if (match := pattern.match(name))}
    if not numbers:
        raise ValueError("The file contains no encoder blocks. It is not a Vision Transformer of a known kind.")
    return check_depth(max(numbers) + 1)


def stage_depths_of(names, pattern, title, min_stages=1):
    """Number of units in each stage of a ResNet. The groups of `pattern` match the indices of a stage and a unit."""
    units = sorted(tuple(map(int, match.groups())) for name in names if (match := re.match(pattern, name)))
    depths = {stage: 1 + unit for stage, unit in units}  # Of the last unit of each stage.
    check_depth(max(depths, default=0))
    check_depth(sum(depths.values()))
    missing = sorted(set(range(max(depths, default=min_stages - 1) + 1)) - depths.keys())
    if missing:
        raise ValueError(
            f"The file contains the stem of a {title}, but no units of stage {', '.join(str(s + 1) for s in missing)}. "
            f"The file may be incomplete. Download or write it again."
        )
    return tuple(depths.values())


def _published_num_heads(fields, hints):
    """Number of attention heads of a published model of this size, or of the model that loads the weights."""
    size = fields["hidden_dim"], fields["num_layers"], fields["mlp_dim"]
    if size == (1536, 40, 4096):
        return 24  # DINOv2 (arXiv 2304.07193) ViT-g/14, with SwiGLU.
    published = {x.num_heads for x in VARIANTS.values() if (x.hidden_dim, x.num_layers, x.mlp_dim) == size}
    if len(published) == 1:
        return published.pop()
    if hints.model_num_heads:
        return hints.model_num_heads
    raise ValueError(
        f"The file does not contain the number of attention heads, and no published model has its size (hidden_dim="
        f"{size[0]}, num_layers={size[1]}, mlp_dim={size[2]}). Pass num_heads=..., or put the config.json of the "
        f"model into the folder of the file."
    )


# Image sizes in pixels of published square models.
_IMAGE_SIZES = (224, 240, 256, 288, 336, 384, 392, 448, 512, 518, 560)


def _published_grid(num_patches, stride):
    """(rows, columns) of `num_patches` patches in a square image of a published size. `None`: no such size exists.

    A square number of patches does not prove that the image is square: 7 x 28 patches are as many as 14 x 14 patches.
    """
    side = math.isqrt(num_patches)
    if side * side == num_patches and any(size // stride[0] == size // stride[1] == side for size in _IMAGE_SIZES):
        return side, side
    return None


def resolve_positions(num_rows, prefix_choices, stride, hints, image_size=None):
    """Arrangement of a position table: (number of rows for prefix tokens, (rows, columns) of the patches).

    Args:
        num_rows: Number of rows of the table.
        prefix_choices: Possible numbers of rows for prefix tokens. The most likely number comes first.
        stride: (height, width) in pixels of one token.
        hints: `Hints`.
        image_size: (height, width) in pixels from the file's config, or `None`.

    Raises:
        ValueError: If the arrangement is unknown, or `hints.grid_size` does not fit `num_rows`.
    """
    certain = [*_grids(image_size, stride), *_grids(hints.image_size, stride)]
    likely = [_published_grid(num_rows - prefix_rows, stride) for prefix_rows in prefix_choices]
    if hints.family == "flexivit":
        likely.append((7, 7))  # FlexiViT (arXiv 2212.08013) has 7 x 7 positions for all patch sizes.
    if hints.model_image_size is not None:  # If the rows fit two different grids, an error is raised below.
        sides = [math.isqrt(num_rows - prefix_rows) for prefix_rows in prefix_choices]
        likely += [*_grids(hints.model_image_size, stride), *((side, side) for side in sides)]
    if hints.grid_size is not None:
        certain = likely = [hints.grid_size]
    for grids, is_certain in ((certain, True), (likely, False)):
        fitting = [
            (prefix_rows, grid)
            for grid in filter(None, grids)
            for prefix_rows in prefix_choices
            if math.prod(grid) == num_rows - prefix_rows
        ]
        if fitting and (is_certain or len(set(fitting)) == 1):
            return fitting[0]
    if image_size is not None and hints.grid_size is None:
        rows, columns = _grids(image_size, stride)[0]
        raise ValueError(
            f"The file has {num_rows} position rows. Images of the size in its config.json, {image_size[0]} x "
            f"{image_size[1]} pixels, have {rows * columns} patches, and at most {max(prefix_choices)} prefix tokens "
            f"can have a row. The file contains another kind of model, which is not supported."
        )
    received = "" if hints.grid_size is None else f" Received: grid_size={tuple(hints.grid_size)}"
    raise ValueError(
        f"The file has {num_rows} position rows for patches of {stride[0]} x {stride[1]} pixels, but the number of "
        f"rows and columns of patches is unknown. Pass grid_size=(rows, columns) to keras_vit.from_pretrained or "
        f"load_weights, or the input_shape of images that have as many patches.{received}"
    )


def _grids(image_size, stride):
    """Possible grids of an image. Incomplete patches are either cut off, or completed by the padding of a stem."""
    if image_size is None:
        return []
    sides = list(zip(image_size, stride, strict=True))
    return [tuple(size // side for size, side in sides), tuple(-(-size // side) for size, side in sides)]


def resolve_image_size(grid_size, stride, hints, image_size=None):
    """(height, width) in pixels of a model's images. `grid_size` is (rows, columns) of its position table, or `None`.

    The other arguments are the same as in `resolve_positions`. An image size that does not fit the table is ignored.
    """
    if hints.family == "flexivit":
        return hints.image_size or (240, 240)  # FlexiViT's table is smaller than its grid of patches.
    given_sizes = [size for size in (image_size, hints.image_size) if size is not None]
    if grid_size is None:
        return next(iter(given_sizes), (224, 224))
    table_size = tuple(rows * side for rows, side in zip(grid_size, stride, strict=True))
    return next((size for size in given_sizes if grid_size in _grids(size, stride)), table_size)
