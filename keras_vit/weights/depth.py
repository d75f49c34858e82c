"""Reads a model's depth from the names in its file. The depth is limited, because deep models take long to build."""

MAX_DEPTH = 100
"""Maximum number of blocks or units."""


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


def stage_depths_of(units, source, title):
    """Number of units in each stage of a ResNet. `units` contains pairs of indices (stage, unit)."""
    depths = dict(sorted((stage, 1 + unit) for stage, unit in units))  # `dict` keeps the last unit of each stage.
    check_depth(max(depths, default=0))
    check_depth(sum(depths.values()))
    missing = sorted(set(range(max(depths, default=0) + 1)) - depths.keys())
    if missing:
        raise ValueError(
            f"{source} contains the stem of a {title}, but no units of stage {', '.join(str(s + 1) for s in missing)}. "
            f"The file may be incomplete. Download or write it again."
        )
    return tuple(depths.values())
