"""Compares the resize of images with those of Pillow, torchvision and TensorFlow.

Command: .venv-peers/bin/python -m benchmarks.resizing

The images are the photographs of the package, and independent pixels that are black or white, which is the worst case
of bicubic interpolation. `docs/coming_from/index.md` contains the table that this command prints.
"""

import statistics
import time

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize as torchvision_resize

# isort: split
# If TensorFlow is imported before PyTorch, the process dies.
import numpy as np
import PIL.Image
import tensorflow as tf

from benchmarks.records import markdown_table
from keras_vit.data.decoding import resize_image
from keras_vit.export.parity import PHOTOGRAPHS

SIZES = ((224, 224), (248, 331), (331, 248), (384, 384), (32, 48))
ROUNDS = 21


def _pillow(image, size, interpolation):
    return np.asarray(PIL.Image.fromarray(image).resize(size[::-1], _filter(interpolation)))


def _pillow_width_first(image, size, interpolation):
    resized = PIL.Image.fromarray(image).resize((size[1], len(image)), _filter(interpolation))
    return np.asarray(resized.resize(size[::-1], _filter(interpolation)))


def _torchvision(image, size, interpolation):
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
    mode = InterpolationMode[interpolation.upper()]
    return torchvision_resize(tensor, size, mode, antialias=True).numpy().transpose(1, 2, 0)


def _tensorflow(image, size, interpolation):
    resized = tf.image.resize(image, size, interpolation, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8).numpy()


def _filter(interpolation):
    return PIL.Image.Resampling[interpolation.upper()]


REFERENCES = {
    "Pillow before 13, timm": _pillow_width_first,
    f"Pillow {PIL.__version__}": _pillow,
    "torchvision for tensors of uint8, transformers": _torchvision,
    "`tf.image.resize(antialias=True)`": _tensorflow,
}
"""{name: function of an image, a size (height, width) and an interpolation}"""


def differences(images, interpolation, reference):
    """Largest difference from a reference in levels, and the share of the values that differ."""
    largest, shares = 0, []
    for image in images:
        for size in SIZES:
            resized = resize_image(tf.constant(image), size, interpolation).numpy().astype(int)
            difference = np.abs(resized - reference(image, size, interpolation))
            largest = max(largest, difference.max())
            shares.append((difference > 0).mean())
    return largest, np.mean(shares)


def milliseconds(function, image, interpolation):
    """Median time of a resize to 224 x 224 pixels."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        function(image, (224, 224), interpolation)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    torch.set_num_threads(1)
    photographs = [np.asarray(PIL.Image.open(path).convert("RGB")) for path in sorted(PHOTOGRAPHS.glob("*.jpg"))]
    noise = np.random.default_rng(0).integers(0, 2, (375, 500, 3), "uint8") * np.uint8(255)
    rows = []
    for interpolation in ("bilinear", "bicubic"):
        ours = tf.function(resize_image, autograph=False)
        tensor = tf.constant(noise)
        rows.append((interpolation, "keras_vit", "", "", "", "", f"{milliseconds(ours, tensor, interpolation):.1f}"))
        for name, reference in REFERENCES.items():
            cells = []
            for images in (photographs, [noise]):
                largest, share = differences(images, interpolation, reference)
                cells += [largest, f"{share:.2%}"]
            rows.append((interpolation, name, *cells, f"{milliseconds(reference, noise, interpolation):.1f}"))
    columns = ("interpolation", "compared with", "photographs", "differ", "noise", "differ ", "ms")
    print(markdown_table(columns, rows, columns[2:]))


if __name__ == "__main__":
    main()
