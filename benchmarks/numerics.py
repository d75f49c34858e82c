"""Measures how much the settings of other projects change the logits of the same weights.

Command: python -m benchmarks.numerics

Each row changes one setting of the model, or of the preparation of its images. The logits are compared with those of
the model as `from_pretrained` builds it. `docs/coming_from/index.md` contains the table that this command prints.
"""

import argparse
import pathlib

import keras
import numpy as np

import keras_vit
from benchmarks.records import markdown_table
from keras_vit.export.parity import PHOTOGRAPHS

SETTINGS = {
    "exact GELU instead of tanh": ("timm, transformers, KerasHub, ZeroModels", {"mlp": "gelu_exact"}),
    "epsilon 1e-12 in LayerNorm": ("transformers", {"layer_norm_epsilon": 1e-12}),
    "epsilon 1e-3 in LayerNorm": ("the default of `keras.layers.LayerNormalization`", {"layer_norm_epsilon": 1e-3}),
}
"""{change: (who has this setting, arguments of `from_pretrained`)}"""

PREPARATIONS = {
    "bilinear resize without antialiasing": ("vision_transformer", {"antialias": False}),
    "bicubic resize": ("ZeroModels", {"interpolation": "bicubic"}),
    "bicubic resize of the short side to 248 pixels, then a central crop": ("timm", {"crop": 248}),
}
"""{change: (who prepares images so, arguments of `prepared`)}"""


def prepared(paths, size, interpolation="bilinear", antialias=True, crop=None):
    """Images (N, size, size, 3) with pixels from -1 to 1, resized from the files at `paths`.

    With `crop`, the short side is resized to this length, bicubic, and the centre is cut out.
    """
    images = []
    for path in paths:
        pixels = keras.utils.img_to_array(keras.utils.load_img(path))
        height, width = (size, size)
        if crop:
            interpolation, scale = "bicubic", crop / min(pixels.shape[:2])
            height, width = (round(side * scale) for side in pixels.shape[:2])
        resized = keras.ops.image.resize(pixels, (height, width), interpolation=interpolation, antialias=antialias)
        top, left = (height - size) // 2, (width - size) // 2
        images.append(keras.ops.convert_to_numpy(resized)[top : top + size, left : left + size])
    return np.clip(np.stack(images), 0, 255) / 127.5 - 1


def differences(weights, paths):
    """Rows (change, who has it, largest difference of a logit, number of images with the same most probable class)."""
    model = keras_vit.from_pretrained(weights, classifier_activation=None)
    size = model.input_shape[1]
    images = prepared(paths, size)
    expected = _logits(model, images)
    rows = []
    for change, (projects, arguments) in SETTINGS.items():
        other = keras_vit.from_pretrained(weights, classifier_activation=None, **arguments)
        rows.append((change, projects, _logits(other, images)))
    for change, (projects, arguments) in PREPARATIONS.items():
        rows.append((change, projects, _logits(model, prepared(paths, size, **arguments))))
    return [
        (change, projects, np.abs(logits - expected).max(), np.sum(logits.argmax(1) == expected.argmax(1)))
        for change, projects, logits in rows
    ]


def _logits(model, images):
    return keras.ops.convert_to_numpy(model(images, training=False))


def table(rows, num_images):
    """The rows as a Markdown table."""
    columns = ("change", "in", "largest difference of a logit", "same class")
    cells = [(change, projects, f"{value:.1g}", f"{same} of {num_images}") for change, projects, value, same in rows]
    return markdown_table(columns, cells, columns[2:])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", default="Ti/16@augreg-i21k-i1k-224", help="name or file; default: %(default)s")
    parser.add_argument("--images", default=PHOTOGRAPHS, type=pathlib.Path, help="folder of JPEG files")
    options = parser.parse_args(arguments)
    paths = sorted(options.images.glob("*.jpg"))
    if not paths:
        raise SystemExit(f"{options.images} contains no files that end in .jpg. Pass another folder with --images.")
    print(table(differences(options.weights, paths), len(paths)))


if __name__ == "__main__":
    main()
