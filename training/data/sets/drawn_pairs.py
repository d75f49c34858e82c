"""Generated pictures of one or two objects, with captions. A pair depends only on its split and number.

A picture has nine cells, and an object fills one. A caption names the colour, the shape and the cell of each object,
as in "a red disc at the top left and a white ring at the middle centre". The brightness of objects and the noise of the
background vary, so that equal captions have different pictures.
"""

import functools

import numpy as np

SIDE = 48  # Height and width of the pictures in pixels.
NUM_PAIRS = {"train": 20_000, "test": 100}
_FIRST = {"train": 0, "test": 1_000_000}  # Seed of each split's first pair. The splits have no seed in common.
_CELL = SIDE // 3
_Y, _X = (np.mgrid[:_CELL, :_CELL] + 0.5) / _CELL * 2 - 1
_RADIUS, _LARGER, _SMALLER = np.hypot(_Y, _X), np.maximum(abs(_Y), abs(_X)), np.minimum(abs(_Y), abs(_X))
SHAPES = {
    "disc": _RADIUS < 0.75,
    "square": _LARGER < 0.65,
    "triangle": (_Y < 0.6) & (2 * abs(_X) - _Y < 0.75),
    "cross": (_LARGER < 0.8) & (_SMALLER < 0.25),
    "ring": (_RADIUS < 0.8) & (_RADIUS > 0.45),
    "diamond": abs(_X) + abs(_Y) < 0.8,
}
COLORS = {
    **{"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (230, 210, 40)},
    **{"purple": (150, 50, 190), "orange": (240, 140, 30), "white": (240, 240, 240), "cyan": (50, 210, 220)},
}
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
WORDS = ("a", "and", "at", "the", *_ROWS, *_COLUMNS, *SHAPES, *COLORS)
_CHOICES = (tuple(COLORS), tuple(SHAPES), _ROWS, _COLUMNS)


def draw(split, index, most_objects=2):
    """Draws a pair: the pixels, uint8 (48, 48, 3), and the caption.

    Args:
        split: "train" or "test". Captions of the test split are distinct. Those of the pairs 2n and 2n + 1 differ in
            one word.
        index: Number of the pair, from 0.
        most_objects: 1 or 2.
    """
    rng = np.random.default_rng(_FIRST[split] + index)
    objects = _objects(rng, most_objects) if split == "train" else _test_objects(most_objects)[index]
    pixels = rng.uniform(0, 60, (1, 1, 3)) + rng.normal(0, 8, (SIDE, SIDE, 3))
    for color, shape, row, column in objects:
        top, left = _CELL * _ROWS.index(row), _CELL * _COLUMNS.index(column)
        pixels[top : top + _CELL, left : left + _CELL][SHAPES[shape]] = COLORS[color] + rng.normal(0, 10, 3)
    caption = " and ".join(f"a {color} {shape} at the {row} {column}" for color, shape, row, column in objects)
    return np.clip(np.rint(pixels), 0, 255).astype("uint8"), caption


def _objects(rng, most_objects):
    """Draws one or two objects, (color, shape, row, column), in different cells."""
    objects = []
    for cell in rng.choice(9, rng.integers(1, most_objects + 1), replace=False):
        color, shape = (str(rng.choice(choices)) for choices in _CHOICES[:2])
        objects.append((color, shape, _ROWS[cell // 3], _COLUMNS[cell % 3]))
    return objects


@functools.cache
def _test_objects(most_objects):
    """The objects of all test pairs."""
    rng, found = np.random.default_rng(_FIRST["test"] - 1), []
    while len(found) < NUM_PAIRS["test"]:
        objects = _objects(rng, most_objects)
        other, which = list(objects), rng.integers(len(_CHOICES))
        words = list(other[0])
        words[which] = str(rng.choice([word for word in _CHOICES[which] if word != words[which]]))
        other[0] = tuple(words)
        cells = {each[2:] for each in other}
        if len(cells) == len(other) and objects not in found and other not in found:
            found += [objects, other]
    return found
