"""Sizes in the configuration beside a file, and whether it is that of the arrays."""

from keras_vit.checks import check_positive_integer

MAX_SIDE = 65_535
"""Pixels of a side of the images that a file's model may be for, as of a JPEG file."""


def patch_size_of(sides):
    """A patch's side, or (height, width) where they differ, as in `ViTConfig`."""
    height, width = sides
    return height if height == width else (height, width)


def pair(size):
    """(height, width) of a size that may be one number, or `None`."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise ValueError(f"An image size must be one number or (height, width). Received: {size!r}")
    if max(sides := tuple(check_positive_integer("image size", side) for side in sides)) > MAX_SIDE:
        raise ValueError(f"The sides of an image must be at most {MAX_SIDE} pixels. Received: {size!r}")
    return sides


def check_settings(settings, **facts):
    """Refuses a configuration that is not that of the arrays beside it.

    Args:
        settings: What the configuration says.
        **facts: What the arrays show, by the configuration's names.
    """
    for name, fact in facts.items():
        told = settings.get(name)
        told = pair(told) if isinstance(fact, tuple) else told
        if told is not None and told != fact:
            raise ValueError(
                f"The configuration beside the weights is of another model: it says {name}={told!r:.200}, the "
                f"arrays {fact!r}."
            )
