"""Measures whether pre-training without labels helps, on the embedded digits, with three seeds.

    python -m benchmarks.self_supervision [FOLDER]

A small Vision Transformer is pre-trained on the training images, without their labels, by masked patch prediction and
as a masked autoencoder. Then 10 labelled images of each class are used in two ways. A linear classifier is fitted to
their frozen features (few-shot), and the model is fine-tuned on them for some steps. Both are compared with a randomly
initialised model, with the same images, steps and learning rate. The settings were chosen with other seeds.

The command prints a table in Markdown, and writes the accuracy of each seed and the figures to a folder (default:
docs/figures). It fails if the mean of a pre-trained model is not better than that of the random one.
"""

import csv
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.analysis.plots import ACCENT, FAINT, INK, panels
from keras_vit.pretraining import MaskedAutoencoder, MaskedPatchPrediction
from training import recipes
from training.data.loading import load_dataset
from training.evaluation.fewshot import choose_shots, fewshot_accuracy

SEEDS = (0, 1, 2)
SHOTS = 10
WAYS = (f"few-shot, {SHOTS} labels a class", f"fine-tuned, {SHOTS} labels a class")
CONFIG = keras_vit.ViTConfig(patch_size=2, hidden_dim=64, num_layers=4, num_heads=4, mlp_dim=128, pooling="avg")
SHAPE = (8, 8, 1)
FINE_TUNING_STEPS = 40
FINE_TUNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Method:
    """How a model is pre-trained."""

    build: object
    epochs: int
    learning_rate: float
    batch_size: int = 256
    weight_decay: float = 0.05


METHODS = {
    "masked patch prediction": Method(MaskedPatchPrediction, 200, 2e-3),
    "masked autoencoder": Method(lambda model, seed: MaskedAutoencoder(model, 0.75, 2, 32, 4, seed=seed), 200, 2e-3),
}


def load_digits():
    """{split: (pixels in [0, 255], labels)}"""
    dataset = load_dataset(recipes.load("digits").data)
    return {name: _arrays(dataset.splits[name]) for name in ("train", "test")}


def _arrays(source):
    examples = list(source.in_order().as_numpy_iterator())
    images = np.stack([tf.io.decode_image(example["image"]).numpy() for example in examples])
    return images, np.array([example["label"] for example in examples])


def encoder(seed):
    """A new encoder that returns the mean of its patch tokens."""
    keras.utils.set_random_seed(seed)
    return keras_vit.ViT(CONFIG, include_top=False, input_shape=SHAPE, include_preprocessing=True)


def pretrain(method, images, seed):
    """Pre-trains an encoder on images. Returns the encoder and the pre-training model."""
    model = encoder(seed)
    pretraining = method.build(model, seed=seed)
    steps = method.epochs * -(-len(images) // method.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 20, warmup_target=method.learning_rate, warmup_steps=steps // 20
    )
    # XLA fuses the hundreds of small operations of a step.
    pretraining.compile(keras.optimizers.AdamW(schedule, weight_decay=method.weight_decay), jit_compile=True)
    pretraining.fit(images, batch_size=method.batch_size, epochs=method.epochs, verbose=0)
    return model, pretraining


def few_shot(model, data, seed):
    """Accuracy of a linear classifier on the frozen features of a few labelled images."""
    features = {name: model.predict(images, batch_size=512, verbose=0) for name, (images, _) in data.items()}
    [accuracies] = fewshot_accuracy(
        features["train"], data["train"][1], features["test"], data["test"][1], shots=(SHOTS,), seeds=(seed,)
    ).values()
    return float(accuracies.mean())


