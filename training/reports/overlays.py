"""Coloured masks over pictures, and their legends."""

import functools

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from training.data.masks import MAX_CLASSES, VOID

# The first colour is the darkest, because class 0 is the background in most data sets. The others are Okabe and Ito's
# colours, which colour-blind people can distinguish (Color Universal Design, 2008).
_FIRST = ("#3c4654", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
_LEVELS = np.linspace(20, 235, 8).round().astype(int)  # Red, green and blue values of the colours from class 8 on.
_VOID_COLOR = (255, 255, 255)
_OPACITY = 0.55
_ROW = 22  # Height of a row of a legend, in pixels.
_LABELLED_SIDE = 480  # Pictures with labels have at least half as many pixels on their long side.


@functools.cache
def palette(num_classes):
    """Returns the colour table, uint8 (256, 3).

    From class 8 on, each colour is the one that differs most from all previous colours. Row 255 is for void pixels.
    """
    colors = [list(bytes.fromhex(color[1:])) for color in _FIRST]
    candidates = np.stack(np.meshgrid(*[_LEVELS] * 3), axis=-1).reshape(-1, 3)
    while len(colors) < num_classes:
        distances = np.linalg.norm(candidates[:, None] - np.array([*colors, _VOID_COLOR]), axis=-1).min(axis=1)
        colors.append(candidates[distances.argmax()].tolist())
    table = np.zeros((VOID + 1, 3), "uint8")
    table[:num_classes] = colors[:num_classes]
    table[VOID] = _VOID_COLOR
    return table


def overlay_mask(pixels, mask, num_classes):
    """Overlays a picture, converted to gray, with the colours of a mask.

    Args:
        pixels: uint8 (H, W, 3) or (H, W, 1)
        mask: uint8 (h, w). It is resized to the picture's size by nearest neighbour.
        num_classes: Number of classes.

    Returns:
        uint8 (H, W, 3)
    """
    height, width = pixels.shape[:2]
    enlarged = PIL.Image.fromarray(mask).resize((width, height), PIL.Image.Resampling.NEAREST)
    return _blend(pixels, palette(num_classes)[np.asarray(enlarged)], _OPACITY)


def object_colors(classes, num_classes):
    """The colours of objects of these classes (M,), uint8 (M, 3). Objects of class -1 are white.

    The first colour of the palette is left out: it is meant for backgrounds. Colours are repeated if there are too few.
    """
    count = min(num_classes, MAX_CLASSES - 1)
    return palette(count + 1)[np.where(np.less(classes, 0), VOID, 1 + np.asarray(classes, int) % count)]


def overlay_objects(pixels, segments, classes, num_classes):
    """Overlays a picture, converted to gray, with the colours of objects and white outlines.

    Args:
        pixels: (H, W, 3) or (H, W, 1), from 0 to 255.
        segments: int (H, W). The pixels of value k > 0 belong to object k.
        classes: Classes of the objects from 1, (M,), or -1.
        num_classes: Number of classes.

    Returns:
        uint8 (H, W, 3)
    """
    colors = object_colors(np.append(-1, classes), num_classes)[segments]
    drawn = _blend(pixels, colors, _OPACITY * (segments > 0)[..., None])
    width = 1 + max(segments.shape) // 300  # Large pictures are shown reduced.
    for down, right in ((width, 0), (0, width)):
        moved = np.pad(segments, ((down, 0), (right, 0)), "edge")[: len(segments), : segments.shape[1]]
        drawn[segments != moved] = _VOID_COLOR
    return drawn


def with_labels(pixels, labels):
    """A picture, uint8 (H, W, 3), with labels, pairs (text, (x, y) of the left upper corner), as a `PIL.Image`.

    Small pictures are enlarged by a whole number, so that the labels cover little of them.
    """
    picture = PIL.Image.fromarray(pixels)
    factor = max(1, _LABELLED_SIDE // max(picture.size))
    picture = picture.resize([factor * side for side in picture.size], PIL.Image.Resampling.NEAREST)
    draw, font = PIL.ImageDraw.Draw(picture), PIL.ImageFont.load_default(max(10, min(picture.size) // 40))
    for text, corner in labels:
        x, y = (factor * each for each in corner)
        x = max(0, min(x, picture.width - draw.textlength(text, font) - 2))
        left, top, right, bottom = draw.textbbox((x, y), text, font)
        draw.rectangle([left - 2, top - 2, right + 2, bottom + 2], "white")
        draw.text((x, y), text, "black", font)
    return picture


def _blend(pixels, colors, opacity):
    gray = pixels.mean(axis=-1, keepdims=True)
    return np.rint(opacity * colors.astype(float) + (1 - opacity) * gray).astype("uint8")


def legend(names, colors):
    """A picture with colours, uint8 (n, 3), and their names."""
    font = PIL.ImageFont.load_default(14)
    width = 40 + round(max(map(font.getlength, names), default=0))
    picture = PIL.Image.new("RGB", (width, _ROW * len(names) + 8), "white")
    draw = PIL.ImageDraw.Draw(picture)
    for row, (name, color) in enumerate(zip(names, colors.tolist(), strict=True)):
        top = 4 + _ROW * row
        draw.rectangle([6, top + 3, 24, top + _ROW - 4], fill=tuple(color))
        draw.text((32, top + 1), name, "black", font)
    return picture


def class_legend(class_names):
    """A picture with the colour, the index and the name of each class of a mask."""
    names = [f"{index} {name}" for index, name in enumerate(class_names)]
    return legend(names, palette(len(names))[: len(names)])
