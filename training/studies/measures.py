"""What studies measure in a trained classifier besides its accuracy. All results are fractions."""

import numpy as np

import keras_vit
from training.data.loading import load_dataset
from training.data.pipeline import read_once
from training.data.samples import sample_decoder

SHIFTS = (1, 2, 4, 8)
"""Shifts of the images, in 32nds of their height."""
BLOCKS = 4
_NUM_IMAGES = 1000
_NUM_ATTENTION_IMAGES = 128  # As in the paper.
SHIFT_NAMES = {shift: f"same after {shift} px" for shift in SHIFTS}
DISTANCE_NAMES = {block: f"distance in block {block}" for block in range(1, BLOCKS + 1)}
MEASURES = (*SHIFT_NAMES.values(), *DISTANCE_NAMES.values())


def measure(model, recipe):
    """How often predictions stay the same when test images are shifted, and how far tokens attend.

    * `"same after k px"`: the share of predictions that do not change if an image is shifted by k 32nds of its height
      to the left, right, top or bottom. Pixels are mirrored at the edges.
    * `"distance in block i"`: the mean attention distance of the block, as a share of the image's height (arXiv
      2010.11929, Figures 7 and 11). NaN if the model has no such block.
    """
    images = _test_images(model, recipe)
    return _shift_measures(model, images) | _distance_measures(model, images[:_NUM_ATTENTION_IMAGES])


def _test_images(model, recipe):
    batches = read_once(
        load_dataset(recipe.data).source("test"), sample_decoder(model), lambda sample: 0, recipe.fit.batch_size
    )
    chosen, count = [], 0
    for images, _, is_real in batches:
        chosen.append(images[is_real])
        count += len(chosen[-1])
        if count >= _NUM_IMAGES:
            break
    return np.concatenate(chosen)[:_NUM_IMAGES]


def _shift_measures(model, images):
    height = images.shape[1]

    def classes(images):
        return model.predict(images, batch_size=100, verbose=0).argmax(axis=1)

    expected, shares = classes(images), {}
    for shift, name in SHIFT_NAMES.items():
        pixels = shift * height // 32
        padded = np.pad(images, [(0, 0), (pixels, pixels), (pixels, pixels), (0, 0)], mode="reflect")
        middle, ends = pixels, (0, 2 * pixels)
        corners = [(middle, end) for end in ends] + [(end, middle) for end in ends]
        moved = (padded[:, top : top + height, left : left + images.shape[2]] for top, left in corners)
        shares[name] = float(np.mean([classes(each) == expected for each in moved]))
    return shares


def _distance_measures(model, images):
    distances = np.full(BLOCKS, np.nan)
    if "encoder_block_0" in {layer.name for layer in model.layers}:
        found = keras_vit.mean_attention_distance(model, images.astype("float32")).mean(axis=1) / images.shape[1]
        distances[: len(found)] = found[:BLOCKS]
    return dict(zip(DISTANCE_NAMES.values(), distances.tolist(), strict=True))
