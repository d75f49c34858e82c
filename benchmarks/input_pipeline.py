"""Measures the speed of the input pipeline on one core: ours, stock Keras layers, and KerasCV.

Command: make bench-input

The pipeline: JPEG files of 500 x 375 pixels, a random part at 224 x 224, flip, RandAugment(2, 10), Mixup, batches of
32. The parts are measured separately and together, in one process with one thread. Each round measures all in turn, so
that other work on the machine affects all of them alike. Images a second are per second of processor time. A line of
JSON for each part and library is added to benchmarks/results/input.jsonl, with device, commit and versions. --document
writes the table into docs/performance/input_pipeline.md.

Keras has no layer for a random resized crop. The nearest layers are `Resizing` of the shorter side to 256 and
`RandomCrop`. Its `RandAugment` draws once for a batch, so all libraries are mapped image by image.

The benchmark fails if the whole pipeline is not `AT_LEAST` times as fast as with the layers of Keras.
"""

import argparse
import io
import statistics
import sys
import time

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

import keras_vit
from benchmarks.provenance import processor, provenance, versions_in_words
from benchmarks.records import add_options, append, put_between
from training.data.augment import build_augmentation
from training.recipe.config import Augment

SIZE = 224
BATCH = 32
CLASSES = 1000
MIXUP = 0.2
AT_LEAST = 5
_VERSIONS = ("keras", "tensorflow", "keras-cv")
STEPS = ("decode and crop", "flip", "RandAugment", "Mixup", "all")
_OURS = {
    "decode and crop": {"crop": "inception"},
    "flip": {"flip": True},
    "RandAugment": {"randaugment_ops": 2, "randaugment_magnitude": 10},
    "Mixup": {"mixup": MIXUP},
}


