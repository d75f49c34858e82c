"""Vision Transformers of other projects, trained from scratch on CIFAR-10.

Each project trains with its own or the usual augmentation, loss and optimizer, in float32.

    python -m benchmarks.cifar10.contenders NAME LEARNING_RATE STEPS EVALUATIONS IMAGES.npz

prints a line of JSON with the versions of its packages, and a line for each evaluation. It needs what `setup.cfg` names
for `peers`.
"""

import argparse
import importlib.metadata
import itertools
import json
import math
import time

import numpy as np

SEED = 0
BATCH_SIZE = 128
WARMUP = 0.05  # Fraction of the steps.
# Not read from the recipe: its import loads TensorFlow, with which torch's data loader crashes.
SIZES = {"num_layers": 6, "num_heads": 2, "hidden_dim": 128, "mlp_dim": 256}
"""The sizes of the encoder in the recipe `cifar10_hour`."""
PATCH_SIZE = 8
PACKAGES = {
    "keras_hub": ("keras-hub", "keras", "tensorflow"),
    "timm": ("timm", "torch"),
    "tutorial": ("keras", "tensorflow"),
}
"""The packages that each contender runs on."""


def cosine(part):
    """The factor of the learning rate after a part of the steps: linear warm-up, then half a cosine."""
    if part < WARMUP:
        return part / WARMUP
    return (1 + math.cos(math.pi * (part - WARMUP) / (1 - WARMUP))) / 2


def constant(_):
    """The tutorial's learning rate does not change."""
    return 1.0


class Training:
    """One training: the images, the learning rate and the evaluations.

    Args:
        images: {"train_images": (N, 32, 32, 3), "train_labels": (N,), "validation_images", "validation_labels"}. Pixels
            are normalised by the means and standard deviations of the channels.
        learning_rate: Peak learning rate.
        steps: Number of steps.
        evaluations: Number of evaluations, at equal intervals. The last one is after the last step.
        decay: `cosine` or `constant`
    """

    def __init__(self, images, learning_rate, steps, evaluations, decay=cosine):
        self.images, self.steps, self._peak, self._decay = images, steps, learning_rate, decay
        self._due = {round(steps * i / evaluations) for i in range(1, evaluations + 1)}
        self._step, self._seconds, self._since = 0, 0.0, time.perf_counter()

    @property
    def learning_rate(self):
        """The learning rate of the next step."""
        return self._peak * self._decay(self._step / self.steps)

    def start(self):
        """Starts the clock, before the first step."""
        self._since = time.perf_counter()

    def count_step(self, classify):
        """Counts a step. If an evaluation is due, prints its accuracy and the seconds of all steps so far.

        Args:
            classify: Function from images to logits or probabilities, (N, 10).
        """
        self._step += 1
        if self._step in self._due:
            self._seconds += time.perf_counter() - self._since
            classes = classify(self.images["validation_images"]).argmax(-1)
            accuracy = float((classes == self.images["validation_labels"]).mean())
            row = {"step": self._step, "seconds": round(self._seconds, 1), "accuracy": accuracy}
            print(json.dumps(row), flush=True)
            self.start()


def keras_hub(*training):
    """KerasHub's ViT with the sizes of our model. Layers of Keras flip and translate the images."""
    import keras
    from keras import layers
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    keras.utils.set_random_seed(SEED)
    model = ViTImageClassifier(ViTBackbone(image_shape=(32, 32, 3), patch_size=PATCH_SIZE, **SIZES), num_classes=10)
    optimizer = keras.optimizers.AdamW(weight_decay=0.05)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    augmentation = layers.RandomFlip("horizontal"), layers.RandomTranslation(0.125, 0.125)
    _fit(model, optimizer, Training(*training), BATCH_SIZE, augmentation)


def tutorial(*training):
    """The model, augmentation, batch and optimizer of a widely read tutorial: 144 patches, a large head, dropout.

    https://keras.io/examples/vision/image_classification_with_vision_transformer/, with tokens of width 64, as in its
    text. (In commit 07721306 of keras-io, its code has tokens of width 256, which take several times as long.)
    """
    import keras

    _fit(tutorial_model(), keras.optimizers.AdamW(weight_decay=1e-4), Training(*training, constant), batch_size=256)


