"""How good a model is on images that it has not seen. B images, C classes."""

import dataclasses

import numpy as np

from keras_vit.decoding import image_decoder
from training.pipeline import evaluation_batches


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Images of a split with what a model makes of them.

    `images` (B, H, W, channels) from 0 to 255, `labels` (B,), `probabilities` (B, C), `class_names` C strings.
    """

    images: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray
    class_names: tuple[str, ...]

    @property
    def predictions(self):
        """The most probable class of each image, (B,)."""
        return self.probabilities.argmax(axis=1)

    @property
    def accuracy(self):
        """Part of the images whose most probable class is the right one."""
        return float((self.predictions == self.labels).mean())

    @property
    def loss(self):
        """Mean cross-entropy in nats."""
        right = self.probabilities[np.arange(len(self.labels)), self.labels]
        return float(-np.log(np.maximum(right, 1e-30)).mean())

    @property
    def confusion(self):
        """(C, C) counts: row the true class, column the predicted one."""
        counts = np.zeros((len(self.class_names), len(self.class_names)), int)
        np.add.at(counts, (self.labels, self.predictions), 1)
        return counts

    def __str__(self):
        right = (self.predictions == self.labels).sum()
        return (
            f"accuracy {self.accuracy:.2%} ({right} of {len(self.labels)} images), cross-entropy {self.loss:z.4f} nats"
        )


def evaluate(model, dataset, split, recipe):
    """What a model makes of a split.

    Args:
        model: A classifier of this package that returns probabilities.
        dataset: `training.data.Dataset`
        split: Name of the split.
        recipe: `training.config.Recipe`

    Returns:
        An `Evaluation`.
    """
    parts = [
        (images, labels, model.predict_on_batch(images)) for images, labels in _numpy(model, dataset, split, recipe)
    ]
    images, labels, probabilities = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Evaluation(images, labels.argmax(axis=1), probabilities, dataset.class_names)


def nearest_neighbour_accuracy(model, dataset, recipe, max_values=50_000_000):
    """Accuracy of a nearest-neighbour classifier on the same test images, which tells how hard they are.

    It compares raw pixels, at the model's input size, with those of the training and validation images. `None` if
    the training images have more than `max_values` values together.
    """
    from sklearn.neighbors import KNeighborsClassifier

    num_images = sum(source.size for name, source in dataset.splits.items() if name != "test")
    if num_images * np.prod(model.input_shape[1:]) > max_values:
        return None
    known, unknown = [], []
    for split in dataset.splits:
        (unknown if split == "test" else known).extend(_numpy(model, dataset, split, recipe))
    classifier = KNeighborsClassifier(n_neighbors=1)
    classifier.fit(*_flat(known))
    return float(classifier.score(*_flat(unknown)))


def _numpy(model, dataset, split, recipe):
    batches = evaluation_batches(dataset, split, image_decoder(model), recipe)
    for images, labels, weights in batches(0, 1, recipe.fit.batch_size).as_numpy_iterator():
        is_real = weights > 0
        yield images[is_real], labels[is_real]


def _flat(parts):
    images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return images.reshape(len(images), -1).astype("float32"), labels.argmax(axis=1)