def photographs(number, height=375, width=500):
    """Encoded images that take as long to decode as photographs: smooth shapes, edges and some noise."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(number):
        coarse = rng.integers(0, 256, (12, 16, 3)).astype("uint8")
        image = np.asarray(PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC)) * 1.0
        image[height // 3 :, width // 4 : width // 2] *= 0.5
        image += rng.normal(0, 8, image.shape)
        buffer = io.BytesIO()
        PIL.Image.fromarray(image.clip(0, 255).astype("uint8")).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def pipelines(files):
    """{step: {library: endless data set of batches}}"""
    libraries = {"ours": _ours, "Keras": _keras, "KerasCV": _keras_cv}
    steps = {library: make_steps() for library, make_steps in libraries.items()}
    decoded = np.stack([tf.image.resize(tf.io.decode_jpeg(file, 3), (SIZE, SIZE)) for file in files]).astype("uint8")
    return {
        step: {library: _pipeline(files, decoded, step, functions) for library, functions in steps.items()}
        for step in STEPS
    }


def _pipeline(files, decoded, step, functions):
    """The data set of one step, or of all. `functions` take an image, or images and labels, and a seed."""
    names = STEPS[:-1] if step == "all" else [step]
    from_files = "decode and crop" in names
    dataset = tf.data.Dataset.from_tensor_slices(files if from_files else decoded).repeat().enumerate()

    def change(index, image):
        for name in names:
            if name != "Mixup":
                image = functions[name](image, tf.stack([index, 0]))
        return tf.ensure_shape(image, [SIZE, SIZE, 3]), tf.one_hot(index % CLASSES, CLASSES)

    dataset = dataset.map(change).batch(BATCH, drop_remainder=True)
    if "Mixup" in names:
        dataset = dataset.enumerate().map(lambda index, batch: functions["Mixup"](*batch, tf.stack([index, 1])))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    # Otherwise maps become parallel, and prepare their next batch while another library is measured.
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _ours():
    layer = keras_vit.Preprocessing(resize=(SIZE, SIZE))
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), layer])
    augmentations = {name: build_augmentation(model, Augment(**config)) for name, config in _OURS.items()}
    functions = {name: _change_of(augmentation) for name, augmentation in augmentations.items()}
    mix = augmentations["Mixup"].mix
    return functions | {"Mixup": lambda images, labels, seed: mix(images, labels, seed, BATCH)}


def _change_of(augmentation):
    return lambda image, seed: augmentation.change({"image": image}, seed)["image"]


def _keras():
    resize = keras.layers.Resizing(256, 256, crop_to_aspect_ratio=True)
    crop = keras.layers.RandomCrop(SIZE, SIZE)
    changes = {
        "flip": keras.layers.RandomFlip("horizontal"),
        "RandAugment": keras.layers.RandAugment((0, 255), num_ops=2, factor=1.0),
    }
    return {
        "decode and crop": lambda file, _: crop(resize(tf.io.decode_jpeg(file, 3)), training=True),
        "Mixup": _mixing_layer(keras.layers.MixUp(MIXUP)),
    } | {name: _changing_layer(layer) for name, layer in changes.items()}


def _keras_cv():
    import keras_cv

    layers = keras_cv.layers
    crop = _changing_layer(layers.RandomCropAndResize((SIZE, SIZE), (0.05, 1.0), (3 / 4, 4 / 3)))
    changes = {"flip": layers.RandomFlip(), "RandAugment": layers.RandAugment((0, 255), 2, 1.0)}
    return {
        "decode and crop": lambda file, seed: crop(tf.io.decode_jpeg(file, 3), seed),
        "Mixup": _mixing_layer(layers.MixUp(MIXUP)),
    } | {name: _changing_layer(layer) for name, layer in changes.items()}


def _changing_layer(layer):
    return lambda image, _: layer(tf.cast(image, tf.float32), training=True)


def _mixing_layer(layer):
    def mix(images, labels, _):
        mixed = layer({"images": tf.cast(images, tf.float32), "labels": labels}, training=True)
        return mixed["images"], mixed["labels"]

    return mix


def measure(datasets, rounds, seconds):
    """Images per second of processor time, as a list with one number a round for each data set.

    Args:
        datasets: {name: endless data set of batches}
        rounds: Number of measurements of each data set, in turns.
        seconds: Processor time of each measurement.
    """
    iterators = {name: iter(dataset) for name, dataset in datasets.items()}
    for iterator in iterators.values():
        next(iterator)  # Traces the data set.
    rates = {name: [] for name in iterators}
    for _ in range(rounds):
        for name, iterator in iterators.items():
            started = time.process_time()
            images = 0
            while (elapsed := time.process_time() - started) < seconds or not images:
                next(iterator)
                images += BATCH
            rates[name].append(images / elapsed)
    return rates


def table(results):
    """Markdown: medians with the lowest and highest round, and our speed-up round by round."""
    rows = ["| step | ours | Keras | KerasCV | ours / Keras | ours / KerasCV |", "|---|--:|--:|--:|--:|--:|"]
    for step, rates in results.items():
        cells = [f"{statistics.median(rate):,.0f} ({min(rate):,.0f}-{max(rate):,.0f})" for rate in rates.values()]
        for other in ("Keras", "KerasCV"):
            ratios = ratios_to(other, rates)
            cells.append(f"{statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})")
        rows.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(rows)


def rows_of(results):
    """The lines of the results: the rates of each step and library in all rounds."""
    return [
        {"step": step, "library": library, "images_per_second": [round(rate, 2) for rate in round_rates]}
        for step, rates in results.items()
        for library, round_rates in rates.items()
    ]


def ratios_to(other, rates):
    """Our speed-up over another library, round by round."""
    return [one / two for one, two in zip(rates["ours"], rates[other], strict=True)]


def main(arguments=None):
    """Measures, prints and saves the results. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each implementation")
    parser.add_argument("--seconds", type=float, default=2.0, help="processor time of each measurement")
    add_options(parser, "bench-input", "input")
    options = parser.parse_args(arguments)
    state = {"device": processor()} | provenance()  # Read first: the code may change meanwhile.
    files = photographs(16)
    size = f"{sum(map(len, files)) / len(files) / 1000:.0f} kB a file"
    heading = f"Images a second of one core, {size}; {processor()}; {versions_in_words(_VERSIONS)}"
    print(f"{heading}:\n")
    steps = pipelines(files)
    results = {step: measure(datasets, options.rounds, options.seconds) for step, datasets in steps.items()}
    append([state | row for row in rows_of(results)], options.results)
    print(table(results))
    if options.document:
        put_between("bench-input", f"{heading}:\n\n{table(results)}\n")
    ratio = statistics.median(ratios_to("Keras", results["all"]))
    print(f"The whole pipeline has {ratio:.1f} times the rate of Keras; at least {AT_LEAST} is expected.")
    return 0 if ratio >= AT_LEAST else 1


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sys.exit(main())
