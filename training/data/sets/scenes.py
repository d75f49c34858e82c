"""Generated scenes of objects in front of a wall. A scene depends only on its split and number.

A camera looks at a wall of square tiles, with two to five objects in front of it. An object is flat, faces the camera,
and has one of five kinds. Objects may cover each other, and the border of the image may cut them, but at least half of
each is visible. Two cues tell the depth: nearer objects cover farther ones, and the size in the image is the true size
divided by the depth. Each kind, and the tiles, have one true size, up to a small variation. The wall is dark, and the
objects are bright. Apart from that, colours, textures and the position in the image tell neither the kind nor the
depth.
"""

import itertools

import numpy as np

SIDE = 96  # Height and width of the images in pixels.
NUM_IMAGES = {"train": 20_000, "test": 500}
MOST_OBJECTS = 5
DEPTHS = (2.0, 8.0)  # Smallest and largest, in metres.
_FIRST = {"train": 0, "test": 1_000_000}  # Seed of each split's first image. The splits have no seed in common.
_OUTLINES = {
    "disc": (0.48, np.pi, lambda y, x: y**2 + x**2 < 1),
    "square": (0.58, 1.4**2, lambda y, x: np.maximum(abs(y), abs(x)) < 0.7),
    "triangle": (0.66, 0.75 * np.sqrt(3), lambda y, x: (y < 0.5) & (np.sqrt(3) * abs(x) - y < 1)),
    "cross": (0.6, 1.9716, lambda y, x: (np.maximum(abs(y), abs(x)) < 0.95) & (np.minimum(abs(y), abs(x)) < 0.31)),
    "ring": (0.54, 0.75 * np.pi, lambda y, x: abs(np.sqrt(y**2 + x**2) - 0.75) < 0.25),
}
"""{kind: (true radius in metres, area of its outline in the unit disc, whether points are inside the outline)}"""
KINDS = tuple(_OUTLINES)
_NEAREST_WALL = 3.0  # In metres.
_TILE = 0.5  # True side of a tile in metres.
_VARIATION = 0.05  # True sizes vary by this fraction.
_FOCAL_LENGTH = 120.0  # Size in pixels of what is 1 m wide and 1 m away.
_MAX_ANGLE = np.pi / 9  # An object is rotated by up to 20 degrees.
_MIN_VISIBLE = 0.5  # Share of an object's area.
_ATTEMPTS = 60  # Maximum number of random objects that are tried in a scene.
_BRIGHT = [color for color in itertools.product((60, 150, 240), repeat=3) if sum(color) >= 360]
_ROWS, _COLUMNS = np.mgrid[:SIDE, :SIDE] + 0.5  # Centres of the pixels.


def draw(split, index):
    """Draws a scene.

    Args:
        split: "train" or "test".
        index: Number of the scene, from 0.

    Returns:
        Pixels, uint8 (96, 96, 3), and the annotations of `training.data.samples`: mask (background, then `KINDS`),
        segments and boxes (of what is visible), with classes that are indices in `KINDS`, and depth in metres. There
        are `MOST_OBJECTS` classes and boxes. Those of missing objects are padding.
    """
    rng = np.random.default_rng(_FIRST[split] + index)
    wall = _draw_wall(rng)
    segments, kinds, depth = _place_objects(rng, wall)
    classes, boxes = np.full(MOST_OBJECTS, -1), np.zeros((MOST_OBJECTS, 4), "float32")
    classes[: len(kinds)] = kinds
    for number in range(len(kinds)):
        inside = segments == number + 1
        (top, bottom), (left, right) = (np.flatnonzero(inside.any(axis=axis))[[0, -1]] for axis in (1, 0))
        boxes[number] = left, top, right + 1, bottom + 1
    return _paint(rng, segments, wall), {
        "mask": np.append(0, classes + 1).astype("uint8")[segments][..., None],
        "segments": segments[..., None],
        "segment_classes": classes,
        "depth": depth[..., None].astype("float32"),
        "boxes": boxes,
        "box_classes": np.maximum(classes, 0),
        "is_box": classes >= 0,
    }


