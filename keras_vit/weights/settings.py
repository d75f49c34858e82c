"""Reads sizes in the configuration of a file, and compares them with the arrays in the file."""

from keras_vit.checks import MAX_SIDE, check_size, shown


def patch_size_of(sides):
    """Side of a patch, or (height, width) if they differ, as in `ViTConfig`."""
    height, width = sides
    return height if height == width else (height, width)


def pair(size):
    """(height, width) of an image size, which may be one number; `None` remains `None`."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise ValueError(f"An image size must be one number or (height, width). Received: {shown(size)}")
    return tuple(check_size("Each side of an image", side, MAX_SIDE) for side in sides)


def check_settings(settings, **facts):
    """Checks that a configuration fits the arrays of its file.

    Args:
        settings: Contents of the configuration.
        **facts: Values derived from the arrays. If `settings` contains one of these names, both values must be equal.
    """
    for name, fact in facts.items():
        value = settings.get(name)
        value = pair(value) if isinstance(fact, tuple) else value
        if value is not None and value != fact:
            raise ValueError(
                f"The configuration beside the weights belongs to another model: it contains {name}={value!r:.200}, "
                f"but the arrays have {fact!r}."
            )
