"""The operations of RandAugment and AutoAugment in Pillow, on arrays (H, W, C) with C = 1 or 3."""

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps

GRAY = 128


def _of_pillow(function):
    def operation(array, *arguments):
        image = PIL.Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
        return np.asarray(function(image, *arguments)).reshape(array.shape)

    return operation


def _enhanced_by(enhancer):
    return _of_pillow(lambda image, factor: enhancer(image).enhance(factor))


def _solarize_add(array, addition):
    return np.where(array < 128, np.minimum(array.astype(int) + addition, 255), array).astype("uint8")


def transform(array, matrix):
    """Affine transform by nearest neighbour. The matrix counts coordinates from the centre of the first pixel."""
    a, b, c, d, e, f = matrix
    # Pillow counts from the pixel's corner, so its input and output coordinates are half a pixel larger.
    cornered = (a, b, c + 0.5 - (a + b) / 2, d, e, f + 0.5 - (d + e) / 2)
    mode = PIL.Image.Transform.AFFINE
    fill = GRAY if array.shape[-1] == 1 else (GRAY,) * 3
    return _of_pillow(lambda image: image.transform(image.size, mode, cornered, fillcolor=fill))(array)


def _rotate(array, degrees):
    fill = GRAY if array.shape[-1] == 1 else (GRAY,) * 3
    return _of_pillow(lambda image: image.rotate(degrees, fillcolor=fill))(array)


def _cutout(array, fraction, place):
    height, width, _ = array.shape
    half = round(fraction * min(height, width))
    row, column = int(place[0] * height), int(place[1] * width)
    covered = array.copy()
    covered[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = GRAY
    return covered


OPERATIONS = {
    "AutoContrast": _of_pillow(PIL.ImageOps.autocontrast),
    "Equalize": _of_pillow(PIL.ImageOps.equalize),
    "Invert": _of_pillow(PIL.ImageOps.invert),
    "Rotate": _rotate,
    "Posterize": _of_pillow(PIL.ImageOps.posterize),
    "Solarize": _of_pillow(PIL.ImageOps.solarize),
    "Color": _enhanced_by(PIL.ImageEnhance.Color),
    "Contrast": _enhanced_by(PIL.ImageEnhance.Contrast),
    "Brightness": _enhanced_by(PIL.ImageEnhance.Brightness),
    "Sharpness": _enhanced_by(PIL.ImageEnhance.Sharpness),
    "ShearX": lambda array, slope: transform(array, (1, slope, 0, 0, 1, 0)),
    "ShearY": lambda array, slope: transform(array, (1, 0, 0, slope, 1, 0)),
    "TranslateX": lambda array, part: transform(array, (1, 0, round(part * array.shape[1]), 0, 1, 0)),
    "TranslateY": lambda array, part: transform(array, (1, 0, 0, 0, 1, round(part * array.shape[0]))),
    "Cutout": _cutout,
    "SolarizeAdd": _solarize_add,
}
