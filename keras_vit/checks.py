"""What values of arguments may be: the checks that configs and layers share."""

import difflib
import numbers


def check_rate(name, value):
    """Refuses what is not a probability in [0, 1)."""
    if not (is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} must be at least 0 and less than 1. Received: {value!r}")


def check_count(name, value):
    """Refuses what is not an integer of at least 0; returns it as an `int`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name} must be 0 or a positive integer. Received: {value!r}")
    return int(value)


def check_positive_integer(name, value):
    """Refuses what is not an integer of at least 1; returns it as an `int`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {value!r}")
    return int(value)


def check_flag(name, value):
    """Refuses what is neither `True` nor `False`; returns it."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False. Received: {value!r}")
    return value


def check_patch_size(patch_size):
    """Refuses what is neither a positive integer nor a pair of them; returns an `int` or a tuple of two."""
    if not isinstance(patch_size, (tuple, list)):
        return check_positive_integer("patch_size", patch_size)
    if len(patch_size) != 2:
        raise ValueError(f"patch_size must be an integer or a pair (height, width). Received: {patch_size!r}")
    return tuple(check_positive_integer("patch_size", side) for side in patch_size)


def did_you_mean(name, names):
    """ " Did you mean ...?" with the nearest of some names, or nothing if none is near."""
    near = difflib.get_close_matches(str(name), names, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def is_one_line(text):
    """Whether a text has no line break, of any kind that Python knows."""
    return text.splitlines() in ([], [text])


def check_positive(name, value):
    """Refuses what is not a positive number."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be a positive number. Received: {value!r}")


def check_epsilon(name, value):
    """Refuses what is not a small positive number, as norms add to a variance."""
    if not (is_number(value) and 1e-15 <= value <= 1):
        raise ValueError(f"{name} must be a number from 1e-15 to 1. Received: {value!r}")


def is_number(value):
    """Whether a value is a number that is finite in float32, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and abs(value) <= _LARGEST


_LARGEST = (2 - 2**-23) * 2.0**127


def check_choice(name, value, choices, spellings=None):
    """Refuses what is none of the choices; `spellings` are {what others call one of them: the choice}."""
    # By type too: 0 == False and 1 == True.
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices):
        meant = next((choice for spelling, choice in (spellings or {}).items() if spelling == value), None)
        hint = "" if meant is None else f". Did you mean {meant!r}?"
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}. Received: {value!r}{hint}")
