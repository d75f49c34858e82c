"""Evaluation of pre-training without labels. Shapes: B batch, H W C image."""

import dataclasses

import keras
import numpy as np

from keras_vit.inference import predictor
from training.data.pipeline import read_once
from training.data.samples import sample_decoder
from training.evaluation.metrics import evenly_spaced

NUM_EXAMPLES = 8


@dataclasses.dataclass(frozen=True)
class Prediction:
    """How well the hidden patches of the images of a split are predicted.

    `value` is the value of the metric with the name `metric`, at most 1. `loss` is the mean loss of an image.
    `examples` are triples of pictures (H, W, C), with pixels from 0 to 255: the image, the image with gray hidden
    patches, and the image with predicted patches. The images are evenly spaced in the split.
    """

    metric: str
    value: float
    loss: float
    num_images: int
    examples: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    def __str__(self):
        return f"{self.metric.replace('_', ' ')} {self.value:.2%}, loss {self.loss:z.4f} ({self.num_images:,} images)"


def evaluate(learner, dataset, split, recipe, objective, metric):
    """Evaluates the predictions of hidden patches. Which patches are hidden is random.

    Args:
        learner: A model of `keras_vit.pretraining`.
        dataset: `training.data.dataset.Dataset`
        split: Name of the split.
        recipe: `training.recipe.config.Recipe`
        objective: Function of labels and outputs of the learner that returns the loss of each image.
        metric: Keras metric of labels and outputs of the learner.

    Returns:
        A `Prediction`.
    """
    source, size = dataset.splits[split], recipe.fit.batch_size
    chosen = evenly_spaced(NUM_EXAMPLES, source.size)
    compute, loss, count, images = predictor(learner), keras.metrics.Mean(), 0, []
    for batch, _, is_real in read_once(source, sample_decoder(learner.model), lambda sample: 0, size):
        outputs = compute(batch)
        loss.update_state(objective(None, outputs), sample_weight=is_real)
        metric.update_state(None, outputs, sample_weight=is_real)
        images += [batch[row] for row in np.flatnonzero(is_real) if count + row in chosen]
        count += int(is_real.sum())
    shown = learner.reconstruct(np.stack(images))
    height, width = shown.masked.shape[1:3]
    pictures = [np.rint(255 * drawn).astype("uint8") for drawn in shown]
    originals = [image[:height, :width] for image in images]
    examples = tuple(zip(originals, *pictures, strict=True))
    return Prediction(metric.name, float(metric.result()), float(loss.result()), count, examples)