def tutorial_model():
    """The model of `tutorial`."""
    import keras
    from keras import layers

    class Positions(layers.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = layers.Embedding(144, 64)

        def call(self, tokens):
            return tokens + self.embedding(keras.ops.arange(144))

    keras.utils.set_random_seed(SEED)
    pixels = keras.Input((32, 32, 3))
    x = layers.Resizing(72, 72)(pixels)
    for layer in layers.RandomFlip("horizontal"), layers.RandomRotation(0.02), layers.RandomZoom(0.2, 0.2):
        x = layer(x)
    patches = layers.Reshape((144, 108))(keras.ops.image.extract_patches(x, 6))
    x = Positions()(layers.Dense(64)(patches))
    for _ in range(8):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + layers.MultiHeadAttention(num_heads=4, key_dim=64, dropout=0.1)(y, y)
        x = x + _mlp(layers.LayerNormalization(epsilon=1e-6)(x), (128, 64), 0.1)
    x = layers.Dropout(0.5)(layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x)))
    return keras.Model(pixels, layers.Dense(10)(_mlp(x, (2048, 1024), 0.5)))


def _mlp(x, widths, dropout):
    from keras import layers

    for width in widths:
        x = layers.Dropout(dropout)(layers.Dense(width, "gelu")(x))
    return x


def _fit(model, optimizer, training, batch_size, augmentation=()):
    """Trains a Keras model with `model.fit`. `augmentation` contains layers for the input pipeline."""
    import keras
    import tensorflow as tf

    images, labels = training.images["train_images"], training.images["train_labels"]
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).repeat().batch(batch_size)
    for layer in augmentation:
        dataset = dataset.map(lambda batch, labels, layer=layer: (layer(batch), labels), tf.data.AUTOTUNE)

    class Schedule(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            model.optimizer.learning_rate = training.learning_rate

        def on_train_batch_end(self, batch, logs=None):
            training.count_step(lambda pixels: model.predict(pixels, 500, verbose=0))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    training.start()
    batches = dataset.prefetch(tf.data.AUTOTUNE)
    model.fit(batches, steps_per_epoch=training.steps, callbacks=[Schedule()], verbose=0)


def timm(images, *training):
    """timm's ViT with the sizes of our model, and the default augmentation and loss of timm's training script."""
    import torch
    from PIL import Image
    from timm.data import create_transform
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.models import VisionTransformer
    from timm.optim import create_optimizer_v2

    class Augmented(torch.utils.data.Dataset):
        transform = create_transform(
            32, is_training=True, color_jitter=0.4, interpolation="random", mean=images["mean"], std=images["std"]
        )

        def __len__(self):
            return len(images["train_labels"])

        def __getitem__(self, i):
            return self.transform(Image.fromarray(images["train_pixels"][i])), int(images["train_labels"][i])

    torch.manual_seed(SEED)
    sizes = {"embed_dim": SIZES["hidden_dim"], "depth": SIZES["num_layers"], "num_heads": SIZES["num_heads"]}
    sizes["mlp_ratio"] = SIZES["mlp_dim"] / SIZES["hidden_dim"]
    model = VisionTransformer(32, patch_size=PATCH_SIZE, num_classes=10, **sizes)
    optimizer = create_optimizer_v2(model, "adamw", weight_decay=0.05)
    training, smoothed = Training(images, *training), LabelSmoothingCrossEntropy(0.1)

    def classify(pixels):
        model.eval()
        with torch.inference_mode():
            parts = torch.from_numpy(pixels).permute(0, 3, 1, 2).split(500)
            logits = torch.cat([model(part) for part in parts]).numpy()
        model.train()
        return logits

    options = {"shuffle": True, "drop_last": True, "num_workers": 1, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(Augmented(), BATCH_SIZE, **options)
    batches = (batch for _ in itertools.count() for batch in loader)
    training.start()
    for pixels, labels in itertools.islice(batches, training.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate
        optimizer.zero_grad()
        smoothed(model(pixels), labels).backward()
        optimizer.step()
        training.count_step(classify)


CONTENDERS = {"keras_hub": keras_hub, "timm": timm, "tutorial": tutorial}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("learning_rate", type=float)
    parser.add_argument("steps", type=int)
    parser.add_argument("evaluations", type=int)
    parser.add_argument("images", help="file that ours.write_splits wrote")
    arguments = parser.parse_args()
    print(json.dumps({name: importlib.metadata.version(name) for name in PACKAGES[arguments.name]}), flush=True)
    schedule = arguments.learning_rate, arguments.steps, arguments.evaluations
    CONTENDERS[arguments.name](_normalized(arguments.images), *schedule)


def _normalized(path):
    pixels = dict(np.load(path))
    mean, std = (function(pixels["train_images"], (0, 1, 2)) / 255 for function in (np.mean, np.std))
    images = {
        name: ((pixels[name] / 255 - mean) / std).astype("float32") for name in ("train_images", "validation_images")
    }
    labels = {name: pixels[name] for name in ("train_labels", "validation_labels")}
    return {**images, **labels, "train_pixels": pixels["train_images"], "mean": tuple(mean), "std": tuple(std)}


if __name__ == "__main__":
    main()