def _draw_wall(rng):
    """The depth of a wall, (96, 96). The inverse depth of a plane is linear in the position in the image."""
    near, far = np.sort(np.exp(rng.uniform(np.log(_NEAREST_WALL), np.log(DEPTHS[1]), 2)))
    sin, cos = _draw_direction(rng)
    # From 0 in one corner to 1 in the opposite one.
    position = (sin * (_ROWS / SIDE - 0.5) + cos * (_COLUMNS / SIDE - 0.5)) / (abs(sin) + abs(cos)) + 0.5
    return 1 / (1 / far + position * (1 / near - 1 / far))


def _place_objects(rng, wall):
    """Draws objects in front of a wall. Returns their segments, int32 (96, 96), their kinds, and the depth."""
    depth, segments, kinds, areas = wall.copy(), np.zeros((SIDE, SIDE), "int32"), [], []
    count = rng.integers(2, MOST_OBJECTS + 1)
    for _ in range(_ATTEMPTS):
        kind = rng.integers(len(KINDS))
        true_radius, unit_area, is_inside = _OUTLINES[KINDS[kind]]
        distance = rng.uniform(DEPTHS[0], wall.min())
        radius = _vary(rng, true_radius) * _FOCAL_LENGTH / distance
        (top, left), angle = rng.uniform(0, SIDE, 2), rng.uniform(-_MAX_ANGLE, _MAX_ANGLE)
        sin, cos = np.sin(angle), np.cos(angle)
        y, x = (_ROWS - top) / radius, (_COLUMNS - left) / radius
        shown = is_inside(cos * y - sin * x, sin * y + cos * x) & (distance < depth)
        new_areas = [*areas, unit_area * radius**2]
        new_segments = np.where(shown, len(new_areas), segments)
        visible = np.bincount(new_segments.ravel(), minlength=len(new_areas) + 1)[1:]
        if (visible >= _MIN_VISIBLE * np.array(new_areas)).all():
            segments, areas = new_segments, new_areas
            kinds.append(kind)
            depth[shown] = distance
        if len(kinds) == count:
            break
    return segments.astype("int32"), kinds, depth


def _paint(rng, segments, wall):
    """The pixels of a scene. The wall has dark tiles, and objects have waves in bright colours that differ clearly."""
    bright = rng.choice(_BRIGHT, MOST_OBJECTS, replace=False) + rng.uniform(-15, 15, (MOST_OBJECTS, 3))
    colors = np.concatenate([rng.uniform(10, 70, (1, 3)), bright])
    sin, cos = _draw_direction(rng)
    shift = rng.uniform(0, 2, 2)
    scale = wall / (_FOCAL_LENGTH * _vary(rng, _TILE))
    y, x = (_ROWS - SIDE / 2) * scale, (_COLUMNS - SIDE / 2) * scale  # In tiles.
    is_light = (np.floor(cos * y - sin * x + shift[0]) + np.floor(sin * y + cos * x + shift[1])) % 2
    sin, cos = _draw_direction(rng, MOST_OBJECTS + 1)
    frequencies, phases = rng.uniform(0.3, 0.9, MOST_OBJECTS + 1), rng.uniform(0, 2 * np.pi, MOST_OBJECTS + 1)
    waves = np.sin((frequencies * sin)[segments] * _ROWS + (frequencies * cos)[segments] * _COLUMNS + phases[segments])
    texture = np.where(segments == 0, 24 * is_light - 12, 16 * waves) + rng.normal(0, 6, segments.shape)
    return np.clip(np.rint(colors[segments] + texture[..., None]), 0, 255).astype("uint8")


def _draw_direction(rng, count=None):
    angle = rng.uniform(0, 2 * np.pi, count)
    return np.sin(angle), np.cos(angle)


def _vary(rng, size):
    return size * rng.uniform(1 - _VARIATION, 1 + _VARIATION)
