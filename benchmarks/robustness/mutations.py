"""Random changes of bytes, JSON and named arrays. All functions take a NumPy generator."""

import json
import struct

import numpy as np

_NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    255,
    65_536,
    30_000_000,
    2**31,
    2**63,
    10**40,
    0.5,
    -1e300,
    1e300,
    float("nan"),
    float("inf"),
)


def mutate_bytes(content, rng):
    """The content with bits flipped, a part overwritten, repeated, removed or inserted, or its end cut off."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        start = int(rng.integers(0, len(content) + 1))
        length = int(min(rng.geometric(0.05), len(content) - start))
        part, noise = slice(start, start + length), rng.bytes(length)
        match rng.integers(6):
            case 0:
                for place in rng.integers(0, len(content), 4) if content else ():
                    content[place] ^= 1 << int(rng.integers(8))
            case 1:
                content[part] = noise
            case 2:
                content[start:start] = content[part] * int(rng.integers(1, 50))
            case 3:
                del content[part]
            case 4:
                content[start:start] = noise
            case 5:
                del content[start:]
    return bytes(content)


def mutate_json(value, rng, depths=(3, 500, 5000)):
    """JSON with one value replaced or removed. New lists may be nested to one of the given depths."""
    places = list(_places(value))
    if not places:
        return _any_value(rng, depths)
    owner, key = places[rng.integers(len(places))]
    if rng.random() < 0.15:
        del owner[key]
    else:
        owner[key] = _any_value(rng, depths)
    return value


def _places(value):
    """Pairs (list or dictionary, key) of all values inside a value."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _any_value(rng, depths):
    choices = [
        lambda: _NUMBERS[rng.integers(len(_NUMBERS))],
        lambda: None,
        lambda: bool(rng.integers(2)),
        lambda: "x" * int(rng.choice([0, 1, 40, 100_000])),
        lambda: [_NUMBERS[rng.integers(len(_NUMBERS))] for _ in range(rng.integers(0, 5))],
        lambda: {"a": 1},
        lambda: _nested(int(rng.choice(depths))),
    ]
    return choices[rng.integers(len(choices))]()


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def dump(value):
    """JSON of any depth."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 5000 + "]" * 5000


def mutate_arrays(arrays, rng):
    """{name: array} with one array removed, duplicated, or with another name, shape, type or values."""
    arrays = dict(arrays)
    name = sorted(arrays)[rng.integers(len(arrays))]
    array = arrays.pop(name)
    match rng.integers(7):
        case 1:
            arrays[_renumbered(name, rng)] = array
        case 2:
            arrays[name] = array[..., None] if rng.random() < 0.5 else array.reshape(-1)
        case 3:
            arrays[name] = np.zeros([int(rng.integers(0, 5)) for _ in range(rng.integers(0, 5))], array.dtype)
        case 4:
            arrays[name] = array.astype(rng.choice(["float16", "float64", "int32", "bool"]))
        case 5:
            arrays[name] = np.full_like(array, rng.choice([np.nan, np.inf, 1e38, 0]))
        case 6:
            arrays |= {name: array, f"{name}_{rng.integers(100)}": array}
    return arrays


def _renumbered(name, rng):
    digits = [index for index, letter in enumerate(name) if letter.isdigit()]
    if not digits:
        return name[::-1]
    place = digits[rng.integers(len(digits))]
    return name[:place] + str(_NUMBERS[rng.integers(2, 9)]) + name[place + 1 :]


def mutate_safetensors(content, rng):
    """A safetensors file with its header changed by `mutate_json`."""
    [length] = struct.unpack("<Q", content[:8])
    header = dump(mutate_json(json.loads(content[8 : 8 + length]), rng)).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + length :]
