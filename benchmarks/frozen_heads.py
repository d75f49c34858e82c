"""Measures training steps of heads on cached features against steps that train the encoder, too.

    python -m benchmarks.frozen_heads

The encoder is an S/16 with random weights for images of 224 x 224 pixels, in batches of 8, with 21 classes, of which
five occur in each image. The EoMT head trains its copy of the last blocks, three by default, in both cases. The steps
of a head have turns. The times are medians of seven turns of one step. Reading the features from the disk is not
measured. Use a quiet machine.
"""

import statistics
import time

import keras
import numpy as np

import keras_vit
from keras_vit.models.dense import encoder_and_head
from training import recipes
from training.engine.optimizers import build_optimizer
from training.engine.step import TrainedModel
from training.recipe.assignments import override
from training.recipe.model_functions import build_head
from training.tasks import TASKS

HEADS = {
    "linear": {},
    "dpt": {"features": 64, "widths": (48, 96, 192, 384)},
    "eomt": {"num_queries": 100},
    "eomt, masks of 8 x 8 pixels, two blocks": {"num_queries": 100, "num_upscales": 1, "num_blocks": 2},
}
BATCH_SIZE, SIZE, CLASSES, TURNS = 8, 224, 21, 7


class Dataset:
    class_names = tuple(map(str, range(CLASSES)))


def steps(name, arguments):
    """Functions that make a training step: {"cached": on features, "trained": on images}."""
    recipe = override(recipes.load("segment_folder"), [f"model.head={name.partition(',')[0]}"])
    task, rng = TASKS[recipe.task](recipe), np.random.default_rng(0)
    head = build_head(recipe.model.head, arguments)
    images = rng.normal(size=(BATCH_SIZE, SIZE, SIZE, 3)).astype("float32")
    sample = {"mask": np.repeat(np.arange(SIZE, dtype="uint8") // 45, SIZE).reshape(SIZE, SIZE, 1)}  # Five classes.
    label = keras.tree.map_structure(np.asarray, task.read_label(sample, CLASSES))
    labels = keras.tree.map_structure(lambda array: np.stack([array] * BATCH_SIZE), label)
    found = {}
    for kind in ("cached", "trained"):
        model = keras_vit.Segmenter("S/16", head, CLASSES, classifier_activation=None, input_shape=(SIZE, SIZE, 3))
        task.prepare(model, 1000)
        inputs, outputs, batch = model.input, model.output, images
        if kind == "cached":
            encoder, after = encoder_and_head(model)
            inputs, outputs, batch = after.input, after.output, encoder.predict(images, verbose=0)
            for layer in encoder.layers:
                layer.trainable = False
        metric = task.build_metric(model, Dataset)
        trained = TrainedModel(inputs, outputs, task.build_objective(model, Dataset), metric=metric)
        trained.compile(build_optimizer(recipe, trained, 100))
        found[kind] = lambda trained=trained, batch=batch: trained.train_on_batch(
            batch, labels, np.ones(BATCH_SIZE, "float32")
        )
    return found


def main():
    print("| head | step on cached features | step with the encoder | ratio |\n|---|--:|--:|--:|")
    for name, arguments in HEADS.items():
        seconds = {"cached": [], "trained": []}
        functions = steps(name, arguments)
        for function in functions.values():
            function()  # Compiles the step.
        for _ in range(TURNS):
            for kind, function in functions.items():
                began = time.perf_counter()
                function()
                seconds[kind].append(time.perf_counter() - began)
        cached, trained = (statistics.median(values) for values in seconds.values())
        print(f"| {name} | {1000 * cached:.0f} ms | {1000 * trained:.0f} ms | {trained / cached:.1f} |", flush=True)


if __name__ == "__main__":
    main()
