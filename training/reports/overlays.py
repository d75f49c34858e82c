"""Coloured masks over pictures, and their legends."""

import functools

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from training.data.masks import VOID

# The first colour is the darkest, because class 0 is the background in most data sets. The others are Okabe and Ito's
# colours, which colour-blind people can distinguish (Color Universal Design, 2008).
_FIRST = ("#3c4654", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
_LEVELS = np.linspace(20, 235, 8).round().astype(int)  # Red, green and blue values of the colours from class 8 on.
_VOID_COLOR = (255, 255, 255)
_OPACITY = 0.55
_ROW = 22  # Height of a row of a legend, in pixels.


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
    colors = palette(num_classes)[np.asarray(enlarged)].astype(float)
    gray = pixels.mean(axis=-1, keepdims=True)
    return np.rint(_OPACITY * colors + (1 - _OPACITY) * gray).astype("uint8")


def legend(class_names):
    """A picture with the colour and the name of each class."""
    font = PIL.ImageFont.load_default(14)
    names = {index: f"{index} {name}" for index, name in enumerate(class_names)}
    width = 40 + round(max(font.getlength(name) for name in names.values()))
    picture = PIL.Image.new("RGB", (width, _ROW * len(names) + 8), "white")
    draw, colors = PIL.ImageDraw.Draw(picture), palette(len(names))
    for index, name in names.items():
        top = 4 + _ROW * index
        draw.rectangle([6, top + 3, 24, top + _ROW - 4], fill=tuple(map(int, colors[index])))
        draw.text((32, top + 1), name, "black", font)
    return picture
