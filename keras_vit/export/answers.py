"""What exports return for each kind of output, and how it is compared with the model.

Shapes: B batch, N images, H W image, k top classes.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.outputs import ACTIVATIONS, output_of

_NEARLY = 0.05
"""Values of an export of lower precision agree with the model's if they differ by at most this share of their range."""


class Answer:
    """What exports return for a kind of output. This class returns the numbers of the model's output.

    Attributes:
        name: Name of the main output, which `compute` returns.
        rank: Rank of the model's output.
        has_classes: Whether the answer predicts classes, which can be counted.
        has_names: Whether a SavedModel returns the names of what it predicts.
        returns_mask: Whether a SavedModel returns `mask` and `score` in place of the main output.
        batch_sizes: Batch sizes with which a server is warmed up by default.
    """

    name = "values"
    rank = 2
    has_classes = has_names = returns_mask = False
    batch_sizes: tuple[int, ...] = (1, 8, 32)

    @staticmethod
    def compute(model, images):
        """Returns the main output for prepared images, float32 (B, ...)."""
        return ops.cast(model(images, training=False), "float32")

    def accepts(self, output, num_channels):
        """Whether a model with this `Output` and this size of the last axis can be exported."""
        return True

    def reduced(self, outputs, names):
        """Changes the outputs of a chunk of images, {name: tensor}, in a graph of TensorFlow. Saves memory."""
        return outputs

    def named(self, outputs, names, top_k):
        """Adds outputs for clients to those of all images, {name: tensor}, in a graph of TensorFlow.

        Only SavedModels have them. Files for other runtimes return the main output.
        """
        return outputs

    def scale(self, expected):
        """The number by which differences of the main output (N, ...) are divided."""
        return float(np.abs(expected).max()) or 1.0

    def predicted_classes(self, outputs):
        """The sorted indices of the classes that the main output (N, ...) predicts. Empty without `has_classes`."""
        return []

    def agreement(self, found, expected, negative):
        """The share of the images for which an export of lower precision gives the same answer as the model.

        Args:
            found: Main output of the export, (N, ...).
            expected: Main output of the model, (N, ...).
            negative: Main output of the model for another image, (...).
        """
        allowed = _NEARLY * np.ptp(np.concatenate([expected, negative[None]]), axis=0)
        return (np.abs(found - expected) <= allowed).all(axis=-1).mean()


class Scores(Answer):
    """The probabilities of classes or labels, and the most probable of them."""

    name = "probabilities"
    has_classes = has_names = True

    @staticmethod
    def compute(model, images):
        """Returns the probabilities for prepared images, float32 (B, ...), also of logits."""
        outputs, output = ops.cast(model(images, training=False), "float32"), output_of(model)
        return keras.activations.get(ACTIVATIONS[output.kind])(outputs) if output.has_logits else outputs

    def accepts(self, output, num_channels):
        return output.activation in ("softmax", "sigmoid", None)

    def named(self, outputs, names, top_k):
        import tensorflow as tf

        if self.name not in outputs:
            return outputs
        scores, classes = tf.math.top_k(outputs[self.name], min(top_k, len(names)))
        labels = tf.gather(tf.constant(names), classes)
        if "valid" in outputs:
            valid = outputs["valid"][:, None]
            classes, labels = tf.where(valid, classes, -1), tf.where(valid, labels, "")
        return outputs | {"classes": classes, "labels": labels, "scores": scores}

    def scale(self, expected):
        return 1.0

    def predicted(self, outputs):
        """The predicted class of each image or pixel, (N, ...)."""
        return outputs.argmax(axis=-1)

    def predicted_classes(self, outputs):
        return np.unique(self.predicted(outputs)).tolist()

    def agreement(self, found, expected, negative):
        return (self.predicted(found) == self.predicted(expected)).mean()


class Classes(Scores):
    """Same as `Scores`, for classes that exclude each other: the softmax of a single logit would always be 1."""

    def accepts(self, output, num_channels):
        return super().accepts(output, num_channels) and (num_channels > 1 or not output.has_logits)


class ClassMap(Scores):
    """The most probable class of each pixel and its score, (B, H, W). They take less memory than probabilities."""

    rank = 4
    has_names = False
    returns_mask = True
    batch_sizes = (1, 4)

    def accepts(self, output, num_channels):
        return num_channels > 1 and super().accepts(output, num_channels)

    def reduced(self, outputs, names):
        import tensorflow as tf

        dtype = tf.uint8 if len(names) < 2**8 else tf.int32
        values = outputs[self.name]
        mask = tf.argmax(values, axis=-1, output_type=tf.int32)
        if "valid" in outputs:
            mask = tf.where(outputs["valid"][:, None, None], mask, 255 if dtype == tf.uint8 else -1)
        remaining = {name: output for name, output in outputs.items() if name != self.name}
        return remaining | {"mask": tf.cast(mask, dtype), "score": tf.reduce_max(values, axis=-1)}

    def named(self, outputs, names, top_k):
        return outputs


ANSWERS = {"classes": Classes(), "labels": Scores(), "values": Answer(), "class_map": ClassMap()}
"""{kind of an output: `Answer`}. Models with other outputs cannot be exported."""


def answer_of(model):
    """The `Answer` of the exports of a model."""
    return ANSWERS[output_of(model).kind]
