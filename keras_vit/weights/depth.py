"""How deep the model in a file is, by the numbers in its names. Very deep ones would take long to build."""

MAX_DEPTH = 100
"""Blocks, or units, that a file's model may have."""


def check_depth(number):
    """The number of blocks or units; refused if there are more than `MAX_DEPTH`."""
    if number > MAX_DEPTH:
        raise ValueError(
            f"The model has {number:,} blocks. Models of at most {MAX_DEPTH} are read; published ones have up to 66."
        )
    return number


def count_blocks(names, pattern):
    """Number of encoder blocks: one more than the largest number that `pattern`'s group finds in the names."""
    numbers = {int(match.group(1)) for name in names if (match := pattern.match(name))}
    if not numbers:
        raise ValueError("The file holds no encoder blocks; it is no Vision Transformer that this package knows.")
    return check_depth(max(numbers) + 1)


def stage_depths_of(units, source, title):
    """Units of each stage of a ResNet, of pairs (stage, unit) that count from 0.

    Raises:
        ValueError: If a stage has none, or there are very many; `source` and `title` say of what.
    """
    depths = dict(sorted((stage, 1 + unit) for stage, unit in units))  # Of each stage the last.
    check_depth(max(depths, default=0))
    check_depth(sum(depths.values()))
    missing = sorted(set(range(max(depths, default=0) + 1)) - depths.keys())
    if missing:
        raise ValueError(
            f"{source} holds the root of a {title}, but nothing of stage {', '.join(str(s + 1) for s in missing)}. The "
            f"file may be cut off; fetch or write it again."
        )
    return tuple(depths.values())
