"""Checks of arguments, for configs and layers. Each raises a ValueError that contains the argument's name."""

import difflib
import numbers
import unicodedata

MAX_SIDE = 65_535
"""Maximum side of images in pixels, which is also the maximum of JPEG files."""
MAX_PIXELS = 89_478_485
"""Default limit for the pixels of a decoded image. For larger images, Pillow warns of a decompression bomb."""
MAX_SIZE = 1_000_000
"""Maximum of sizes in configs, a hundred times those of published models. Larger numbers are mistakes."""
_LONGEST_SHOWN = 300  # Characters. Of a longer value, the first and the last half of this number are shown.


def shown(value):
    """A value as messages show it: its `repr`, without the middle of a long one."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits.
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]} … {text[-half:]}"


def check_rate(name, value):
    """Checks that a value is a probability in [0, 1); returns it."""
    if not (is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} must be at least 0 and less than 1. Received: {shown(value)}")
    return value


def check_count(name, value, largest=None):
    """Checks that a value is an integer of at least 0, and at most `largest` if given; returns it as an `int`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name} must be 0 or a positive integer. Received: {shown(value)}")
    if largest is not None and value > largest:
        raise ValueError(f"{name} must be at most {largest:,}. Received: {shown(value)}")
    return int(value)


def check_positive_integer(name, value):
    """Checks that a value is an integer of at least 1; returns it as an `int`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {shown(value)}")
    return int(value)


def check_size(name, value, largest=MAX_SIZE):
    """Checks that a value is an integer from 1 to `largest`; returns it as an `int`."""
    return check_count(name, check_positive_integer(name, value), largest)


def check_grid_size(name, value):
    """Checks that a value is a pair (rows, columns) of positive integers; returns it as a tuple of `int`."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name} must be (rows, columns). Received: {shown(value)}")
    return tuple(check_size(f"Each side of {name}", side, MAX_SIDE) for side in value)


def check_flag(name, value):
    """Checks that a value is `True` or `False`; returns it."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False. Received: {shown(value)}")
    return value


def check_patch_size(name, patch_size):
    """Checks that a value is a positive integer or a pair of positive integers; returns an `int` or a tuple of two."""
    if not isinstance(patch_size, (tuple, list)):
        return check_size(name, patch_size, MAX_SIDE)
    if len(patch_size) != 2:
        raise ValueError(f"{name} must be an integer or a pair (height, width). Received: {shown(patch_size)}")
    return tuple(check_size(name, side, MAX_SIDE) for side in patch_size)


def nearest_names(name, names, count=3, cutoff=0.5):
    """Returns the names that are most similar to `name`, at most `count` (see `difflib.get_close_matches`)."""
    return difflib.get_close_matches(str(name), names, count, cutoff)


def did_you_mean(name, names):
    """Returns " Did you mean ...?" with the names that are most similar to `name`, or "" if there are none."""
    similar_names = nearest_names(name, names)
    return f" Did you mean {' or '.join(map(repr, similar_names))}?" if similar_names else ""


def problem_of_class_names(names):
    """Why names of classes cannot be used, or `None`. Names may repeat: ImageNet-1k has two classes named "crane"."""
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            return f"the name of class {index} is empty or not a text. Received: {shown(name)}"
        if any(unicodedata.category(character) == "Cs" for character in name):
            return f"the name of class {index} is not valid Unicode. Received: {name!a:.100}"
        if "\0" in name or name.splitlines() != [name]:
            return f"the name of class {index} contains a line break or a NUL character. Received: {shown(name)}"
    return None


def check_positive(name, value):
    """Checks that a value is a positive number; returns it."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be a positive number. Received: {shown(value)}")
    return value


def check_epsilon(name, value):
    """Checks that a value can be the epsilon of a norm: a number from 1e-15 to 1; returns it."""
    if not (is_number(value) and 1e-15 <= value <= 1):
        raise ValueError(f"{name} must be a number from 1e-15 to 1. Received: {shown(value)}")
    return value


def check_number(name, value):
    """Checks that a value is a number; returns it."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number. Received: {value!r}")
    return value


def check_group_width(name, value):
    """Checks that a value is a size and a multiple of 32, the number of groups of GroupNorm; returns it."""
    if check_size(name, value) % 32:
        raise ValueError(f"{name} must be a multiple of 32, the number of groups. Received: {value}")
    return int(value)


def check_sizes(name, values, smallest_length=1):
    """Checks that a value is a tuple or list of at least `smallest_length` sizes; returns a tuple of `int`."""
    if not isinstance(values, (tuple, list)) or len(values) < smallest_length:
        length = "at least one integer" if smallest_length else "integers"
        raise ValueError(f"{name} must be a tuple of {length}. Received: {values!r}")
    return tuple(check_size(f"Each number in {name}", value) for value in values)


def is_number(value):
    """Whether a value is a number that is finite in float32, and not `True` or `False`."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and abs(value) <= _LARGEST  # type: ignore[operator]


_LARGEST = (2 - 2**-23) * 2.0**127


def check_choice(name, value, choices, spellings=None):
    """Checks that a value is one of the choices; returns it.

    For a key of `spellings`, the error suggests the choice that it means.
    """
    # 0 == False and 1 == True, but a number is not accepted in place of a bool, nor a bool in place of a number.
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        meant = next((choice for spelling, choice in (spellings or {}).items() if spelling == value), None)
        hint = "" if meant is None else f". Did you mean {meant!r}?"
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}. Received: {shown(value)}{hint}")
    return value