def fine_tune(model, data, seed, learning_rate=FINE_TUNING_RATE):
    """Accuracy of an encoder after fine-tuning on a few labelled images, which depend on the seed only."""
    images, labels = data["train"]
    chosen = choose_shots(labels, SHOTS, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "encoder.npz")
        keras_vit.save_weights(model, path, "google")
        classifier = keras_vit.ViT(
            CONFIG, input_shape=SHAPE, classes=10, include_preprocessing=True, classifier_activation=None
        )
        keras_vit.load_weights(classifier, path, head="reset")
    keras.utils.set_random_seed(seed)
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, FINE_TUNING_STEPS)
    classifier.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    classifier.fit(images[chosen], labels[chosen], batch_size=len(chosen), epochs=FINE_TUNING_STEPS, verbose=0)
    return classifier.evaluate(*data["test"], batch_size=512, verbose=0, return_dict=True)["accuracy"]


def measure(data, seed):
    """{kind of pre-training: (few-shot, fine-tuned) accuracy}, and the masked autoencoder."""
    start = encoder(seed)
    accuracies = {"none": (few_shot(start, data, seed), fine_tune(start, data, seed))}
    for name, method in METHODS.items():
        model, pretraining = pretrain(method, data["train"][0], seed)
        accuracies[name] = few_shot(model, data, seed), fine_tune(model, data, seed)
    return accuracies, pretraining


def write(rows, folder):
    """Writes the accuracies of all seeds as a table and as a figure."""
    with open(folder / "self_supervision.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["pre-training", "seed", "few_shot", "fine_tuned"])
        writer.writerows([name, seed, *(f"{value:.4f}" for value in values)] for name, seed, values in rows)
    figure, axes = panels(columns=2, sharey=True)
    for index, (one, title) in enumerate(zip(axes[0], WAYS, strict=True)):
        for place, name in enumerate(("none", *METHODS)):
            values = [100 * accuracies[index] for other, _, accuracies in rows if other == name]
            one.bar(place, statistics.mean(values), width=0.6, color=FAINT if name == "none" else ACCENT)
            one.plot([place] * len(values), values, "o", color=INK, ms=4, clip_on=False)
        one.set_xticks(range(1 + len(METHODS)), [name.replace(" ", "\n", 1) for name in ("none", *METHODS)])
        one.set_title(title)
        one.set_ylim(0, 100)
    axes[0][0].set_ylabel("test accuracy (%)")
    figure.savefig(folder / "self_supervision.png", dpi=150)


def draw(pretraining, images, folder):
    """Writes pictures of some images, of their visible patches and of their reconstructions."""
    noise = np.random.default_rng(0).random((len(images), 16)).astype("float32")
    reconstruction = pretraining.reconstruct(images, noise=noise)
    figure, axes = panels((0.9, 0.9), 3, len(images))
    for row, (name, pictures) in enumerate(
        {"seen": reconstruction.masked, "predicted": reconstruction.reconstructed, "image": images / 255}.items()
    ):
        for one, picture in zip(axes[row], pictures, strict=True):
            one.imshow(picture, cmap="gray", vmin=0, vmax=1)
            one.set_xticks([])
            one.set_yticks([])
        axes[row][0].set_ylabel(name)
    figure.savefig(folder / "reconstructions.png", dpi=150)


def main(folder="docs/figures"):
    """Prints the table of all seeds. Returns the exit status of the process."""
    folder, data, rows = pathlib.Path(folder), load_digits(), []
    folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        began = time.monotonic()
        accuracies, autoencoder = measure(data, seed)
        rows += [(name, seed, values) for name, values in accuracies.items()]
        print(f"seed {seed}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    write(rows, folder)
    draw(autoencoder, data["test"][0][:10], folder)
    print(f"| pre-training | {' | '.join(WAYS)} |\n|---|---:|---:|")
    means = {}
    for name in ("none", *METHODS):
        columns = list(zip(*(values for other, _, values in rows if other == name), strict=True))
        means[name] = [statistics.mean(column) for column in columns]
        cells = [f"{statistics.mean(column):.1%} ({min(column):.1%} to {max(column):.1%})" for column in columns]
        print(f"| {name} | {' | '.join(cells)} |")
    helps = all(mean > without for name in METHODS for mean, without in zip(means[name], means["none"], strict=True))
    print(f"\nPre-training {'helps' if helps else 'does not help'} in the mean of {len(SEEDS)} seeds.", file=sys.stderr)
    return 0 if helps else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
